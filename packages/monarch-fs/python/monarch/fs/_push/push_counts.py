"""What a push did: on one host, and on all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

# The most failures of a host that are listed; further ones are only counted.
FAILURES = 100


class PushFailure(NamedTuple):
    """A path of a target that could not be made what it should be. `stale`: the file has changed since the source was indexed."""

    path: str
    errno: int
    reason: str
    stale: bool = False


@dataclass
class PushCounts:
    """What a push did on one host. Paths are relative to the target."""

    host: str = ""
    target: str = ""
    # Files of the tree, and the written files among them.
    files: int = 0
    written: int = 0
    bytes_written: int = 0
    deleted: int = 0
    # Binaries that still contain the old prefix.
    left: list[str] = field(default_factory=list[str])
    # Files of the source that the client has no permission to read.
    unreadable: list[str] = field(default_factory=list[str])
    failures: list[PushFailure] = field(default_factory=list[PushFailure])
    failure_count: int = 0

    def fail(self, failure: PushFailure) -> None:
        self.failure_count += 1
        if len(self.failures) < FAILURES:
            self.failures.append(failure)


class PushReport(NamedTuple):
    """What `push` did on all hosts."""

    hosts: int
    # Files of the source.
    files: int
    # Written files, and their bytes, over all hosts.
    files_written: int
    bytes_written: int
    # Bytes of contents that the client sent: each content once or twice, for any number of hosts.
    bytes_sent: int
    # Removed files, links and directories, over all hosts.
    deleted: int
    seconds: float
    # Relative paths of binaries that contain the old prefix, because of missing room or a missing record; empty without `relocate`.
    prefix_left: list[str]
    # Relative paths of files that the client has no permission to read: hosts keep the files that they had there.
    unreadable: list[str]
