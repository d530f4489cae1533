"""Which path there is to a process.

It is chosen by what the two processes tell of each other (`_capability`), in the order of `PATHS`: the first that reaches the owner.
Those that are not in this version (`ABSENT`) are named by the error that says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.rdma.errors import RDMAUnsupportedError
from monarch.rdma.paths.same_host import SAME_HOST

if TYPE_CHECKING:
    from monarch.rdma._capability import CapabilityRecord
    from monarch.rdma.paths.path import Path

PATHS: tuple[Path, ...] = (SAME_HOST,)
# Name, and what it will be for.
ABSENT = (
    ("verbs", "other hosts, through InfiniBand, RoCE or EFA devices"),
    ("tcp", "other hosts, through the job's TLS streams"),
    ("routed", "other hosts of which only a gateway can be reached"),
)


def choose(mine: CapabilityRecord, theirs: CapabilityRecord, host: str) -> Path:
    """The best path to a process on `host`; `RDMAUnsupportedError` where none of this version reaches it."""
    for path in PATHS:
        if path.reaches(mine, theirs):
            return path
    missing = ", ".join(name for name, _ in ABSENT)
    raise RDMAUnsupportedError(
        f"the buffer is on another host, {host}: the paths {missing} are not in this version",
        hint="send the bytes as an argument of an actor's endpoint, or have both processes on one host",
    )
