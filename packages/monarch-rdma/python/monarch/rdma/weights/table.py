"""Which boxes of which global tensors a process has, and where: columns of numbers, since there are tens of thousands of boxes.

A *block* is a box that lies in one memory region with constant strides. A local tensor is one block, or several if its box has gaps in the
global tensor, as with strided shards. The columns of dimensions are padded in front, with dimensions of size 1, to the same width.
"""

from __future__ import annotations

import json
from functools import reduce
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monarch.rdma.errors import RDMAAccessError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

_HEAD = Struct("<IQQQ")


class Table(NamedTuple):
    """The tensors of a process, in columns of `T` rows, and its blocks, in columns of `N` rows; `D` is the padded number of dimensions."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]  # the different ones
    dtype: Numbers  # T: a number of `dtypes`
    itemsize: Numbers  # T
    dims: Numbers  # T
    whole: Numbers  # T, D: the global shape
    tensor: Numbers  # N
    region: Numbers  # N
    start: Numbers  # N
    low: Numbers  # N, D
    shape: Numbers  # N, D
    strides: Numbers  # N, D

    @property
    def width(self) -> int:
        return self.whole.shape[1]

    def dtype_of(self, tensor: int) -> str:
        return self.dtypes[int(self.dtype[tensor])]

    def widened(self, width: int) -> Table:
        """The same with more dimensions of size 1 in front."""
        more = width - self.width
        if not more:
            return self

        def wide(column: Numbers, value: int) -> Numbers:
            return np.pad(column, ((0, 0), (more, 0)), constant_values=value)

        return self._replace(whole=wide(self.whole, 1), low=wide(self.low, 0), shape=wide(self.shape, 1), strides=wide(self.strides, 0))

    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return int((products(self.shape) * self.itemsize[self.tensor]).sum())

    def packed(self) -> bytes:
        """The table as bytes; `unpacked` is the other side."""
        text = json.dumps([self.names, self.dtypes], separators=(",", ":")).encode()
        head = _HEAD.pack(self.width, len(self.names), len(self.tensor), len(text))
        return b"".join((head, *(np.ascontiguousarray(column, "<i8").tobytes() for column in self[2:]), text))

    @staticmethod
    def unpacked(body: bytes) -> Table:
        """`RDMAAccessError` for malformed bytes."""
        try:
            width, tensors, blocks, text = _HEAD.unpack_from(body)
            shapes = [(tensors,)] * 3 + [(tensors, width)] + [(blocks,)] * 3 + [(blocks, width)] * 3
            columns: list[Numbers] = []
            place = _HEAD.size
            for shape in shapes:
                count = int(np.prod(shape))
                columns.append(np.frombuffer(body, "<i8", count, place).reshape(shape))
                place += 8 * count
            names, dtypes = json.loads(body[place : place + text])
            if len(names) != tensors or not _within(columns[0], len(dtypes)) or not _within(columns[4], tensors):
                raise ValueError("the numbers of tensors or of dtypes differ")
            return Table(tuple(map(str, names)), tuple(map(str, dtypes)), *columns)
        except Exception as e:
            raise RDMAAccessError(f"malformed table of weights: {e}") from None


def padded(numbers: Sequence[int], lengths: Numbers, width: int, value: int) -> Numbers:
    """Rows of these lengths, whose numbers lie one after another, with this value in front of those that are shorter."""
    found = np.full((len(lengths), width), value, np.int64)
    found[np.arange(width) >= width - lengths[:, None]] = np.array(numbers, np.int64)
    return found


# NumPy reduces rows of two or three numbers one by one, which takes twenty times as long as an operation for each dimension. It also takes
# ten times as long for rows that are chosen by `[]` as for those of `take`.


def products(rows: Numbers) -> Numbers:
    """The product of each row."""
    return reduce(np.multiply, rows.T)


def sums(rows: Numbers) -> Numbers:
    """The sum of each row."""
    return reduce(np.add, rows.T)


def every(rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether all of each row are true."""
    return reduce(np.logical_and, rows.T)


def _within(numbers: Numbers, end: int) -> bool:
    return bool(((numbers >= 0) & (numbers < end)).all())
