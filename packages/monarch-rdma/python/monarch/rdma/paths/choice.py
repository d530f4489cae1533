"""Which path there is to a process.

It is chosen by what the two processes tell of each other (`_capability`), in the order of `PATHS`: the first that reaches the owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.rdma.errors import RDMATcpFallbackWarning, RDMAUnsupportedError
from monarch.rdma.paths.host_memory import HOST_MEMORY

if TYPE_CHECKING:
    from monarch.rdma._capability import CapabilityRecord
    from monarch.rdma.paths.path import Path

PATHS: tuple[Path, ...] = (HOST_MEMORY,)


def choose(mine: CapabilityRecord, theirs: CapabilityRecord, host: str, on_device: bool) -> Path:
    """The best path to a process on `host`; `RDMAUnsupportedError` where none of this version reaches it."""
    if on_device and mine.host != theirs.host:
        raise RDMAUnsupportedError(
            f"the buffer is on a GPU of another host, {host}: no path of this version goes there",
            hint="share a copy in the memory of that host",
        )
    for path in PATHS:
        if path.reaches(mine, theirs):
            if mine.host != theirs.host:
                _warn_once(host)
            return path
    raise RDMAUnsupportedError(
        f"the buffer is on another host, {host}: the path verbs is not used in this version, and `rdma_allow_tcp_fallback` is False",
        hint="leave `rdma_allow_tcp_fallback` at True",
    )


_warned = False


def _warn_once(host: str) -> None:
    global _warned
    if not _warned:
        from warnings import warn

        _warned = True
        warn(
            f"no RDMA device is used: bytes to and from {host} and other hosts go over TCP streams (`monarch rdma probe` says why)",
            RDMATcpFallbackWarning,
            stacklevel=_user_frame(),
        )


def _user_frame() -> int:
    """How many frames up the first is that is not of this package."""
    import sys

    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("monarch.rdma"):
        level, frame = level + 1, frame.f_back
    return level
