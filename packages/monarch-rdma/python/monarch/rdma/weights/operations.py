"""Runs of bytes as operations of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch.rdma._transfer.memory import Memory
from monarch.rdma._transfer.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from monarch.rdma._buffers.buffer import RDMABuffer
    from monarch.rdma.weights.local_tensor import LocalTensor
    from monarch.rdma.weights.planner import Runs
    from monarch.rdma.weights.table import Numbers

# The object that keeps local memory, and its GPU.
Kept = tuple[Any, int | None]


def kept_by(tensors: Sequence[LocalTensor], numbers: Numbers) -> list[Kept]:
    """The objects that keep the memory of these tensors, by number."""
    return [(tensors[i].data, tensors[i].device) for i in map(int, numbers)]


def operations(kind: int, buffer: RDMABuffer, runs: Runs, kept: Sequence[Kept] | None, keep: object = None) -> Iterator[Operation]:
    """The operation of each run: `there` is an offset in the buffer, `here` an address, of the memory of `kept[piece]`, else of `keep`."""
    columns = zip(runs.piece.tolist(), runs.there.tolist(), runs.here.tolist(), runs.nbytes.tolist(), strict=True)
    if kept is None:
        return (Operation(kind, buffer, Memory(here, n, False, keep), n, there) for _, there, here, n in columns)
    return (Operation(kind, buffer, Memory(here, n, False, *kept[piece]), n, there) for piece, there, here, n in columns)
