"""Strided index spaces without labels.

A `Slice` is an affine map from coordinates to ranks: `offset + sum(coordinate * stride)`. Its strides must be such that every rank has one
set of coordinates that can be found greedily, from the largest stride down: each stride exceeds the largest sum that the smaller ones
reach. Slicing with steps, splitting and flattening keep that property, so all lookups take O(dimensions) and no table of ranks is built.
"""

from __future__ import annotations

from operator import index as as_index
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any, SupportsIndex, overload


def natural(value: SupportsIndex) -> int:
    number = as_index(value)
    if number < 0:
        raise OverflowError(f"{number} is negative")
    return number


def product(sizes: tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def row_major_strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _walk(offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Iterator[int]:
    if len(sizes) == 1:
        yield from (offset + i * strides[0] for i in range(sizes[0]))
        return
    for i in range(sizes[0]):
        yield from _walk(offset + i * strides[0], sizes[1:], strides[1:])


class Slice:
    """An n-dimensional strided range of ranks.

    `offset`, and every item of `sizes` and `strides`, is a non-negative int; negative ones raise `OverflowError`. `ValueError` if the
    lengths of `sizes` and `strides` differ, or if strides overlap so that coordinates would not be unique. Without dimensions: the one rank
    `offset`.
    """

    __slots__ = ("_count", "_offset", "_sizes", "_strides")

    _offset: int
    _sizes: tuple[int, ...]
    _strides: tuple[int, ...]
    _count: int

    def __init__(self, *, offset: int, sizes: Iterable[int], strides: Iterable[int]) -> None:
        self._offset = natural(offset)
        self._sizes = tuple([natural(size) for size in sizes])
        self._strides = tuple([natural(stride) for stride in strides])
        if len(self._sizes) != len(self._strides):
            raise ValueError(f"{len(self._sizes)} sizes and {len(self._strides)} strides")
        self._count = product(self._sizes)
        reach = 0
        for stride, size in sorted(zip(self._strides, self._sizes, strict=True)):
            if size > 1 and self._count:
                if stride <= reach:
                    raise ValueError(f"stride {stride} overlaps smaller strides, which reach {reach}: {self!r}")
                reach += stride * (size - 1)

    @classmethod
    def _of(cls, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Slice:
        # No checks are needed for a slice derived from a checked one.
        self = object.__new__(cls)
        self._offset = offset
        self._sizes = sizes
        self._strides = strides
        self._count = product(sizes)
        return self

    @staticmethod
    def new_row_major(sizes: Iterable[int]) -> Slice:
        """The dense row-major slice from 0 with these sizes."""
        checked = tuple([natural(size) for size in sizes])
        return Slice._of(0, checked, row_major_strides(checked))

    @staticmethod
    def from_list(ranks: Iterable[int]) -> list[Slice]:
        """One-dimensional slices that together cover `ranks`, sorted, each repeated rank as often as it is given."""
        todo = sorted(natural(rank) for rank in ranks)
        slices: list[Slice] = []
        at = 0
        while at < len(todo):
            start = todo[at]
            end = at + 1
            step = todo[end] - start if end < len(todo) else 0
            while step and end < len(todo) and todo[end] - todo[end - 1] == step:
                end += 1
            slices.append(Slice._of(start, (end - at,), (step or 1,)))
            at = end
        return slices

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._sizes)

    @property
    def offset(self) -> int:
        """The first rank."""
        return self._offset

    @property
    def sizes(self) -> list[int]:
        """The number of elements along each dimension."""
        return list(self._sizes)

    @property
    def strides(self) -> list[int]:
        """The distance between ranks along each dimension."""
        return list(self._strides)

    def get(self, index: int) -> int:
        """The rank at a row-major position; `ValueError` past the end, `OverflowError` if negative."""
        position = natural(index)
        if position >= self._count:
            raise ValueError(f"index {position} out of range {self._count}")
        return self._at(position)

    def _at(self, position: int) -> int:
        rank = self._offset
        for size, stride in zip(reversed(self._sizes), reversed(self._strides), strict=True):
            position, coordinate = divmod(position, size)
            rank += coordinate * stride
        return rank

    def _locate(self, value: int) -> list[int] | None:
        left = as_index(value) - self._offset
        if left < 0 or not self._count:
            return None
        found = [0] * len(self._sizes)
        for axis in sorted(range(len(found)), key=self._strides.__getitem__, reverse=True):
            if self._sizes[axis] > 1:
                coordinate = min(left // self._strides[axis], self._sizes[axis] - 1)
                left -= coordinate * self._strides[axis]
                found[axis] = coordinate
        return None if left else found

    def coordinates(self, value: int) -> list[int]:
        """The coordinates of a rank; `ValueError` if it is not in the slice."""
        found = self._locate(value)
        if found is None:
            raise ValueError(f"value {value} not in slice")
        return found

    def index(self, value: int) -> int:
        """The row-major position of a rank; `ValueError` if it is not in the slice."""
        position = 0
        for coordinate, size in zip(self.coordinates(value), self._sizes, strict=True):
            position = position * size + coordinate
        return position

    def nditem(self, coordinates: Sequence[int]) -> int:
        """The rank at these coordinates; `IndexError` if their number is not `ndim` or one is out of range."""
        if len(coordinates) != len(self._sizes):
            raise IndexError(f"{len(coordinates)} coordinates for {len(self._sizes)} dimensions")
        rank = self._offset
        for coordinate, size, stride in zip(coordinates, self._sizes, self._strides, strict=True):
            i = as_index(coordinate)
            if not 0 <= i < size:
                raise IndexError(f"coordinate {i} out of range for size {size}")
            rank += i * stride
        return rank

    def _narrow(self, axis: int, chosen: range) -> Slice:
        # A step over fewer than two elements keeps the stride: a dense slice stays dense.
        start, step = (chosen.start, chosen.step) if len(chosen) > 1 else (chosen.start if chosen else 0, 1)
        strides = self._strides
        return Slice._of(
            self._offset + start * strides[axis],
            (*self._sizes[:axis], len(chosen), *self._sizes[axis + 1 :]),
            (*strides[:axis], strides[axis] * step, *strides[axis + 1 :]),
        )

    def _drop(self, axis: int, i: int) -> Slice:
        sizes, strides = self._sizes, self._strides
        return Slice._of(self._offset + i * strides[axis], sizes[:axis] + sizes[axis + 1 :], strides[:axis] + strides[axis + 1 :])

    def _is_row_major(self) -> bool:
        if self._count <= 1:
            return True
        dense = row_major_strides(self._sizes)
        return all(size == 1 or have == want for size, have, want in zip(self._sizes, self._strides, dense, strict=True))

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: SupportsIndex) -> int: ...
        @overload
        def __getitem__(self, key: builtins.slice[Any, Any, Any]) -> tuple[int, ...]: ...

    def __getitem__(self, key: SupportsIndex | builtins.slice[Any, Any, Any]) -> int | tuple[int, ...]:
        if isinstance(key, slice):
            return tuple([self._at(position) for position in range(*key.indices(self._count))])
        position = natural(key)
        if position >= self._count:
            raise IndexError(f"index {position} out of range {self._count}")
        return self._at(position)

    def __iter__(self) -> Iterator[int]:
        if self._is_row_major():
            return iter(range(self._offset, self._offset + self._count))
        return _walk(self._offset, self._sizes, self._strides)

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self._locate(value) is not None

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Slice):
            return NotImplemented
        return (self._offset, self._sizes, self._strides) == (other._offset, other._sizes, other._strides)

    def __hash__(self) -> int:
        return hash((self._offset, self._sizes, self._strides))

    def __reduce__(self) -> tuple[Callable[..., Slice], tuple[Any, ...]]:
        return _slice, (self._offset, self._sizes, self._strides)

    def __repr__(self) -> str:
        return f"Slice {{ offset: {self._offset}, sizes: {self.sizes}, strides: {self.strides} }}"


NDSlice = Slice


def _slice(offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Slice:
    return Slice(offset=offset, sizes=sizes, strides=strides)
