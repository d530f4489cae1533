"""Runs of bytes as the operations of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch.rdma._buffers.plan import Copies, HostPlan, RDMAPlan, is_for_hosts
from monarch.rdma._transfer.memory import Memory
from monarch.rdma._transfer.operation import Operation
from monarch.rdma.weights.planner import flattened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.rdma._buffers.buffer import RDMABuffer
    from monarch.rdma.weights.local_tensor import LocalTensors
    from monarch.rdma.weights.planner import Runs
    from monarch.rdma.weights.table import Numbers

# Seconds for a copy within this process: it waits for nothing but memory.
COPY = 600.0
# The object that keeps local memory, and its GPU.
Kept = tuple[Any, int | None]


def kept_by(tensors: LocalTensors, numbers: Numbers) -> list[Kept]:
    """The objects that keep the memory of these tensors, by number."""
    kept = list(zip(tensors.data, tensors.device, strict=True))
    return [kept[i] for i in numbers.tolist()]


def plan_of(kind: int, copies: Sequence[tuple[RDMABuffer, Runs]], kept: Sequence[Kept] | None, keep: object = None) -> RDMAPlan:
    """The plan of runs: `there` is an offset in the buffer, `here` an address, of the memory of `kept[piece]`, else of `keep`."""
    devices = kept is not None and any(device is not None for _, device in kept)
    if not devices and is_for_hosts([buffer for buffer, _ in copies]):
        return HostPlan(kind, [Copies(buffer, runs.rows(), runs.size()) for buffer, runs in copies], (kept, keep))
    found: list[Operation] = []
    for buffer, strided in copies:
        # Other transports copy contiguous bytes.
        runs = flattened(strided)
        columns = (column.tolist() for column in (runs.piece, runs.there, runs.here, runs.nbytes))
        for piece, offset, address, size in zip(*columns, strict=True):
            of: Kept = (keep, None) if kept is None else kept[int(piece)]
            found.append(Operation(kind, buffer, Memory(address, size, False, of[0], of[1]), size, offset))
    return RDMAPlan(found)
