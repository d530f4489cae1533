"""The blocks of a source, cut into columns that each lie in one piece.

A reader that takes columns of rows, such as a rank of tensor parallelism, needs a run of each row. A device that copies contiguous bytes
needs a request for each run. Where the source copies its weights anyway, the copy can have each part of the columns in one piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monarch.rdma.weights.planner import dense_strides, placed
from monarch.rdma.weights.table import products, sums

if TYPE_CHECKING:
    from monarch.rdma.weights.table import Numbers, Table


class CopyLayout(NamedTuple):
    """The blocks of a memory that has a copy of other blocks, in the order in which they lie there."""

    table: Table
    # The first bytes and strides of what is copied.
    start: Numbers  # N
    strides: Numbers  # N, D

    @property
    def size(self) -> int:
        """Bytes of the memory."""
        table = self.table
        return int(table.start[-1] + table.shape[-1].prod() * table.itemsize[table.tensor[-1]]) if len(table.tensor) else 1


def copy_layout(table: Table, parts: int = 1) -> CopyLayout:
    """Blocks in C order, one after another. The last dimension of the global tensors is cut into so many parts of equal size.

    The last part may be smaller. Blocks of one row are not cut, and come first; then come the first parts of all others, then the second
    ones.
    """
    block, part, low, shape = _cut(table, parts)
    order = np.argsort(part, kind="stable")
    block, low, shape = (column.take(order, axis=0) for column in (block, low, shape))
    strides = table.strides.take(block, axis=0)
    start = table.start[block] + sums((low - table.low.take(block, axis=0)) * strides)
    tensor = table.tensor[block]
    itemsize = table.itemsize[tensor]
    made = table._replace(
        tensor=tensor,
        region=np.zeros_like(tensor),
        start=placed(products(shape) * itemsize, itemsize),
        low=low,
        shape=shape,
        strides=dense_strides(shape, itemsize),
    )
    return CopyLayout(made, start, strides)


def _cut(table: Table, parts: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """The number of the block, that of the part, and the box of each part of a block; part -1 is that of a block of one row."""
    every = np.arange(len(table.tensor))
    if parts == 1 or table.width == 1:
        return every, np.zeros_like(every), table.low, table.shape
    last: Numbers = table.whole[table.tensor, -1]
    is_cut = products(table.shape[:, :-1]) > 1
    size: Numbers = np.where(is_cut, (last + parts - 1) // parts, last)
    first = table.low[:, -1] // size
    count = (table.low[:, -1] + table.shape[:, -1] - 1) // size - first + 1
    block = np.repeat(every, count)
    part = np.arange(len(block)) - np.repeat(np.cumsum(count) - count, count) + first[block]
    low, high = table.low.take(block, axis=0), (table.low + table.shape).take(block, axis=0)
    low[:, -1] = np.maximum(low[:, -1], part * size[block])
    high[:, -1] = np.minimum(high[:, -1], (part + 1) * size[block])
    return block, np.where(is_cut[block], part, -1), low, high - low
