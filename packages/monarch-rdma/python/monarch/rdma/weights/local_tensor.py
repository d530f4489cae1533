"""Tensors of a state dict of this process: their memory, and the boxes of global tensors that they are.

They are described in columns of numbers. There are tens of thousands of tensors, and objects for each of them take longer than the plan.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from monarch.rdma._transfer.memory import device_of, is_tensor
from monarch.rdma.errors import RDMAError
from monarch.rdma.weights.box import Box
from monarch.rdma.weights.sharding import Part, is_dtensor, parts_of
from monarch.rdma.weights.table import Table, padded, sums

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monarch.rdma.weights.table import Numbers


class LocalTensors(NamedTuple):
    """Tensors of this process. Their table has one region, in which the first byte of a block is its address.

    `data` keeps the memory. `device` is None on the host.
    """

    table: Table
    data: list[Any]  # T
    device: list[int | None]  # T
    address: Numbers  # T
    local: Numbers  # N, D: where the blocks begin in the tensors
    readonly: list[str]  # the names of the tensors that cannot be written

    def moved(self) -> bool:
        """Whether the memory of a tensor is another one than before, as after `tensor.data = ...`."""
        return any(is_tensor(data) and data.data_ptr() != at for data, at in zip(self.data, self.address.tolist(), strict=True))


def local_tensors(state: Mapping[str, Any]) -> LocalTensors:
    """The tensors of a state dict. `TypeError` for other values, `ValueError` for tensors that cannot be described,
    `RDMAUnsupportedError` for devices that cannot be read; all name the key.
    """
    columns = _Columns()
    for name, value in state.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a state dict maps names to tensors: the key {name!r} is no str")
        try:
            columns.add(name, value)
        except (TypeError, ValueError) as e:
            raise type(e)(f"tensor '{name}': {e}") from None
        except RDMAError as e:
            raise type(e)(f"tensor '{name}': {str(e).splitlines()[0]}", hint=e.hint, code=e.code) from None
        except RuntimeError as e:  # a tensor of PyTorch that has no shape
            raise ValueError(f"tensor '{name}': {e}") from None
    return columns.made()


class _Columns:
    """Columns that grow. Columns of dimensions have the numbers of all rows, one after another."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._data: list[Any] = []
        self._device: list[int | None] = []
        self._readonly: list[str] = []
        self._numbers: dict[Any, int] = {}
        self._dtypes: list[str] = []
        self._itemsizes: list[int] = []
        self._dtype, self._address, self._dims, self._whole, self._strides = (array("q") for _ in range(5))
        self._tensor, self._low, self._extent = (array("q") for _ in range(3))
        # Where blocks begin that do not begin at the first item.
        self._local: dict[int, tuple[int, ...]] = {}

    def add(self, name: str, value: Any) -> None:
        data, box, parts, device = value, None, None, None
        if type(value) is tuple and len(cast("tuple[Any, ...]", value)) == 2 and isinstance(value[1], Box):
            data, box = cast("tuple[Any, Box]", value)
        if type(data) is not np.ndarray and is_tensor(data):
            whole = tuple(data.shape)
            if is_dtensor(data):
                if box is not None:
                    raise ValueError("a DTensor has a layout already: it takes no Box")
                parts, data = parts_of(data), data.to_local()
            shape, item = tuple(data.shape), data.element_size()
            if 0 not in shape:
                device = device_of(data)
            address, readonly = data.data_ptr(), False
            strides = tuple([step * item for step in data.stride()])
        else:
            try:
                address, readonly = data.__array_interface__["data"]
            except AttributeError:
                got = type(data).__name__
                raise TypeError(f"expected a tensor of PyTorch, an array of NumPy, or a pair of one and a Box, got {got}") from None
            whole = shape = data.shape
            strides = data.strides
        if box is not None:
            whole = box.global_shape
            if box.shape != shape:
                raise ValueError(f"its shape is {shape}, and that of its Box {box.shape}")
        dtype = self._numbers.get(data.dtype)
        if dtype is None:
            dtype = self._numbers[data.dtype] = self._number(data)
        if parts is not None:
            self._add_parts(len(self._names), parts)
        elif 0 not in shape:
            self._tensor.append(len(self._names))
            self._low.extend((0,) * len(shape) if box is None else box.offset)
            self._extent.extend(shape)
        self._names.append(name)
        self._data.append(data)
        self._device.append(device)
        self._dtype.append(dtype)
        self._address.append(address)
        self._dims.append(len(whole))
        self._whole.extend(whole)
        self._strides.extend(strides)
        if readonly:
            self._readonly.append(name)

    def _add_parts(self, tensor: int, parts: list[Part]) -> None:
        for part in parts:
            if 0 not in part.shape:
                if any(part.local):
                    self._local[len(self._tensor)] = part.local
                self._tensor.append(tensor)
                self._low.extend(part.low)
                self._extent.extend(part.shape)

    def _number(self, data: Any) -> int:
        """The number of a dtype. Its name is composed once: NumPy takes longer for it than for the rest of a tensor."""
        if is_tensor(data):
            name, item = str(data.dtype).removeprefix("torch."), data.element_size()
        else:
            if data.dtype.hasobject or not data.dtype.isnative:
                raise TypeError(f"an array of dtype {data.dtype} cannot be sent: expected numbers in the byte order of the machine")
            name, item = data.dtype.name, data.dtype.itemsize
        if name not in self._dtypes:
            self._dtypes.append(name)
            self._itemsizes.append(item)
        return self._dtypes.index(name)

    def made(self) -> LocalTensors:
        dims, tensor, dtype, address = (np.array(column, np.int64) for column in (self._dims, self._tensor, self._dtype, self._address))
        width, block_dims = max([1, *self._dims]), dims[tensor]
        strides = padded(self._strides, dims, width, 0).take(tensor, axis=0)
        start, local = address[tensor], np.zeros_like(strides)
        if self._local:
            blocks = np.fromiter(self._local, np.int64)
            local[blocks] = padded([n for row in self._local.values() for n in row], block_dims[blocks], width, 0)
            start += sums(local * strides)
        table = Table(
            tuple(self._names),
            tuple(self._dtypes),
            dtype,
            np.array(self._itemsizes, np.int64)[dtype],
            dims,
            padded(self._whole, dims, width, 1),
            tensor,
            np.zeros_like(tensor),
            start,
            padded(self._low, block_dims, width, 0),
            padded(self._extent, block_dims, width, 1),
            strides,
        )
        return LocalTensors(table, self._data, self._device, address, local, self._readonly)
