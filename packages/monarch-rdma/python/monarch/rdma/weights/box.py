"""A part of a global tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monarch.rdma.weights.arguments import check_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, init=False)
class Box:
    """The part of a global tensor that a local tensor has.

    In a state dict, a pair of a tensor and its box stands for that part: `{"weight": (rows, Box((8, 0), (4, 16), (32, 16)))}`.

    Args:
        offset: the index of the first item of the part, one number for each dimension.
        shape: the shape of the part, which is that of the local tensor.
        global_shape: the shape of the global tensor.

    Raises:
        TypeError: an argument is no sequence of whole numbers.
        ValueError: the numbers of dimensions differ, or the part is not within the global tensor.

    ```python
    from monarch.rdma.weights import Box

    assert Box((8, 0), (4, 16), (32, 16)).shape == (4, 16)
    ```
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    global_shape: tuple[int, ...]

    def __init__(self, offset: Sequence[int], shape: Sequence[int], global_shape: Sequence[int]) -> None:
        for name, values in (("offset", offset), ("shape", shape), ("global_shape", global_shape)):
            object.__setattr__(self, name, check_numbers(name, values))
        if not len(self.offset) == len(self.shape) == len(self.global_shape):
            raise ValueError(f"{self}: expected the same number of dimensions in the offset and both shapes")
        for start, size, whole in zip(self.offset, self.shape, self.global_shape, strict=True):
            if start < 0 or size < 0 or start + size > whole:
                raise ValueError(f"{self}: the part is not within the global tensor")


def slices(low: Sequence[int], shape: Sequence[int]) -> str:
    """A part as an index, for texts: `[4:8, 0:16]`."""
    return "[" + ", ".join(f"{start}:{start + size}" for start, size in zip(low, shape, strict=True)) + "]"
