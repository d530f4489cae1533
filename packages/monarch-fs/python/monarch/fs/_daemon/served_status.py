"""The state of a mount on one machine, as its server and its daemon report it."""

from __future__ import annotations

from typing import Any, NamedTuple


class ServedStatus(NamedTuple):
    """Counts are those of the present mount server, from its start on."""

    generation: str
    # Chunks that were not on this machine when a read needed them.
    faults: int
    bytes_read: int
    # Files whose content at the source changed before it arrived; at most 1,000.
    stale: list[str]
    # The last read that failed: path and reason, or "".
    last_error: str
    # Whether opens are requests, and why.
    opens: bool
    reason: str
    # Requests of the kernel by kind.
    requests: dict[str, int]
    # The process that serves the mount; clients that use it; why the server was started again, or "".
    server: int
    users: int
    daemon_error: str


def served_status(head: dict[str, Any]) -> ServedStatus:
    """The status in an answer of the daemon."""
    tree, last = head["status"], head["status"]["last_error"]
    return ServedStatus(
        tree["generation"],
        tree["faults"],
        tree["bytes_read"],
        list(tree["stale"]),
        f"{last['path']}: {last['reason']}" if last else "",
        bool(head["opens"]),
        str(head["reason"]),
        dict(head["requests"]),
        int(head["server"]),
        int(head["users"]),
        str(head["daemon_error"]),
    )
