"""What the workers have printed, as copies on this machine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from monarch.job._job.launcher import Host, LogFile
from monarch.job.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monarch.job.kubernetes.access.client import Cluster

# Lines of each pod in one read.
_LINES = 10_000
# Pods without an answer that a line has named; `monarch logs -f` reads again and again.
_named: set[str] = set()


class Printing(NamedTuple):
    """A container of a pod of a host."""

    host: Host
    pod: str
    container: str


def copy_logs(cluster: Cluster, printing: Iterable[Printing], folder: str) -> list[LogFile]:
    """Copies below `folder`, one for each pod; a line on stderr names a pod that gives nothing and of which there is no copy."""
    os.makedirs(folder, 0o700, exist_ok=True)
    found: list[LogFile] = []
    for host, pod, container in printing:
        path = os.path.join(folder, f"{pod}.log")
        found.append(LogFile(host.mesh, host.rank, "out", path))
        try:
            _copy(path, cluster.pod_log(pod, container, _LINES).encode())
        except JobError as error:
            if pod not in _named and not os.path.exists(path):
                _named.add(pod)
                print(f"monarch: no output of {host}: {error}", file=sys.stderr)
    return found


def _copy(path: str, text: bytes) -> None:
    """Adds what is new, so that a reader of the copy can go on where it was."""
    with open(path, "a+b", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, 0o600)) as copy:
        # Only the part of a long copy that `text` can share with it.
        copy.seek(max(0, copy.seek(0, os.SEEK_END) - len(text)))
        copy.write(text[_known(copy.read(), text) :])


def _known(before: bytes, text: bytes) -> int:
    """The length of the longest end of `before` that is the begin of `text`, from the begin of a line.

    The search is that of Knuth, Morris and Pratt over whole lines, since logs repeat themselves: its time is linear in their sizes.
    """
    *there, open_line = before.split(b"\n")
    *lines, rest = text.split(b"\n")
    count = _overlap(there, open_line, lines, rest)
    if count is not None:
        return _size(lines[:count]) + len(open_line)
    # The kubelet cuts long lines into several, and counts these: `text` may begin within a line, and within a character.
    first = lines[0].lstrip("\N{REPLACEMENT CHARACTER}".encode()) if lines else b""
    count = _overlap(there, open_line, lines[1:], rest) if first else None
    if count and len(there) > count and there[-count - 1].endswith(first):
        return _size(lines[: count + 1]) + len(open_line)
    return 0


def _size(lines: list[bytes]) -> int:
    return sum(len(line) + 1 for line in lines)


def _overlap(there: list[bytes], open_line: bytes, lines: list[bytes], rest: bytes) -> int | None:
    """How many of `lines` are the last of `there`, at most; the line after them goes on from `open_line`. None: it never does."""
    shorter = _borders(lines)
    count = 0
    for line in there:
        while count and (count == len(lines) or lines[count] != line):
            count = shorter[count - 1]
        count += bool(lines) and lines[count] == line
    following = [*lines, rest]
    while not following[count].startswith(open_line):
        if not count:
            return None
        count = shorter[count - 1]
    return count if count or open_line else None


def _borders(lines: list[bytes]) -> list[int]:
    """For the begin of each length of `lines`: how many lines of its end are its begin as well, all of it excepted."""
    found = [0] * len(lines)
    for place in range(1, len(lines)):
        count = found[place - 1]
        while count and lines[count] != lines[place]:
            count = found[count - 1]
        found[place] = count + (lines[count] == lines[place])
    return found
