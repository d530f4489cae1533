"""The answers of some ranks of a mesh: those that came before a deadline."""

from __future__ import annotations

from monarch._core.shape.generic import Generic
from monarch._core.shape.shape import Point, Shape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, TypeVar

    R = TypeVar("R")
else:
    R = None


class PartialValues(Generic[R]):
    """The values of some ranks of a mesh, by rank, in rank order.

    Values are decoded on first access. `KeyError` for a rank without a value.

    ```python
    from monarch.actor import Extent, PartialValues

    shape = Extent(["gpus"], [4]).region.as_shape()
    values = PartialValues(shape, {0: "a", 3: "d"})
    assert len(values) == 2 and values.ranks == [0, 3] and values.values() == ["a", "d"]
    assert 1 not in values and values[3] == "d"
    assert [(point["gpus"], value) for point, value in values.items()] == [(0, "a"), (3, "d")]
    ```
    """

    __slots__ = ("_decode", "_found", "shape")

    def __init__(self, shape: Shape, found: Mapping[int, Any], decode: Callable[[Any], R] | None = None) -> None:
        self.shape = shape
        self._found = dict(sorted(found.items()))
        self._decode = dict.fromkeys(self._found, decode) if decode is not None else {}

    @property
    def ranks(self) -> list[int]:
        """The ranks with a value."""
        return list(self._found)

    def __getitem__(self, key: int | Point) -> R:
        rank = key.rank if isinstance(key, Point) else key
        decode = self._decode.get(rank)
        if decode is not None:
            self._found[rank] = decode(self._found[rank])
            self._decode.pop(rank, None)
        return self._found[rank]

    def __contains__(self, key: object) -> bool:
        return (key.rank if isinstance(key, Point) else key) in self._found

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[tuple[Point, R]]:
        return self.items()

    def items(self) -> Iterator[tuple[Point, R]]:
        """Yields (point, value) in rank order."""
        extent = self.shape.extent
        for rank in self.ranks:
            yield Point(rank, extent), self[rank]

    def values(self) -> list[R]:
        """The values, in rank order."""
        return [self[rank] for rank in self.ranks]

    def __reduce__(self) -> tuple[Any, ...]:
        return PartialValues, (self.shape, {rank: self[rank] for rank in self.ranks})

    def __repr__(self) -> str:
        return f"<PartialValues {len(self)} of {len(self.shape)}: ranks {self.ranks}>"
