"""Which bytes of which source make up the boxes of a target: a pure function of tables.

Every box of the target is intersected with the boxes that the sources have of the same tensor. Of equal boxes one is chosen: that of the
nearest source, and of equally near ones by the position of the bytes in the target, so that neighbouring tensors come from one source and
their reads merge.

The intersections must partition the box. The check is a sum for each box: a box has the product over the dimensions of `F(high) - F(low)`,
modulo 2**64, where `F` is a hash of the coordinate. This is additive for disjoint boxes, and for sets of boxes that do not partition the
target the sums are equal with a probability of about 2**-60. A pairwise comparison would be quadratic in the number of sources. Boxes
whose sums differ, because sources overlap in part or do not cover, are cut piece by piece, which also finds the hole.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monarch.rdma.weights.box import slices
from monarch.rdma.weights.errors import LayoutError
from monarch.rdma.weights.table import every, products, sums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from monarch.rdma.weights.table import Numbers, Table

    Bits = NDArray[np.uint64]

# The fraction of the golden ratio: its multiples, modulo 1, are spread evenly, however many targets there are.
_GOLDEN = 0.6180339887498949
_LISTED = 3


class Source(NamedTuple):
    """A process that has blocks; `distance` is 0 for this process, larger for others. `name` is for texts."""

    table: Table
    distance: int
    name: str


class Pieces(NamedTuple):
    """Boxes of which each lies in one block of a source and one of the target, sorted by source, region and first byte.

    `dense` is the offset of the piece in a staging memory in which the pieces lie one after another, each in C order.
    """

    source: Numbers  # P
    region: Numbers  # P
    tensor: Numbers  # P: of the target
    block: Numbers  # P: of the target
    itemsize: Numbers  # P: of the source
    dtypes: tuple[str, ...]  # those of the target, with the same numbers, and then others of the sources
    dtype: Numbers  # P: of the source, a number of `dtypes`
    extent: Numbers  # P, D
    low: Numbers  # P, D: within the block of the target
    start: Numbers  # P: first byte in the region of the source
    strides: Numbers  # P, D: in the source
    local: Numbers  # P: first byte in the memory of the target
    local_strides: Numbers  # P, D
    dense: Numbers  # P
    dense_strides: Numbers  # P, D

    @property
    def nbytes(self) -> int:
        """Bytes that the sources send."""
        return int((products(self.extent) * self.itemsize).sum())

    @property
    def staging(self) -> int:
        """Bytes of the staging memory."""
        return int(self.dense[-1] + self.extent[-1].prod() * self.itemsize[-1]) if len(self.dense) else 0


class Runs(NamedTuple):
    """Runs of `nbytes` bytes from offset `there` to `here`, repeated in an outer and an inner dimension; `piece` is the first piece that
    they are of. The runs of a row do not overlap in `there`, whose steps are not negative.
    """

    piece: Numbers  # N
    there: Numbers  # N
    here: Numbers  # N
    nbytes: Numbers  # N
    counts: Numbers  # N, 2
    there_step: Numbers  # N, 2
    here_step: Numbers  # N, 2

    @staticmethod
    def contiguous(piece: Numbers, there: Numbers, here: Numbers, nbytes: Numbers) -> Runs:
        """Runs that are not repeated."""
        none = np.zeros((len(piece), 2), np.int64)
        return Runs(piece, there, here, nbytes, none + 1, none, none)

    def only(self, index: Numbers) -> Runs:
        return Runs(*(column.take(index, axis=0) for column in self))

    def size(self) -> int:
        """Bytes of all runs."""
        return int((self.nbytes * products(self.counts)).sum())

    def rows(self) -> Numbers:
        """The rows of a table of copies: address, offset, bytes; then count and steps of the outer and of the inner dimension."""
        dims = np.stack([self.counts, self.there_step, self.here_step], axis=2).reshape(len(self.piece), 6)
        return np.concatenate([np.stack([self.here, self.there, self.nbytes], axis=1), dims], axis=1)


class _Pairs(NamedTuple):
    """Intersections of a block of the target with one of a source, sorted by the former."""

    target: Numbers
    source: Numbers
    low: Numbers
    high: Numbers

    def only(self, index: Numbers) -> _Pairs:
        return _Pairs(*(column.take(index, axis=0) for column in self))


class _Columns(NamedTuple):
    """The blocks of all sources that have tensors of the target, sorted by tensor."""

    source: Numbers
    tensor: Numbers
    region: Numbers
    start: Numbers
    low: Numbers
    shape: Numbers
    strides: Numbers
    itemsize: Numbers
    dtype: Numbers

    def only(self, index: Numbers) -> _Columns:
        return _Columns(*(column.take(index, axis=0) for column in self))


def find_pieces(target: Table, sources: Sequence[Source], *, rank: int = 0, cast: bool = False) -> Pieces:
    """The pieces of the target's boxes.

    Args:
        target: what is needed, and where its memory is.
        sources: what there is.
        rank: of the target among those that read the same; it varies the choice among equally near sources.
        cast: dtypes may differ.

    Raises:
        LayoutError: a tensor is missing, has another shape or dtype, or is not covered.
    """
    width = max([target.width, *(source.table.width for source in sources)])
    target = target.widened(width)
    dtypes: dict[str, int] = {}
    columns = _columns(target, sources, width, dtypes, cast)
    pairs = _intersected(target, columns)
    wrong = _uncovered(target, pairs)
    if wrong.any():
        pairs = _chosen(target, columns, pairs, sources, rank)
        wrong = _uncovered(target, pairs)
        if wrong.any():
            pairs = _cut(target, columns, _intersected(target, columns), sources, wrong, pairs)
    return _located(target, columns, pairs, tuple(dtypes))


def _columns(target: Table, sources: Sequence[Source], width: int, dtypes: dict[str, int], cast: bool) -> _Columns:
    number = {name: i for i, name in enumerate(target.names)}
    wanted = _numbered(target, dtypes)
    found: list[_Columns] = []
    # Most sources have the same tensors in the same order: the numbers are found once.
    names: tuple[str, ...] | None = None
    numbers = np.empty(0, np.int64)
    for i, source in enumerate(sources):
        table = source.table.widened(width)
        if table.names != names:
            names = table.names
            numbers = np.array([number.get(name, -1) for name in names], np.int64)
        here = _numbered(table, dtypes)
        _check_alike(target, table, source.name, numbers, wanted, here, cast)
        tensor = numbers[table.tensor]
        rows = _Columns(
            np.full(len(tensor), i, np.int64),
            tensor,
            table.region,
            table.start,
            table.low,
            table.shape,
            table.strides,
            table.itemsize[table.tensor],
            here[table.tensor],
        )
        found.append(rows if (tensor >= 0).all() else rows.only(np.flatnonzero(tensor >= 0)))
    if not found:
        raise LayoutError("the mesh has no process that publishes weights")
    joined = _Columns(*(np.concatenate(column) for column in zip(*found, strict=True)))
    return joined.only(np.argsort(joined.tensor, kind="stable"))


def _numbered(table: Table, dtypes: dict[str, int]) -> Numbers:
    """The dtypes of the tensors, as numbers that are the same for all tables."""
    return np.array([dtypes.setdefault(name, len(dtypes)) for name in table.dtypes], np.int64)[table.dtype]


def _check_alike(target: Table, table: Table, name: str, numbers: Numbers, wanted: Numbers, here: Numbers, cast: bool) -> None:
    """The tensors that both have are of the same shape and dtype."""
    known = np.flatnonzero(numbers >= 0)
    mine = numbers[known]
    alike = table.whole.take(known, axis=0) == target.whole.take(mine, axis=0)
    other = ~every(alike) | (table.dims[known] != target.dims[mine])
    if other.any():
        i = int(np.argmax(other))
        theirs, ours = _whole(table, int(known[i])), _whole(target, int(mine[i]))
        raise _error(target.names[int(mine[i])], f"it has the global shape {theirs} in {name}, and {ours} in the target")
    other = here[known] != wanted[mine]
    if other.any() and not cast:
        i = int(np.argmax(other))
        theirs, ours = table.dtype_of(int(known[i])), target.dtype_of(int(mine[i]))
        raise _error(target.names[int(mine[i])], f"it is {theirs} in {name}, and {ours} in the target", "pass cast=True to convert it")


def _whole(table: Table, tensor: int) -> tuple[int, ...]:
    return tuple(int(n) for n in table.whole[tensor, table.width - int(table.dims[tensor]) :])


def _intersected(target: Table, columns: _Columns) -> _Pairs:
    first = np.searchsorted(columns.tensor, target.tensor, "left")
    count = np.searchsorted(columns.tensor, target.tensor, "right") - first
    block = np.repeat(np.arange(len(count)), count)
    source = _within(count) + np.repeat(first, count)
    low = np.maximum(target.low.take(block, axis=0), columns.low.take(source, axis=0))
    high = np.minimum((target.low + target.shape).take(block, axis=0), (columns.low + columns.shape).take(source, axis=0))
    return _Pairs(block, source, low, high).only(np.flatnonzero(every(high > low)))


def _within(count: Numbers) -> Numbers:
    """0, 1, ... for each of the counts."""
    return np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)


def _uncovered(target: Table, pairs: _Pairs) -> NDArray[np.bool_]:
    """The blocks of the target that the intersections do not partition."""
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_measure(pairs.low, pairs.high), dtype=np.uint64)])
    edges = np.searchsorted(pairs.target, np.arange(len(target.tensor) + 1))
    return (sums[edges[1:]] - sums[edges[:-1]]) != _measure(target.low, target.low + target.shape)


def _measure(low: Numbers, high: Numbers) -> Bits:
    product = np.ones(len(low), np.uint64)
    for dim in range(low.shape[1]):
        product *= _mixed(high[:, dim], dim) - _mixed(low[:, dim], dim)
    return product


def _mixed(values: Numbers, seed: int) -> Bits:
    """The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
    z = values.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _chosen(target: Table, columns: _Columns, pairs: _Pairs, sources: Sequence[Source], rank: int) -> _Pairs:
    """Of the pairs with equal boxes of one tensor, one."""
    key = columns.tensor.astype(np.uint64)
    for dim in range(columns.low.shape[1]):
        key = _mixed((key ^ _mixed(columns.low[:, dim], 2 * dim)).view(np.int64), 101)
        key = _mixed((key ^ _mixed(columns.shape[:, dim], 2 * dim + 1)).view(np.int64), 102)
    distance = np.array([source.distance for source in sources], np.int64)[columns.source[pairs.source]]
    group = key[pairs.source]
    order = np.lexsort((pairs.source, distance, group, pairs.target))
    pairs, distance, group = pairs.only(order), distance[order], group[order]
    starts = np.ones(len(group), bool)
    starts[1:] = (group[1:] != group[:-1]) | (pairs.target[1:] != pairs.target[:-1])
    first = np.flatnonzero(starts)
    edges = np.append(first, len(group))
    near = (distance == np.repeat(distance[first], np.diff(edges))).astype(np.int64)
    count = np.add.reduceat(near, first) if len(first) else first
    # Position of the middle of the block in the target's bytes, shifted by the rank.
    nbytes = products(target.shape) * target.itemsize[target.tensor]
    position = (np.cumsum(nbytes) - nbytes / 2) / max(int(nbytes.sum()), 1)
    turn = (position[pairs.target[first]] + rank * _GOLDEN) % 1.0
    return pairs.only(np.sort(first + np.minimum((turn * count).astype(np.int64), count - 1)))


def _cut(target: Table, columns: _Columns, all_pairs: _Pairs, sources: Sequence[Source], wrong: NDArray[np.bool_], pairs: _Pairs) -> _Pairs:
    """The pairs, those of blocks that overlapping sources have by cutting off what is covered already, nearest sources first."""
    kept = pairs.only(np.flatnonzero(~wrong[pairs.target]))
    rows: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = []
    edges = np.searchsorted(all_pairs.target, np.arange(len(wrong) + 1))
    for block in np.flatnonzero(wrong):
        candidates = range(int(edges[block]), int(edges[block + 1]))
        left = [(tuple(target.low[block].tolist()), tuple((target.low[block] + target.shape[block]).tolist()))]
        for i in sorted(candidates, key=lambda i: sources[int(columns.source[all_pairs.source[i]])].distance):
            box = tuple(all_pairs.low[i].tolist()), tuple(all_pairs.high[i].tolist())
            rest: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
            for part in left:
                low = tuple(map(max, part[0], box[0]))
                high = tuple(map(min, part[1], box[1]))
                if all(a < b for a, b in zip(low, high, strict=True)):
                    rows.append((int(block), int(all_pairs.source[i]), low, high))
                    rest += _without(part, low, high)
                else:
                    rest.append(part)
            left = rest
            if not left:
                break
        if left:
            raise _hole(target, int(block), left, any(True for _ in candidates))
    more = _Pairs(
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.int64),
        *(np.array([row[side] for row in rows], np.int64).reshape(len(rows), target.width) for side in (2, 3)),
    )
    return _Pairs(*(np.concatenate(column) for column in zip(kept, more, strict=True)))


def _without(
    box: tuple[tuple[int, ...], tuple[int, ...]], low: tuple[int, ...], high: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The box without the part of it from `low` to `high`, as disjoint boxes."""
    rest: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    first, last = box
    for dim in range(len(low)):
        before, after = first[:dim], first[dim + 1 :]
        ends, later = last[:dim], last[dim + 1 :]
        if first[dim] < low[dim]:
            rest.append((first, (*ends, low[dim], *later)))
        if high[dim] < last[dim]:
            rest.append(((*before, high[dim], *after), last))
        first, last = (*before, low[dim], *after), (*ends, high[dim], *later)
    return rest


def _hole(target: Table, block: int, left: list[tuple[tuple[int, ...], tuple[int, ...]]], some: bool) -> LayoutError:
    tensor = int(target.tensor[block])
    skip = target.width - int(target.dims[tensor])
    holes = [slices(low[skip:], [b - a for a, b in zip(low, high, strict=True)][skip:]) for low, high in left]
    listed = ", ".join(holes[:_LISTED]) + (f" and {len(holes) - _LISTED} more" if len(holes) > _LISTED else "")
    needed = slices(target.low[block].tolist()[skip:], target.shape[block].tolist()[skip:])
    if not some:
        return _error(target.names[tensor], f"no source has any part of {needed}, which the target needs")
    return _error(target.names[tensor], f"no source has {listed} of {needed}, which the target needs")


def _error(tensor: str, what: str, hint: str | None = None) -> LayoutError:
    error = LayoutError(f"tensor '{tensor}': {what}", hint=hint)
    error.tensor = tensor
    return error


def _located(target: Table, columns: _Columns, pairs: _Pairs, dtypes: tuple[str, ...]) -> Pieces:
    at, block = pairs.source, pairs.target
    start = columns.start[at] + sums((pairs.low - columns.low.take(at, axis=0)) * columns.strides.take(at, axis=0))
    order = _by_place(columns.source[at], columns.region[at], start)
    at, block, start = at[order], block[order], start[order]
    low = pairs.low.take(order, axis=0) - target.low.take(block, axis=0)
    extent = (pairs.high - pairs.low).take(order, axis=0)
    itemsize = columns.itemsize[at]
    strides = target.strides.take(block, axis=0)
    return Pieces(
        columns.source[at],
        columns.region[at],
        target.tensor[block],
        block,
        itemsize,
        dtypes,
        columns.dtype[at],
        extent,
        low,
        start,
        columns.strides.take(at, axis=0),
        target.start[block] + sums(low * strides),
        strides,
        placed(products(extent) * itemsize, itemsize),
        dense_strides(extent, itemsize),
    )


def _by_place(source: Numbers, region: Numbers, start: Numbers) -> Numbers:
    """The order by source, region and first byte."""
    # Most sources have their tensors in the order of the target. Then a sort by source is enough, which takes linear time for 16 bits.
    order = np.argsort(source.astype(np.int16), kind="stable")
    ascending = np.ones(max(len(order) - 1, 0), bool)
    for column in (start[order], region[order], source[order]):
        ascending = (column[1:] > column[:-1]) | ((column[1:] == column[:-1]) & ascending)
    return order if ascending.all() else np.lexsort((start, region, source))


def dense_strides(extent: Numbers, itemsize: Numbers) -> Numbers:
    strides = np.empty_like(extent)
    stride = itemsize.copy()
    for dim in reversed(range(extent.shape[1])):
        strides[:, dim] = stride
        stride = stride * extent[:, dim]
    return strides


def placed(nbytes: Numbers, itemsize: Numbers) -> Numbers:
    """Offsets of memories that lie one after another, each aligned to its items."""
    offsets = np.cumsum(nbytes) - nbytes
    if (offsets % itemsize == 0).all():
        return offsets
    found, end = np.empty_like(offsets), 0
    for i, (size, item) in enumerate(zip(nbytes.tolist(), itemsize.tolist(), strict=True)):
        found[i] = end = -(-end // item) * item
        end += size
    return found


def find_runs(extent: Numbers, itemsize: Numbers, there: tuple[Numbers, Numbers], here: tuple[Numbers, Numbers]) -> Runs:
    """The runs of boxes that lie in two memories: `there` and `here` are first bytes and strides."""
    run = itemsize.copy()
    inner = np.ones(len(extent), bool)
    count = extent.copy()
    for dim in reversed(range(extent.shape[1])):
        one = extent[:, dim] == 1
        inner = inner & (one | ((there[1][:, dim] == run) & (here[1][:, dim] == run)))
        run = np.where(inner, run * extent[:, dim], run)
        count[:, dim] = np.where(inner, 1, extent[:, dim])
    whole = np.arange(len(extent))
    once = every(count == 1)
    strided = np.flatnonzero(~once)
    if not len(strided):
        return Runs.contiguous(whole, there[0], here[0], run)
    far, near = ((start[strided], strides.take(strided, axis=0)) for start, strides in (there, here))
    rest = _strided(strided, run[strided], count.take(strided, axis=0), far, near)
    plain = np.flatnonzero(once)
    found = Runs.contiguous(plain, there[0][plain], here[0][plain], run[plain])
    joined = Runs(*(np.concatenate(columns) for columns in zip(found, rest, strict=True)))
    return joined.only(np.argsort(joined.piece, kind="stable"))


def _strided(piece: Numbers, run: Numbers, count: Numbers, there: tuple[Numbers, Numbers], here: tuple[Numbers, Numbers]) -> Runs:
    """The runs of pieces that are more than one run."""
    used = count > 1
    # Steps go up in the source.
    down = used & (there[1] < 0)
    steps = np.where(used, there[1], 0), np.where(used, here[1], 0)
    far, near = (start + sums((count - 1) * step * down) for start, step in zip((there[0], here[0]), steps, strict=True))
    dims = [count, *(np.where(down, -step, step) for step in steps)]
    dims = _by_step(dims)
    # A dimension that continues the next one is one with it.
    for dim in reversed(range(count.shape[1] - 1)):
        (outer, outer_far, outer_near), (inner, inner_far, inner_near) = ([column[:, i] for column in dims] for i in (dim, dim + 1))
        one = (outer > 1) & (inner > 1) & (outer_far == inner_far * inner) & (outer_near == inner_near * inner)
        if one.any():
            outer[one] *= inner[one]
            outer_far[one], outer_near[one] = inner_far[one], inner_near[one]
            inner[one], inner_far[one], inner_near[one] = 1, 0, 0
    count, far_step, near_step = _by_step(dims)
    # Dimensions in front of the last two are rows of their own; so are all of runs that overlap, as of an expanded tensor.
    end, overlaps = run, np.zeros(len(run), bool)
    for dim in reversed(range(count.shape[1])):
        overlaps |= (count[:, dim] > 1) & (far_step[:, dim] < end)
        end = end + (count[:, dim] - 1) * far_step[:, dim]
    kept = np.zeros(count.shape, bool)
    kept[:, -2:] = ~overlaps[:, None]
    rows, far, near = _spread(np.where(kept, 1, count), (far, far_step), (near, near_step))
    if count.shape[1] == 1:
        # Rows of one dimension get an outer one of one step.
        count, far_step, near_step = (_with_outer(column, value) for column, value in ((count, 1), (far_step, 0), (near_step, 0)))
        kept = np.concatenate([np.zeros_like(kept), kept], axis=1)
    two = [np.where(kept, column, value)[rows, -2:] for column, value in ((count, 1), (far_step, 0), (near_step, 0))]
    return Runs(piece[rows], far, near, run[rows], *two)


def _with_outer(column: Numbers, value: int) -> Numbers:
    return np.concatenate([np.full_like(column, value), column], axis=1)


def _by_step(dims: list[Numbers]) -> list[Numbers]:
    """Counts and steps of each row, sorted: first dimensions of one step, then by falling steps in the source."""
    order = np.argsort(np.where(dims[0] > 1, -dims[1], np.iinfo(np.int64).min), axis=1, kind="stable")
    return [np.take_along_axis(column, order, axis=1) for column in dims]


def _spread(count: Numbers, there: tuple[Numbers, Numbers], here: tuple[Numbers, Numbers]) -> tuple[Numbers, Numbers, Numbers]:
    """Each step of the dimensions as a row of its own: its number before, and its first bytes."""
    times = products(count)
    if (times == 1).all():
        return np.arange(len(count)), there[0], here[0]
    rows = np.repeat(np.arange(len(count)), times)
    rest = _within(times)
    far, near = there[0][rows], here[0][rows]
    for dim in reversed(range(count.shape[1])):
        rest, index = rest // count[rows, dim], rest % count[rows, dim]
        far = far + index * there[1][rows, dim]
        near = near + index * here[1][rows, dim]
    return rows, far, near


def flattened(runs: Runs) -> Runs:
    """The same bytes as runs that are not repeated."""
    rows, there, here = _spread(runs.counts, (runs.there, runs.there_step), (runs.here, runs.here_step))
    return Runs.contiguous(runs.piece[rows], there, here, runs.nbytes[rows])


def merged(runs: Runs, group: Numbers) -> Runs:
    """Runs of the same group that follow each other in both memories, as one. They must be sorted by group."""
    if len(runs.piece) < 2:
        return runs
    groups = group[runs.piece]
    once = every(runs.counts == 1)
    follows = (
        (groups[1:] == groups[:-1])
        & (once[1:] & once[:-1])
        & (runs.there[1:] == runs.there[:-1] + runs.nbytes[:-1])
        & (runs.here[1:] == runs.here[:-1] + runs.nbytes[:-1])
    )
    first = np.flatnonzero(np.append(True, ~follows))
    return runs.only(first)._replace(nbytes=np.add.reduceat(runs.nbytes, first))


def by_group(runs: Runs, group: Numbers) -> list[tuple[int, Runs]]:
    """The runs of each group; the groups are sorted."""
    groups = group[runs.piece]
    edges = [0, *(np.flatnonzero(groups[1:] != groups[:-1]) + 1).tolist(), len(groups)]
    return [(int(groups[a]), Runs(*(column[a:b] for column in runs))) for a, b in pairwise(edges) if b > a]
