"""Copies between tensors of different dtypes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from monarch.rdma._transfer.memory import is_tensor
from monarch.rdma.weights.errors import LayoutError

if TYPE_CHECKING:
    from monarch.rdma.weights.local_tensor import LocalTensors
    from monarch.rdma.weights.planner import Numbers, Pieces


class Casts:
    """Pieces that are converted on the way from the staging memory to the target."""

    def __init__(self, tensors: LocalTensors, pieces: Pieces, which: Numbers, memory: memoryview) -> None:
        self._pairs: list[tuple[Any, Any]] = []
        for piece in map(int, which):
            block, i = int(pieces.block[piece]), int(pieces.tensor[piece])
            data, dims = tensors.data[i], int(tensors.table.dims[i])
            # Columns may be wider than the tensor has dimensions; a scalar has none.
            extent = tuple(pieces.extent[piece].tolist()[pieces.extent.shape[1] - dims :])
            inside = tensors.local[block].tolist()[tensors.table.width - dims :]
            low = pieces.low[piece].tolist()[pieces.low.shape[1] - dims :]
            index = tuple(slice(a + b, a + b + n) for a, b, n in zip(inside, low, extent, strict=True))
            into = (data.detach() if is_tensor(data) else data)[(*index, ...)]
            count = int(np.prod(extent))
            dtype = pieces.dtypes[int(pieces.dtype[piece])]
            self._pairs.append((into, _staged(tensors, i, dtype, memory, int(pieces.dense[piece]), count).reshape(extent)))

    def run(self) -> None:
        for into, staged in self._pairs:
            if is_tensor(into):
                into.copy_(staged)
            else:
                np.copyto(into, staged, casting="unsafe")


def _staged(tensors: LocalTensors, i: int, dtype: str, memory: memoryview, offset: int, count: int) -> Any:
    torch: Any = sys.modules.get("torch")
    if is_tensor(tensors.data[i]):
        found = getattr(torch, dtype, None)
        if found is not None:
            return torch.frombuffer(memory, dtype=found, count=count, offset=offset)
    else:
        try:
            return np.frombuffer(memory, np.dtype(dtype), count, offset)
        except TypeError:
            pass
    name = tensors.table.names[i]
    error = LayoutError(
        f"tensor '{name}': {dtype} cannot be converted to {tensors.table.dtype_of(i)} here: no library that is loaded has the former"
    )
    error.tensor = name
    raise error
