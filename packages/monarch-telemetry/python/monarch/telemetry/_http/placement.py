"""In which proc an actor lives, from the rows of meshes, procs and actors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, cast

from monarch.telemetry._ingest.ids import actor_id


class Placement:
    """Finds procs of actors. Rows need `id`, `parent_mesh_id`, `parent_view_json` of meshes and `proc_id`, `mesh_id`, `rank` of procs."""

    def __init__(self, meshes: Iterable[Mapping[str, Any]], procs: Iterable[Mapping[str, Any]]) -> None:
        self._meshes = {int(mesh["id"]): mesh for mesh in meshes}
        self._procs: dict[int, dict[int, int]] = {}
        for proc in procs:
            self._procs.setdefault(proc["mesh_id"], {})[proc["rank"]] = proc["proc_id"]
        # Numbers of the actors of a mesh, where the rank does not give the proc.
        self._numbers: dict[int, dict[int, int]] = {}

    def proc(self, actor: int, mesh: int, rank: int) -> int | None:
        """The proc of an actor; None where it is not known."""
        found = self._meshes.get(mesh)
        # The client's script is an actor of the mesh that its process is too.
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
