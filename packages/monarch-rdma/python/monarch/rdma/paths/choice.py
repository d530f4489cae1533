"""Which path there is to a process.

It is chosen by what the two processes send each other (`_process.capability`), in the order of `paths`: the first that reaches the owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.rdma.errors import RDMAUnsupportedError
from monarch.rdma.paths.fallback_warning import warn_once
from monarch.rdma.paths.host_memory import HOST_MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monarch.rdma._process.capability import CapabilityRecord
    from monarch.rdma.paths.path import Path


def paths(theirs: CapabilityRecord) -> Iterator[Path]:
    """Best first. The driver of devices is loaded if both sides may have some."""
    if theirs.has_rails:
        # The import takes 30 ms.
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
