"""The paths between memories of hosts: `local`, `shm`, `cma` and `shm-staged` on one host, `tcp` and `routed` between two; and, where
an end is on a GPU, what `_gpu.copies` does.

Which of them it is, native code decides when it opens a buffer, from where the owner is and what the kernel permits; on one host it may go
down the list later, without an error, where a permission is withdrawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch import extension
from monarch.extension.bulk import Handle, Plan
from monarch.rdma._process.process import this_process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.extension.bulk import Notify, PendingCall
    from monarch.rdma._gpu.device_handle import DeviceHandle
    from monarch.rdma._process.capability import CapabilityRecord
    from monarch.rdma._transfer.memory import Memory
    from monarch.rdma._transfer.operation import Operation, Step
    from monarch.rdma.paths.path import Prepared


def largest_slice() -> int:
    """Upper bound of a slice, bytes; a setting of nothing or less counts as 1 MiB."""
    return max(int(extension.setting("rdma_max_chunk_size_mb")), 1) << 20


def prepared(steps: Sequence[Step], keep: object) -> Prepared:
    """A plan of these, which keeps their local memory and handles; and `keep`, until nothing of a submit is under way."""
    keep = (tuple(steps), keep)
    rows: list[tuple[Handle, int, int, int, int, int, int]] = []
    for handle, kind, memory, nbytes, offset, first, second in steps:
        if memory.device is not None or not isinstance(handle, Handle):
            from monarch.rdma._gpu.copies import DevicePlan  # 15 ms, with ctypes

            return DevicePlan(steps, keep)
        rows.append((handle, kind, memory.address, nbytes, offset, first, second))
    return Plan(this_process().bulk, rows, keep)


class HostMemory:
    def reaches(self, mine: CapabilityRecord, theirs: CapabilityRecord) -> bool:
        return mine.host == theirs.host or bool(extension.setting("rdma_allow_tcp_fallback"))

    def open(self, handle: Handle | DeviceHandle, timeout: float) -> str:
        return handle.path(timeout)

    def copy(
        self, handle: Handle | DeviceHandle, write: bool, memory: Memory, offset: int, nbytes: int, timeout: float
    ) -> PendingCall | None:
        if memory.device is not None or not isinstance(handle, Handle):
            from monarch.rdma._gpu.copies import Copy, start  # 15 ms, with ctypes

            return start(Copy(handle, write, memory, offset, nbytes), timeout)
        return handle.transfer(write, memory.address, nbytes, memory.keep, offset, timeout, largest_slice())

    def forget(self, handle: Handle | DeviceHandle) -> None:
        """Native code knows."""

    def plan(self, operations: Sequence[Operation]) -> Prepared:
        # Buffers are kept like the local memory: one that was never pickled would end with its last handle.
        return prepared([op.step for op in operations], tuple(operations))

    def submit(self, plan: Prepared, timeout: float, notify: Notify | None) -> PendingCall:
        return plan.submit(timeout, largest_slice(), notify)


HOST_MEMORY = HostMemory()
