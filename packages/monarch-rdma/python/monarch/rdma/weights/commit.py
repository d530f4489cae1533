"""The last copy of a pull: from the staging memory to the tensors of the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monarch.rdma._buffers.buffer import RDMABuffer
from monarch.rdma._transfer.operation import READ
from monarch.rdma.weights.casting import Casts
from monarch.rdma.weights.operations import COPY, kept_by, plan_of
from monarch.rdma.weights.planner import find_runs, merged

if TYPE_CHECKING:
    from monarch.rdma.weights.local_tensor import LocalTensors
    from monarch.rdma.weights.planner import Pieces


class Commit:
    """Copies all pieces, and converts those of another dtype."""

    def __init__(self, tensors: LocalTensors, pieces: Pieces, memory: memoryview) -> None:
        same = tensors.table.dtype[pieces.tensor] == pieces.dtype
        runs = find_runs(pieces.extent, pieces.itemsize, (pieces.dense, pieces.dense_strides), (pieces.local, pieces.local_strides))
        kept = kept_by(tensors, pieces.tensor)
        self._plan = plan_of(READ, [(RDMABuffer(memory), merged(runs.only(np.flatnonzero(same[runs.piece])), pieces.tensor))], kept)
        self._casts = None if same.all() else Casts(tensors, pieces, np.flatnonzero(~same), memory)

    def run(self) -> None:
        self._plan.submit(timeout=COPY).get()
        if self._casts is not None:
            self._casts.run()
