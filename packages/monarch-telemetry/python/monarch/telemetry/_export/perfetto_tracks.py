"""The tracks of a trace: hosts, their processes, and the actors, threads and counters of those; and which clock each one has.

A track is made when something is on it. A host that no table has gets a track of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, cast

from monarch.telemetry._arrow import pa
from monarch.telemetry._export.perfetto_packets import Packets, Unit
from monarch.telemetry._tables.catalog import TABLES

_UNKNOWN_HOST = "unknown host"
# The order below a process and below a host: counters, then actors or processes, then threads.
_FIRST, _SECOND, _LAST = -1, 1 << 20, 1 << 30


class _Proc(NamedTuple):
    host: str | None
    mesh_id: int | None
    rank: int
    pid: int


class _Mesh(NamedTuple):
    name: str
    parent: int | None
    parent_view: str | None


class _Actor(NamedTuple):
    name: str
    mesh_id: int
    rank: int


def table_of(rows: Mapping[str, Sequence[Any]], name: str) -> Any:
    """All rows of a table as a `pyarrow.Table` whose columns may be null, whatever those of the batches may be."""
    schema = pa.schema([pa.field(field.name, field.type) for field in TABLES[name].schema()])
    return pa.Table.from_batches([pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in rows.get(name, ())], schema)


class Tracks:
    """Tracks by what they show. `offsets_us` are added to the times of hosts, by the name of the host."""

    def __init__(self, rows: Mapping[str, Sequence[Any]], packets: Packets, offsets_us: Mapping[str, int]) -> None:
        self._packets, self._offsets = packets, offsets_us
        self._made: dict[tuple[object, ...], int] = {}
        self._proc_by_actor: dict[int, int | None] = {}
        hosts = {row["host_id"]: row["name"] for row in _rows(rows, "hosts")}
        self._meshes = {
            row["id"]: _Mesh(row["given_name"] or row["full_name"] or "", row["parent_mesh_id"], row["parent_view_json"])
            for row in _rows(rows, "meshes")
        }
        self._procs: dict[int, _Proc] = {}
        self._by_place: dict[tuple[int | None, int], int] = {}
        self._by_pid: dict[tuple[str | None, int], int] = {}
        self._by_name: dict[tuple[str | None, str], int] = {}
        # An earlier process may have had the same place, process number and name: the last one counts.
        for row in sorted(_rows(rows, "procs"), key=lambda row: row["started_us"] or 0):
            proc, host = row["proc_id"], hosts.get(row["host_id"])
            self._procs[proc] = found = _Proc(host, row["mesh_id"], row["rank"] or 0, row["pid"] or 0)
            self._by_place[found.mesh_id, found.rank] = proc
            self._by_pid[host, found.pid] = proc
            self._by_name[host, self._proc_name(proc)] = proc
        self._actors = {
            row["id"]: _Actor(row["display_name"] or row["full_name"] or f"actor {row['id']}", row["mesh_id"], row["rank"] or 0)
            for row in _rows(rows, "actors")
        }

    # ---- clocks

    def host_offset(self, host: str | None) -> int:
        return 0 if host is None else self._offsets.get(host, 0)

    def proc_offset(self, proc: int) -> int:
        found = self._procs.get(proc)
        return 0 if found is None else self.host_offset(found.host)

    def actor_offset(self, actor: int) -> int:
        proc = self._proc_of_actor(actor)
        return 0 if proc is None else self.proc_offset(proc)

    # ---- names

    def actor_name(self, actor: int) -> str:
        found = self._actors.get(actor)
        return f"actor {actor}" if found is None else found.name

    def mesh_name(self, mesh: int) -> str:
        found = self._meshes.get(mesh)
        return f"mesh {mesh}" if found is None else found.name

    def actor_mesh(self, actor: int) -> int | None:
        found = self._actors.get(actor)
        return None if found is None else found.mesh_id

    def _proc_name(self, proc: int) -> str:
        found = self._procs.get(proc)
        mesh = None if found is None or found.mesh_id is None else self._meshes.get(found.mesh_id)
        return f"proc {proc}" if found is None or mesh is None else f"{mesh.name}[{found.rank}]"

    # ---- tracks

    def job(self) -> int:
        """What belongs to no host."""
        return self._track(("job",), "job")

    def host(self, name: str | None) -> int:
        shown = _UNKNOWN_HOST if name is None else f"host {name}"
        return self._track(("host", name), shown)

    def proc(self, proc: int) -> int:
        made = self._made.get(("proc", proc))
        if made is not None:
            return made
        found = self._procs.get(proc)
        parent = self.host(None if found is None else found.host)
        name = self._proc_name(proc) if found is None else f"{self._proc_name(proc)} (pid {found.pid})"
        return self._track(("proc", proc), name, parent, order=_SECOND + (0 if found is None else min(found.rank, _SECOND)))

    def process(self, host: str | None, *, pid: int | None = None, name: str | None = None) -> int:
        """A process as rows of facts have it: a host without number and name, the job without a host."""
        if host is None:
            return self.job()
        known = None if pid is None else self._by_pid.get((host, pid))
        if known is None and name:
            known = self._by_name.get((host, name))
        if known is not None:
            return self.proc(known)
        if not name and pid is None:
            return self.host(host)
        shown = f"{name} (pid {pid})" if name and pid is not None else name or f"pid {pid}"
        return self._track(("process", host, name or pid), shown, self.host(host), order=_SECOND)

    def actor(self, actor: int, number: int = 0) -> int:
        """A track of an actor: 0 is the first one, others are for what overlaps on it, and shown as one with it."""
        made = self._made.get(("actor", actor, number))
        if made is not None:
            return made
        proc = self._proc_of_actor(actor)
        parent = self.host(None) if proc is None else self.proc(proc)
        first = self.actor(actor) if number else 0
        return self._track(("actor", actor, number), self.actor_name(actor), parent, order=_SECOND, merged_with=first)

    def thread(self, proc: int, name: str, number: int = 0) -> int:
        """A track of a thread, numbered as those of an actor."""
        made = self._made.get(("thread", proc, name, number))
        if made is not None:
            return made
        shown = f"thread {name}" if name.isdecimal() or not name else name
        first = self.thread(proc, name) if number else 0
        return self._track(("thread", proc, name, number), shown, self.proc(proc), order=_LAST, merged_with=first)

    def counter(self, parent: int, name: str, unit: Unit) -> int:
        return self._track(("counter", parent, name), name, parent, order=_FIRST, unit=unit)

    def _track(
        self, key: tuple[object, ...], name: str, parent: int = 0, *, order: int = 0, merged_with: int = 0, unit: Unit | None = None
    ) -> int:
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._packets.track(name, parent, order=order, merged_with=merged_with, unit=unit)
        return found

    def _proc_of_actor(self, actor: int) -> int | None:
        if actor not in self._proc_by_actor:
            self._proc_by_actor[actor] = self._found_proc(self._actors.get(actor))
        return self._proc_by_actor[actor]

    def _found_proc(self, actor: _Actor | None) -> int | None:
        mesh = None if actor is None else self._meshes.get(actor.mesh_id)
        if actor is None or mesh is None:
            return None
        return self._by_place.get((mesh.parent, _parent_rank(mesh.parent_view, actor.rank)))


def _parent_rank(view_json: str | None, rank: int) -> int:
    """The rank of the proc on which the actor of this rank runs: the place of the rank in the part of the parent that the mesh is on."""
    try:
        view: Any = json.loads(view_json or "null")
    except (ValueError, RecursionError):
        return rank
    if isinstance(view, dict):
        fields = cast("dict[str, Any]", view)
        inner = fields.get("slice")
        fields = cast("dict[str, Any]", inner) if isinstance(inner, dict) else fields
        try:
            at, found = rank, int(fields["offset"])
            for size, stride in reversed([*zip(fields["sizes"], fields["strides"], strict=True)]):
                at, place = divmod(at, int(size))
                found += place * int(stride)
            return found
        except (KeyError, TypeError, ValueError, ArithmeticError):
            pass
    return rank


def _rows(rows: Mapping[str, Sequence[Any]], name: str) -> list[dict[str, Any]]:
    return table_of(rows, name).to_pylist()


def looked_up(column: Any, find: Any, kind: Any) -> Any:
    """A column of what `find` gives for each value of a column; each different value is looked up once."""
    pc: Any = import_module("pyarrow.compute")
    distinct = pc.unique(column)
    values = pa.array([None if value is None else find(value) for value in distinct.to_pylist()], kind)
    return values.take(pc.index_in(column, value_set=distinct))
