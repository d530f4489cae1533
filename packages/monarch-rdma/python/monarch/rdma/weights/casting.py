"""Copies between tensors of different dtypes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from monarch.rdma._transfer.memory import is_tensor
from monarch.rdma.weights.errors import LayoutError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.rdma.weights.local_tensor import LocalTensor
    from monarch.rdma.weights.planner import Numbers, Pieces


class Casts:
    """Pieces that are converted on the way from the staging memory to the target."""

    def __init__(self, tensors: Sequence[LocalTensor], pieces: Pieces, which: Numbers, memory: memoryview) -> None:
        self._pairs: list[tuple[Any, Any]] = []
        starts: list[tuple[int, tuple[int, ...]]] = [(i, part.local) for i, t in enumerate(tensors) for part in t.parts]
        for piece in map(int, which):
            i, local = starts[int(pieces.block[piece])]
            tensor = tensors[i]
            dims = len(tensor.shape)
            skip = pieces.extent.shape[1] - dims
            extent = tuple(int(n) for n in pieces.extent[piece, skip:])
            low = [a + int(b) for a, b in zip(local, pieces.low[piece, skip:], strict=True)]
            index = tuple(slice(a, a + n) for a, n in zip(low, extent, strict=True))
            into = (tensor.data.detach() if is_tensor(tensor.data) else tensor.data)[(*index, ...)]
            count = int(np.prod(extent))
            self._pairs.append((into, _staged(tensor, pieces.dtype[piece], memory, int(pieces.dense[piece]), count).reshape(extent)))

    def run(self) -> None:
        for into, staged in self._pairs:
            if is_tensor(into):
                into.copy_(staged)
            else:
                np.copyto(into, staged, casting="unsafe")


def _staged(tensor: LocalTensor, dtype: str, memory: memoryview, offset: int, count: int) -> Any:
    torch: Any = sys.modules.get("torch")
    if is_tensor(tensor.data):
        found = getattr(torch, dtype, None)
        if found is not None:
            return torch.frombuffer(memory, dtype=found, count=count, offset=offset)
    else:
        try:
            return np.frombuffer(memory, np.dtype(dtype), count, offset)
        except TypeError:
            pass
    error = LayoutError(
        f"tensor '{tensor.name}': {dtype} cannot be converted to {tensor.dtype} here: no library that is loaded has the former"
    )
    error.tensor = tensor.name
    raise error
