"""Tensors of a state dict of this process: their memory, and the boxes of global tensors that they are."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from monarch.rdma._transfer.memory import device_of, is_tensor
from monarch.rdma.weights.box import Box
from monarch.rdma.weights.sharding import Part, is_dtensor, parts_of
from monarch.rdma.weights.table import Table, padded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class LocalTensor(NamedTuple):
    """A tensor of this process; strides are in bytes. `data` keeps its memory. `device` is None on the host."""

    name: str
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    readonly: bool
    device: int | None
    data: Any
    whole: tuple[int, ...]
    parts: tuple[Part, ...]

    def moved(self) -> bool:
        """Whether the memory is another one than before, as after `tensor.data = ...`."""
        return is_tensor(self.data) and self.data.data_ptr() != self.address


def local_tensors(state: Mapping[str, Any]) -> list[LocalTensor]:
    """The tensors of a state dict. `TypeError` for other values, `ValueError` for tensors that cannot be described; both name the key."""
    found: list[LocalTensor] = []
    for name, value in state.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a state dict maps names to tensors: the key {name!r} is no str")
        try:
            found.append(_local_tensor(name, value))
        except (TypeError, ValueError) as e:
            raise type(e)(f"tensor '{name}': {e}") from None
    return found


def _local_tensor(name: str, value: Any) -> LocalTensor:
    box, data = _split(value)
    if is_dtensor(data):
        if box is not None:
            raise ValueError("a DTensor has a layout already: it takes no Box")
        whole, parts, data = tuple(data.shape), parts_of(data), data.to_local()
    else:
        shape: tuple[int, ...] = tuple(getattr(data, "shape", ()))
        if box is None:
            whole, parts = shape, [Part(_zeros(len(shape)), _zeros(len(shape)), shape)]
        elif box.shape == shape:
            whole, parts = box.global_shape, [Part(box.offset, _zeros(len(shape)), shape)]
        else:
            raise ValueError(f"its shape is {shape}, and that of its Box {box.shape}")
    found = tuple([part for part in parts if 0 not in part.shape])
    if is_tensor(data):
        item: int = data.element_size()
        device = device_of(data) if found else None
        strides = tuple(step * item for step in data.stride())
        dtype = str(data.dtype).removeprefix("torch.")
        return LocalTensor(name, dtype, item, tuple(data.shape), strides, data.data_ptr(), False, device, data, whole, found)
    interface = getattr(data, "__array_interface__", None)
    if interface is None:
        raise TypeError(f"expected a tensor of PyTorch, an array of NumPy, or a pair of one and a Box, got {type(data).__name__}")
    if data.dtype.hasobject or not data.dtype.isnative:
        raise TypeError(f"an array of dtype {data.dtype} cannot be sent: expected numbers in the byte order of the machine")
    address, readonly = interface["data"]
    return LocalTensor(name, _name(data.dtype), data.dtype.itemsize, data.shape, data.strides, address, readonly, None, data, whole, found)


@lru_cache(64)
def _zeros(count: int) -> tuple[int, ...]:
    return (0,) * count


@lru_cache(64)
def _name(dtype: Any) -> str:
    # NumPy composes the name anew each time, which takes longer than the rest of a tensor.
    return dtype.name


def _split(value: Any) -> tuple[Box | None, Any]:
    """A tensor, and the box of a pair."""
    if isinstance(value, tuple):
        pair = cast("tuple[Any, ...]", value)
        if len(pair) == 2 and isinstance(pair[1], Box):
            return pair[1], pair[0]
        return None, pair
    return None, value


def table_of(tensors: Sequence[LocalTensor]) -> Table:
    """The boxes of the tensors; the first byte of a block is its address, and all are of one region."""
    width = max([1, *(len(tensor.whole) for tensor in tensors)])
    parts = [part for tensor in tensors for part in tensor.parts]
    count = np.array([len(tensor.parts) for tensor in tensors], np.int64)
    number = np.repeat(np.arange(len(tensors)), count)
    strides = padded([tensor.strides for tensor in tensors], width, 0)[number]
    address = np.array([tensor.address for tensor in tensors], np.int64)[number]
    return Table(
        tuple([tensor.name for tensor in tensors]),
        tuple([tensor.dtype for tensor in tensors]),
        np.array([tensor.itemsize for tensor in tensors], np.int64),
        np.array([len(tensor.whole) for tensor in tensors], np.int64),
        padded([tensor.whole for tensor in tensors], width, 1),
        number,
        np.zeros(len(parts), np.int64),
        address + (padded([part.local for part in parts], width, 0) * strides).sum(axis=1),
        padded([part.low for part in parts], width, 0),
        padded([part.shape for part in parts], width, 1),
        strides,
    )
