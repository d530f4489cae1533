"""The state of a mount on one machine, as its server and its daemon report it."""

from __future__ import annotations

from typing import Any, NamedTuple

from monarch.fs._daemon.mounted_tree import ReadError


class ServedStatus(NamedTuple):
    """Counts are those of the present mount server, from its start on."""

    generation: str
    # Chunks that were not on this machine when they were read.
    faults: int
    # Reads, and the reads that waited for bytes from another machine.
    reads: int
    waited: int
    # Bytes answered, and the bytes from another machine among them.
    bytes_read: int
    bytes_fetched: int
    # Files whose content at the source changed before it arrived; at most 1,000.
    stale: list[str]
    # The last failed read: path and reason, or "".
    last_error: str
    # The number of failed reads, and the last of them.
    errors: int
    failures: list[ReadError]
    # The back end that serves. Whether opens are requests, and why.
    backend: str
    opens: bool
    reason: str
    # Requests of the kernel by kind.
    requests: dict[str, int]
    # The server process of the mount; its clients; the reason of the last restart of the server, or "".
    server: int
    users: int
    daemon_error: str


def served_status(head: dict[str, Any]) -> ServedStatus:
    """The status in an answer of the daemon."""
    tree, last = head["status"], head["status"]["last_error"]
    return ServedStatus(
        tree["generation"],
        tree["faults"],
        tree["reads"],
        tree["waited"],
        tree["bytes_read"],
        tree["bytes_fetched"],
        list(tree["stale"]),
        f"{last['path']}: {last['reason']}" if last else "",
        tree["errors"],
        [ReadError(**failure) for failure in head.get("failures", ())],
        str(head.get("backend", "")),
        bool(head["opens"]),
        str(head["reason"]),
        dict(head["requests"]),
        int(head["server"]),
        int(head["users"]),
        str(head["daemon_error"]),
    )
