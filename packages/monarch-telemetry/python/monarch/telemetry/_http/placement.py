"""In which proc an actor lives, from the rows of meshes, procs and actors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, cast

from monarch.telemetry._arrow import pa, pc
from monarch.telemetry._ingest.ids import U64, actor_id, actor_ids, mixed_columns

# Actors whose places are searched one by one, per statement.
_AT_ONCE = 256


class Placement:
    """Finds procs of actors. Rows need `id`, `parent_mesh_id`, `parent_view_json` of meshes and `proc_id`, `mesh_id`, `rank` of procs."""

    def __init__(self, meshes: Iterable[Mapping[str, Any]], procs: Iterable[Mapping[str, Any]]) -> None:
        self._meshes = {int(mesh["id"]): mesh for mesh in meshes}
        self._procs: dict[int, dict[int, int]] = {}
        for proc in procs:
            self._procs.setdefault(proc["mesh_id"], {})[proc["rank"]] = proc["proc_id"]
        # Numbers of the actors of a mesh, if the rank does not determine the proc.
        self._numbers: dict[int, dict[int, int]] = {}

    def proc(self, actor: int, mesh: int, rank: int) -> int | None:
        """The proc of an actor; None where it is not known."""
        found = self._meshes.get(mesh)
        # The script of the client is an actor of the mesh of its process.
        procs = self._procs.get((found or {}).get("parent_mesh_id") or mesh)
        if found is None or not procs:
            return None
        # The rank is that in the part of the procs on which the mesh was spawned: often it is all of them.
        likely = procs.get(rank)
        if likely is not None and actor in (actor_id(likely, mesh), actor_id(likely, 0)):
            return likely
        numbers = self._numbers.get(mesh)
        if numbers is None:
            numbers = self._numbers[mesh] = {actor_id(proc, mesh): proc for proc in procs.values()}
        return numbers.get(actor) or procs.get(viewed(found.get("parent_view_json"), rank))


def placed(meshes: Any, procs: Any, actors: Any) -> Any:
    """The column of the procs of actors, as `Placement` finds them: of tables with the columns that it needs, and of actors `id`,
    `mesh_id` and `rank`. Actors on all procs of a mesh, which are most of them, are found for the whole column at once.
    """
    if not actors.num_rows:
        return pa.array([], pa.uint64())
    ids, of, ranks = (_joined(actors.column(name)) for name in ("id", "mesh_id", "rank"))
    known = pc.index_in(of, value_set=_joined(meshes.column("id")))
    parents = _joined(meshes.column("parent_mesh_id")).take(known)
    above = pc.if_else(pc.or_(pc.is_null(parents), pc.equal(parents, U64[0])), of, parents)
    numbers = mixed_columns(_joined(procs.column("mesh_id")), _joined(procs.column("rank")))
    likely = _joined(procs.column("proc_id")).take(pc.index_in(mixed_columns(above, ranks), value_set=numbers))
    is_there = pc.or_(pc.equal(actor_ids(likely, of), ids), pc.equal(mixed_columns(likely, 0), ids))
    is_there = pc.and_(pc.fill_null(is_there, False), pc.is_valid(known))
    left = pc.and_(pc.invert(is_there), pc.is_valid(known))
    found = pc.if_else(is_there, likely, None)
    if not pc.any(left).as_py():
        return found
    few = pa.table({"id": ids.filter(left), "mesh_id": of.filter(left), "rank": ranks.filter(left)})
    of_few, of_parents = pc.unique(few.column("mesh_id")), pc.unique(above.filter(left))
    placement = Placement(
        meshes.filter(pc.is_in(meshes.column("id"), value_set=of_few)).to_pylist(),
        procs.filter(pc.is_in(procs.column("mesh_id"), value_set=of_parents)).to_pylist(),
    )
    single: list[int | None] = []
    for batch in few.to_batches(max_chunksize=_AT_ONCE):
        single += [placement.proc(*row) for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
    return pc.replace_with_mask(found, left, pa.array(single, pa.uint64()))


def _joined(column: Any) -> Any:
    """A column of a table as one array of numbers."""
    joined = column.combine_chunks()
    return (joined if isinstance(joined, pa.Array) else joined.chunk(0)).cast(pa.uint64())


def viewed(view: str | None, rank: int) -> int:
    """The rank in the parent of a rank in a view: offset, sizes and strides as JSON. The same rank where it is no such view."""
    try:
        fields = cast("dict[str, Any]", json.loads(view or "{}"))
        fields = fields.get("slice", fields)
        offset, sizes, strides = int(fields["offset"]), [int(one) for one in fields["sizes"]], [int(one) for one in fields["strides"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        return rank
    if len(sizes) != len(strides) or not 0 <= rank < prod(sizes):
        return rank
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        rank, coordinate = divmod(rank, size)
        offset += coordinate * stride
    return offset
