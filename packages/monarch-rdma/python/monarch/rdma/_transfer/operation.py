"""One operation of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from monarch.extension.bulk import Handle

if TYPE_CHECKING:
    from monarch.rdma._gpu.device_handle import DeviceHandle
    from monarch.rdma._transfer.memory import Memory
    from monarch.rdma._transfer.remote_buffer import RemoteBuffer

# rust/bridge/src/bulk/plan.rs
READ, WRITE, FETCH_ADD, COMPARE_AND_SWAP = range(4)
NAMES = ("read", "write", "fetch_add", "compare_and_swap")


class Step(NamedTuple):
    """One operation on the memory that a handle names."""

    handle: Handle | DeviceHandle
    kind: int
    memory: Memory
    nbytes: int
    offset: int = 0
    first: int = 0
    second: int = 0

    @property
    def on_device(self) -> bool:
        """One of its ends is on a GPU."""
        return self.memory.device is not None or not isinstance(self.handle, Handle)


class Operation(NamedTuple):
    """`nbytes` between local memory and a buffer at `offset`; the last two are operands of what changes a word."""

    kind: int
    buffer: RemoteBuffer
    memory: Memory
    nbytes: int
    offset: int = 0
    first: int = 0
    second: int = 0

    @property
    def step(self) -> Step:
        return Step(self.buffer.__core__, self.kind, self.memory, self.nbytes, self.offset, self.first, self.second)
