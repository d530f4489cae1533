"""The warning that bytes between hosts go over TCP streams, once in the life of a process."""

from __future__ import annotations

import sys
from warnings import warn

from monarch.rdma.errors import RDMATcpFallbackWarning

_warned = False


def warn_once(which: str) -> None:
    """That bytes go over streams, once in the life of the process."""
    global _warned
    if not _warned:
        _warned = True
        warn(
            f"no RDMA device is used: bytes {which} go over TCP streams (`monarch rdma probe` says why)",
            RDMATcpFallbackWarning,
            stacklevel=_user_frame(),
        )


def _user_frame() -> int:
    """How many frames up the first is that is not of this package."""
    level, frame = 1, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("monarch.rdma"):
        level, frame = level + 1, frame.f_back
    return level
