"""Arguments that have a value for each rank.

A `PerRank` is a whole argument of a call; `rank_values.py` sends it. The native caller compares the types of the arguments with this class
and refuses a message with one (`NeedsRanks`), before it pickles anything. So messages without such arguments pay nothing for them, and a
`PerRank` that is pickled is in the wrong place.
"""

from __future__ import annotations

from monarch._core._native import provide_per_rank
from monarch._core.call.value_mesh import ValueMesh
from monarch._core.pickle.state import NeedsRanks
from monarch._core.shape.slice import row_major_strides

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeVar

    from monarch._core.shape.shape import Extent

    T = TypeVar("T")


class PerRank:
    """An argument with a value for each rank of the called mesh."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[Any] | ValueMesh[Any]) -> None:
        self.values = values

    def value(self, position: int) -> Any:
        values = self.values
        return values.get(position) if isinstance(values, ValueMesh) else values[position]

    def positions(self, extent: Extent) -> list[int]:
        """The position of the value of each rank; `ValueError` if the values do not fit the mesh."""
        values = self.values
        ranks = extent.nelements
        if not isinstance(values, ValueMesh):
            if len(values) != ranks:
                raise ValueError(f"it has {len(values)} values, and the mesh has {ranks} ranks: {extent}")
            return list(range(ranks))
        given = values.extent
        for label, size in zip(given.labels, given.sizes, strict=True):
            if label not in extent:
                raise ValueError(f"its values have the shape {given}, whose dimension {label!r} the mesh does not have: {extent}")
            if extent[label] != size:
                raise ValueError(f"its values have the shape {given}, which does not fit dimension {label!r} of the mesh: {extent}")
        strides = dict(zip(given.labels, row_major_strides(tuple(given.sizes)), strict=True))
        found = [0]
        for label, size in zip(extent.labels, extent.sizes, strict=True):
            stride = strides.get(label, 0)
            found = [position + i * stride for position in found for i in range(size)]
        return found

    def __reduce__(self) -> Any:
        raise TypeError(
            "per_rank(...) is within another object: it can only be a whole argument of `call`, `stream`, `broadcast` or `spawn`"
        )

    def __repr__(self) -> str:
        return f"per_rank({self.values!r})"


def per_rank(values: Sequence[T] | ValueMesh[T]) -> T:
    """An argument that has another value for each rank of the called mesh.

    It stands for a whole positional or keyword argument of `call`, `stream`, `broadcast` and `spawn`. Each rank gets its own value, and no
    values of other ranks are sent to it. A value is pickled once, and so are the arguments that all ranks get.

    Args:
        values: one item for each rank, in the order of ranks: a sequence, whose item `i` is `values[i]`, or a `ValueMesh`. A `ValueMesh`
            over some dimensions of the mesh is repeated along the others; dimensions are matched by their labels.

    Returns:
        The argument; for type checkers it has the type of one value.

    Raises:
        TypeError: `values` has no length or no order; from `call_one` and `choose`, which have one receiver; from pickling, if the
            argument is within another object.
        ValueError: from the call, if the number of values or their dimensions do not fit the mesh.
        Exception: from the call, if a value cannot be pickled. A note names the rank. Nothing has been sent then.

    ```python
    from monarch.actor import Actor, endpoint, per_rank, this_host

    class Worker(Actor):
        @endpoint
        def scaled(self, x: int, scale: float) -> float:
            return scale * x

    with this_host().spawn_procs({"gpus": 3}) as procs:
        workers = procs.spawn("workers", Worker)
        halves = workers.scaled.call(per_rank([2, 4, 6]), scale=0.5).get()
        assert halves.values() == [1.0, 2.0, 3.0]
        assert workers.scaled.call(per_rank(halves.map(int)), scale=2.0).get().values() == [2.0, 4.0, 6.0]
    ```
    """
    if not isinstance(values, ValueMesh):
        kind = type(values)
        if not hasattr(kind, "__len__") or not hasattr(kind, "__getitem__") or hasattr(kind, "keys"):
            raise TypeError(f"per_rank({kind.__name__}): expected a sequence with an item for each rank, or a ValueMesh")
    argument: Any = PerRank(values)
    return argument


provide_per_rank(PerRank, NeedsRanks)
