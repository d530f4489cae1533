"""What is known of a mesh tensor without its data."""

from __future__ import annotations

from typing import Any

import torch


class Layout:
    """Sizes and strides in elements, offset into the storage in elements, type and device.

    Equal layouts are one object (`intern_layout`), so that they are compared by identity.
    """

    __slots__ = ("device", "dtype", "offset", "shape", "stride")

    def __init__(self, shape: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: Any, device: Any) -> None:
        self.shape = shape
        self.stride = stride
        self.offset = offset
        self.dtype = dtype
        self.device = device

    def __reduce__(self) -> tuple[Any, ...]:
        return intern_layout, (self.shape, self.stride, self.offset, self.dtype, self.device)

    def __repr__(self) -> str:
        return f"Layout({self.describe()}, stride={self.stride}, offset={self.offset})"

    def describe(self) -> str:
        """As messages have it: `float32[2, 3]`."""
        return describe(self.dtype, self.shape)

    def with_shape(self, shape: tuple[int, ...]) -> Layout:
        """A contiguous one of the same type and device."""
        return contiguous_layout(shape, self.dtype, self.device)


# Layouts of programs whose shapes change without end are not kept for ever. An old one is then another object than a new equal one,
# which costs a lookup.
_KEPT = 65_536
_layouts: dict[tuple[Any, ...], Layout] = {}


def describe(dtype: Any, shape: Any) -> str:
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"


def intern_layout(shape: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: Any, device: Any) -> Layout:
    key = (shape, stride, offset, dtype, device)
    found = _layouts.get(key)
    if found is None:
        if len(_layouts) >= _KEPT:
            _layouts.clear()
        found = _layouts[key] = Layout(*key)
    return found


def contiguous_layout(shape: tuple[int, ...], dtype: Any, device: Any) -> Layout:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return intern_layout(shape, tuple(strides), 0, dtype, device)


def layout_of(tensor: Any) -> Layout:
    """That of a strided tensor, local, fake or of a mesh. `TypeError` for a sparse or quantized one."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TypeError(f"a mesh tensor is dense and strided, not {tensor.layout}{' and quantized' if tensor.is_quantized else ''}")
    return intern_layout(tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype, tensor.device)
