"""What a path is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.extension.bulk import Handle, Notify, PendingCall
    from monarch.rdma._gpu.device_handle import DeviceHandle
    from monarch.rdma._process.capability import CapabilityRecord
    from monarch.rdma._transfer.memory import Memory
    from monarch.rdma._transfer.operation import Operation


class Prepared(Protocol):
    """Operations that are submitted together."""

    def open(self, timeout: float) -> None:
        """Finds out where the buffers are, as far as that can be done within so many seconds."""
        ...

    def in_flight(self) -> bool:
        """A submit has not ended."""
        ...

    def submit(self, timeout: float, most: int, notify: Notify | None) -> PendingCall:
        """Starts all operations, after those of an earlier submit; `most` is the upper bound of a slice."""
        ...


class Path(Protocol):
    """A family of paths."""

    def reaches(self, mine: CapabilityRecord, theirs: CapabilityRecord) -> bool:
        """Can a process with the one record reach the memory of one with the other?"""
        ...

    def open(self, handle: Handle | DeviceHandle, timeout: float) -> str:
        """Finds out where a buffer is; the name that `RDMABuffer.path` shows."""
        ...

    def copy(
        self, handle: Handle | DeviceHandle, write: bool, memory: Memory, offset: int, nbytes: int, timeout: float
    ) -> PendingCall | None:
        """Starts one copy; None: it is done already."""
        ...

    def forget(self, handle: Handle | DeviceHandle) -> None:
        """This process has dropped the buffer."""
        ...

    def plan(self, operations: Sequence[Operation]) -> Prepared:
        """Operations that are submitted together, of which some go by this path."""
        ...

    def submit(self, plan: Prepared, timeout: float, notify: Notify | None) -> PendingCall:
        """Starts the operations of a plan."""
        ...
