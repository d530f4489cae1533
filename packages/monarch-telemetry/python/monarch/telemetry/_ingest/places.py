"""Where a process of this host stands in its job: looked up for columns of processes."""

from __future__ import annotations

from typing import Any, NamedTuple

from monarch.telemetry._arrow import pa, pc
from monarch.telemetry._ingest.ids import actor_ids


class Place(NamedTuple):
    """Of a process. `name` is that of its mesh with its rank, as `workers[1]`."""

    name: str
    pid: int
    mesh_name: str | None
    rank: int | None


class Columns(NamedTuple):
    """Arrow columns."""

    proc: Any
    pid: Any
    mesh_name: Any
    rank: Any
    actor_id: Any


_UNKNOWN = Place("", 0, None, None)
# The agent of a host other than that of the client.
AGENT = "agent"


class Places:
    """By process. Unknown processes have an empty name."""

    def __init__(self) -> None:
        self._places: dict[int, Place] = {}
        # The only actor of each process, to which its output belongs; None if there are several.
        self._actors: dict[int, dict[int, tuple[str, int]]] = {}

    def put(self, proc: int, place: Place) -> None:
        self._places[proc] = place

    def get(self, proc: int) -> Place:
        return self._places.get(proc, _UNKNOWN)

    def living(self) -> dict[int, Place]:
        """By process, of those that have not ended."""
        return dict(self._places)

    def is_known(self, proc: int) -> bool:
        return proc in self._places

    def is_of_job(self, proc: int) -> bool:
        """Whether it is known as a process of the job, which agents are not."""
        return self.get(proc).name not in ("", AGENT)

    def actor(self, proc: int, mesh: int, name: str, rank: int) -> None:
        """A process has an actor of this mesh."""
        self._actors.setdefault(proc, {})[mesh] = (name, rank)

    def actor_of(self, proc: int, mesh: int) -> tuple[str, int] | None:
        """Name of the mesh and rank of an actor."""
        return self._actors.get(proc, {}).get(mesh)

    def actor_ends(self, proc: int, mesh: int) -> None:
        self._actors.get(proc, {}).pop(mesh, None)

    def forget(self, proc: int) -> None:
        """What is recorded of a process after this has no name."""
        self._places.pop(proc, None)
        self._actors.pop(proc, None)

    def columns(self, procs: Any, meshes: Any) -> Columns:
        """The places of rows of `procs`; of the actors of `meshes` (0: none) where that is given. A proc with one actor writes as it."""
        distinct = pc.unique(procs)
        known = distinct.to_pylist()
        places = [self.get(proc) for proc in known]
        at = pc.index_in(procs, value_set=distinct)

        def taken(values: list[Any], kind: Any) -> Any:
            return pa.array(values, kind).take(at)

        only = [self._only(proc) for proc in known]
        if meshes is None:
            meshes = taken([one[0] for one in only], pa.uint64())
            named = [(one[1], one[2]) if one[0] else (place.mesh_name, place.rank) for one, place in zip(only, places, strict=True)]
            names, ranks = taken([name for name, _ in named], pa.string()), taken([rank for _, rank in named], pa.uint64())
        else:
            pairs = list(zip(procs.to_pylist(), meshes.to_pylist(), strict=True))
            found = [self.actor_of(proc, mesh) or (self.get(proc).mesh_name, self.get(proc).rank) for proc, mesh in pairs]
            names, ranks = pa.array([name for name, _ in found], pa.string()), pa.array([rank for _, rank in found], pa.uint64())
        actors = pc.if_else(pc.equal(meshes, pa.scalar(0, pa.uint64())), None, actor_ids(procs, meshes))
        shown = taken([place.name for place in places], pa.string())
        return Columns(shown, taken([place.pid for place in places], pa.int32()), names, ranks, actors)

    def _only(self, proc: int) -> tuple[int, str | None, int | None]:
        """Mesh, name and rank of the only actor of a process; zeros where it has none or several."""
        actors = self._actors.get(proc)
        if actors is None or len(actors) != 1:
            return 0, None, None
        ((mesh, (name, rank)),) = actors.items()
        return mesh, name, rank
