"""One value per rank of a mesh.

Replies arrive as raw parts, one per rank. The first access to a rank decodes its part. Adjacent equal parts are kept as one object;
every rank still gets a value of its own, unless the value is an immutable scalar, which the whole run then shares. A part is freed when
its value is decoded. A slice of a value mesh reads the same values through a table of positions. So slicing decodes nothing, and a value
decoded through one of them is the same object in the others.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING

from monarch._core.call.foreign_names import no_async_for
from monarch._core.shape.generic import Generic
from monarch._core.shape.mesh import MeshTrait
from monarch._core.shape.shape import Point, Shape
from monarch._core.shape.slice import Slice, as_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Any, TypeVar

    R = TypeVar("R")
    T = TypeVar("T")
else:
    R = None


_ABSENT = object()  # neither decoded yet nor, as a part, still needed
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})


class _Failure:
    """An error of decoding and its traceback. Each raise restores the traceback, which would grow otherwise."""

    __slots__ = ("error", "traceback")

    def __init__(self, error: Exception, traceback: TracebackType | None) -> None:
        self.error = error
        self.traceback = traceback


class Parts:
    """A sequence of values, as `decode` makes them of raw parts, comparable by `==`, on first access.

    Threads may race: both decode, the first to store its outcome wins (`dict.setdefault` is atomic) and both return that one.
    """

    __slots__ = ("_decode", "_outcomes", "_raw")

    def __init__(self, parts: Iterable[Any], decode: Callable[[Any], Any]) -> None:
        raw: list[Any] = []
        last: Any = _ABSENT
        for part in parts:
            if part is not last and (last is _ABSENT or not part == last):
                last = part
            raw.append(last)
        self._raw = raw
        self._decode = decode
        self._outcomes: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._raw)

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, i: int) -> Any:
        outcome = self._outcomes.get(i, _ABSENT)
        if outcome is _ABSENT:
            outcome = self._outcome(i)
        if type(outcome) is _Failure:
            try:
                raise outcome.error.with_traceback(outcome.traceback)
            finally:
                # This frame is part of the traceback.
                del outcome, self
        return outcome

    def _outcome(self, i: int) -> Any:
        part = self._raw[i]
        if part is _ABSENT:  # another thread has just stored the outcome
            return self._outcomes[i]
        try:
            value = self._decode(part)
        except Exception as error:
            value = _Failure(error, error.__traceback__ and error.__traceback__.tb_next)
        outcome = self._outcomes.setdefault(i, value)
        self._raw[i] = _ABSENT
        if type(outcome) in _SCALARS:
            self._share(part, i, outcome)
        return outcome

    def _share(self, part: Any, i: int, outcome: Any) -> None:
        raw = self._raw
        for step in (-1, 1):
            j = i + step
            while 0 <= j < len(raw) and raw[j] is part:
                self._outcomes.setdefault(j, outcome)
                raw[j] = _ABSENT
                j += step


class ValueMesh(MeshTrait, Generic[R]):
    """One value per rank of a shape, in rank order.

    Points are in the mesh's own extent, wherever the shape's ranks lie in a larger space. Values that came as replies are decoded on first
    access, and an error of decoding raises on each access to that rank only.

    Args:
        shape: the labels and sizes.
        values: one item per rank, in row-major order; `ValueError` otherwise.

    ```python
    from monarch.actor import Extent, ValueMesh

    shape = Extent(["hosts", "gpus"], [2, 2]).region.as_shape()
    values = ValueMesh(shape, ["a", "b", "c", "d"])
    assert values.item(hosts=1, gpus=0) == "c"
    assert values.slice(hosts=0).values() == ["a", "b"]
    assert [point.rank for point, _ in values.items()] == [0, 1, 2, 3]
    ```
    """

    __slots__ = ("_cells", "_positions", "_shape")

    _cells: list[R] | Parts
    _positions: Sequence[int]

    def __init__(self, shape: Shape, values: Iterable[R]) -> None:
        cells = values if isinstance(values, Parts) else list(values)
        if len(cells) != len(shape):
            raise _wrong_count(len(shape), len(cells))
        self._shape = shape
        self._cells = cells
        self._positions = range(len(cells))

    if not TYPE_CHECKING:
        __aiter__ = no_async_for("a ValueMesh", "it has all values, which `for point, value in values.items():` gives")

    @staticmethod
    def from_indexed(shape: Shape, pairs: Iterable[tuple[int, T]]) -> ValueMesh[T]:
        """A mesh from (position in rank order, value) pairs, of which the last counts; `ValueError` unless they cover the shape."""
        found: dict[int, T] = {}
        for rank, value in pairs:
            i = as_index(rank)
            if i < 0:
                raise OverflowError(f"{i} is negative")
            found[i] = value
        expected = len(shape)
        highest = max(found, default=-1)
        if highest >= expected or len(found) != expected:
            raise _wrong_count(expected, highest + 1 if highest >= expected else len(found))
        return ValueMesh(shape, [found[i] for i in range(expected)])

    @property
    def _ndslice(self) -> Slice:
        return self._shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return self._shape._labels

    def _new_with_shape(self, shape: Shape) -> ValueMesh[R]:
        new = type(self).__new__(type(self))
        new._shape = shape
        new._cells = self._cells
        ours = self._shape.ndslice
        if len(ours) == len(shape) and tuple(ours) == tuple(shape.ndslice):
            new._positions = self._positions
        else:
            new._positions = [self._positions[ours.index(rank)] for rank in shape.ndslice]
        return new

    def get(self, rank: int) -> R:
        """The value at a position in rank order; `ValueError` if it is out of range."""
        i = as_index(rank)
        if not 0 <= i < len(self._positions):
            raise ValueError(f"index {i} out of range (len={len(self._positions)})")
        return self._cells[self._positions[i]]

    def item(self, /, **coords: int) -> R:
        """The value at these coordinates.

        Args:
            **coords: one index per dimension of the mesh, by label.

        Returns:
            The value.

        Raises:
            KeyError: a dimension is missing or unknown.
            IndexError: an index is out of range.

        ```python
        from monarch.actor import Extent, ValueMesh

        values = ValueMesh(Extent(["gpus"], [2]).region.as_shape(), [10, 20])
        assert values.item(gpus=1) == 20
        ```
        """
        position = 0
        given = dict(coords)
        for label, size in zip(self._labels, self._shape.ndslice.sizes, strict=True):
            if label not in given:
                raise KeyError(f"item needs a coordinate of {label!r}, and got {coords or 'none'}: the mesh is {self.extent}")
            i = as_index(given.pop(label))
            if not 0 <= i < size:
                raise IndexError(f"index {i} out of range for dimension {label!r} of size {size}")
            position = position * size + i
        if given:
            raise KeyError(f"item has extra dimensions: {list(given)}; the mesh is {self.extent}")
        return self._cells[self._positions[position]]

    def __getitem__(self, key: int | Point) -> R:
        """The value at a position in rank order, or at a point's coordinates; `IndexError` if out of range, else as `item`."""
        if isinstance(key, Point):
            return self.item(**key)
        i = as_index(key)
        if not 0 <= i < len(self._positions):
            raise IndexError(f"index {i} out of range (len={len(self._positions)})")
        return self._cells[self._positions[i]]

    def items(self) -> Iterator[tuple[Point, R]]:
        """Yields (point, value) in rank order."""
        extent = self._shape.extent
        for i, position in enumerate(self._positions):
            yield Point(i, extent), self._cells[position]

    def map(self, function: Callable[[R], T]) -> ValueMesh[T]:
        """A mesh of the same shape, of what `function` makes of each value. Its exceptions are raised.

        ```python
        from monarch.actor import Extent, ValueMesh

        values = ValueMesh(Extent(["gpus"], [3]).region.as_shape(), [1, 2, 3])
        assert values.map(str).values() == ["1", "2", "3"]
        ```
        """
        return ValueMesh(self._shape, [function(value) for value in self.values()])

    def values(self) -> list[R]:
        """All values, in rank order."""
        return [self._cells[position] for position in self._positions]

    def __iter__(self) -> Iterator[tuple[Point, R]]:
        return self.items()

    def __reduce__(self) -> tuple[Any, tuple[Shape, list[R]]]:
        return ValueMesh, (self._shape, self.values())

    def __repr__(self) -> str:
        from pprint import pformat

        extent = self._shape.extent
        pairs = pformat(tuple([(Point(i, extent), self._shown(i)) for i in range(len(self._positions))]))
        return f"ValueMesh({extent}):\n  " + pairs.replace("\n", "\n  ")

    def _shown(self, i: int) -> object:
        # A repr shows the present state: a value that cannot be decoded is shown as its error.
        try:
            return self._cells[self._positions[i]]
        except Exception as error:
            return error


def _wrong_count(expected: int, given: int) -> ValueError:
    return ValueError(f"expected {expected} values for the shape, but it contains {given}")
