"""What is known of a mesh tensor without its data."""

from __future__ import annotations

import math
from typing import Any

import torch

from monarch.tensor._protocol.torch_internals import set_conjugate, set_negative

CONJUGATED, NEGATED = 1, 2

# Bytes of a tensor whose memory workers free at once, and not together with others.
_LARGE = 256 << 10


class Layout:
    """Sizes and strides in elements, offset into the storage in elements, type and device.

    `bits` has `CONJUGATED` and `NEGATED`: such a tensor is a view of memory that has the conjugated or negated numbers.

    Equal layouts are one object (`intern_layout`), so that they are compared by identity.
    """

    __slots__ = ("bits", "device", "dtype", "is_large", "offset", "shape", "stride", "wrapper_arguments")

    def __init__(self, shape: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: Any, device: Any, bits: int) -> None:
        self.shape = shape
        self.stride = stride
        self.offset = offset
        self.dtype = dtype
        self.device = device
        self.bits = bits
        self.is_large = math.prod(shape) * dtype.itemsize >= _LARGE
        # Sizes, strides, offset, format, type, layout and device, in torch's order for a tensor without data. Torch takes positional
        # arguments faster, and makes the strides of a contiguous tensor faster than it reads them.
        plain = not offset and stride == row_major(shape)
        self.wrapper_arguments = (shape, None if plain else stride, None if plain else offset, None, dtype, torch.strided, device)

    def __reduce__(self) -> tuple[Any, ...]:
        return intern_layout, (self.shape, self.stride, self.offset, self.dtype, self.device, self.bits)

    def __repr__(self) -> str:
        return f"Layout({self.describe()}, stride={self.stride}, offset={self.offset})"

    def describe(self) -> str:
        """As messages have it: `float32[2, 3]`."""
        return describe(self.dtype, self.shape)

    def with_shape(self, shape: tuple[int, ...]) -> Layout:
        """A contiguous one of the same type and device."""
        return contiguous_layout(shape, self.dtype, self.device)


# The number of kept layouts: programs may change shapes without end. A dropped layout is then another object than a new equal one, which
# costs a lookup.
_KEPT = 65_536
_layouts: dict[tuple[Any, ...], Layout] = {}


def describe(dtype: Any, shape: Any) -> str:
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"


def intern_layout(shape: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: Any, device: Any, bits: int = 0) -> Layout:
    key = (shape, stride, offset, dtype, device, bits)
    found = _layouts.get(key)
    if found is None:
        if len(_layouts) >= _KEPT:
            _layouts.clear()
        found = _layouts[key] = Layout(*key)
    return found


def contiguous_layout(shape: tuple[int, ...], dtype: Any, device: Any) -> Layout:
    return intern_layout(shape, row_major(shape), 0, dtype, device)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a shape whose elements lie one after the other, the last dimension fastest."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def layout_of(tensor: Any) -> Layout:
    """That of a strided tensor, local, fake or of a mesh. `TypeError` for a sparse or quantized one."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TypeError(f"a mesh tensor is dense and strided, not {tensor.layout}{' and quantized' if tensor.is_quantized else ''}")
    bits = (CONJUGATED if tensor.is_conj() else 0) | (NEGATED if tensor.is_neg() else 0)
    return intern_layout(tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype, tensor.device, bits)


def mark(tensor: Any, bits: int) -> Any:
    """Gives a tensor without data the bits of its layout."""
    if bits & CONJUGATED:
        set_conjugate(tensor, True)
    if bits & NEGATED:
        set_negative(tensor, True)
    return tensor
