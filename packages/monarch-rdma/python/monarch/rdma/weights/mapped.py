"""Pieces that are many short runs, copied from mapped memory of this host: one strided copy each, instead of an operation for each run.

Mapped memory outlives its owner, so a copy cannot fail. The words, and the other reads, report a source that has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from monarch.rdma.errors import RDMAAccessError, RDMAError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from monarch.rdma._buffers.buffer import RDMABuffer
    from monarch.rdma.weights.planner import Pieces, Runs
    from monarch.rdma.weights.table import Numbers

# Mean bytes of a run below which one strided copy is faster than an operation for each run.
SHORT = 16 << 10
# Runs of a piece from which that is so: making a strided copy takes as long as some operations.
MANY = 16
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


def short_runs(pieces: Pieces, runs: Runs) -> NDArray[np.bool_]:
    """The pieces that are in several runs, which are short."""
    count = np.bincount(runs.piece, minlength=len(pieces.source))
    size = pieces.extent.prod(axis=1) * pieces.itemsize
    return (count >= MANY) & (size < SHORT * count) & np.isin(pieces.itemsize, list(_WORDS))


class Strided:
    """The copies of some pieces of one source from one of its memories."""

    def __init__(self, memory: memoryview, staging: memoryview, pieces: Pieces, which: Numbers) -> None:
        numbers = [int(i) for i in which]
        into = [_view(staging, pieces, i, pieces.dense, pieces.dense_strides) for i in numbers]
        try:
            out_of = [_view(memory, pieces, i, pieces.start, pieces.strides) for i in numbers]
        except ValueError as e:
            raise RDMAAccessError(f"malformed table of weights: a box is not within its memory: {e}") from None
        self._pairs = list(zip(into, out_of, strict=True))

    def run(self) -> None:
        for into, out_of in self._pairs:
            into[...] = out_of


def mapped(buffer: RDMABuffer) -> memoryview | None:
    """The memory of a buffer; None if this process cannot map it."""
    try:
        return buffer.map()
    except RDMAError:
        return None


def _view(memory: memoryview, pieces: Pieces, i: int, starts: Numbers, strides: Numbers) -> Any:
    return np.ndarray(pieces.extent[i], _WORDS[int(pieces.itemsize[i])], memory, int(starts[i]), strides[i])
