"""Which path there is to a process.

It is chosen by what the two processes tell of each other (`_capability`), in the order of `paths`: the first that reaches the owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.rdma.errors import RDMATcpFallbackWarning, RDMAUnsupportedError
from monarch.rdma.paths.host_memory import HOST_MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monarch.rdma._capability import CapabilityRecord
    from monarch.rdma.paths.path import Path


def paths(theirs: CapabilityRecord) -> Iterator[Path]:
    """Best first. What drives devices is loaded where both sides may have some."""
    if theirs.has_rails:
        from monarch.rdma.paths.verbs import VERBS

        yield VERBS
    yield HOST_MEMORY


def choose(mine: CapabilityRecord, theirs: CapabilityRecord, host: str) -> Path:
    """The best path to a process on `host`; `RDMAUnsupportedError` where none reaches it."""
    for path in paths(theirs):
        if path.reaches(mine, theirs):
            if path is HOST_MEMORY and mine.host != theirs.host:
                warn_once(f"to and from {host} and other hosts")
            return path
    raise RDMAUnsupportedError(
        f"the buffer is on another host, {host}: the two have no devices that can be used, and `rdma_allow_tcp_fallback` is False",
        hint="`monarch rdma probe` on both hosts says why; or leave `rdma_allow_tcp_fallback` at True",
    )


_warned = False


def warn_once(which: str) -> None:
    """That bytes go over streams, once in the life of the process."""
    global _warned
    if not _warned:
        from warnings import warn

        _warned = True
        warn(
            f"no RDMA device is used: bytes {which} go over TCP streams (`monarch rdma probe` says why)",
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
