"""A snapshot: what a look at the processes of a host and what their events gave are as rows of a tree. No actor, no clock, no threads.

Each host has the nodes below its own one, and the edge from the root to it. The client's host has the root, and the row of `snapshots`.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from monarch.telemetry._arrow import pa
from monarch.telemetry._collector.live import SYSTEM, split_display, status_of
from monarch.telemetry._ingest.entities import MOST_ENDED, Ended, rank_of
from monarch.telemetry._ingest.ids import ROOT, actor_id, mixed
from monarch.telemetry._ingest.ingest import Known, Work
from monarch.telemetry._tables.catalog import TABLES
from monarch.telemetry.errors import TelemetryError

# The class of the procs of services of a host, in displays.
_SERVICE = "service"
# States in which a proc answers, unless a signal has stopped it.
_ANSWERS = frozenset({"running", "unresponsive"})
_NO_ANSWER = "gateway_timeout"
_SECOND = 1_000_000


class Schedule:
    """When snapshots are taken: at the multiples of the interval, so that all hosts take the same ones; the first one at once.

    The number of a snapshot is the start of its interval, in milliseconds since the epoch: it grows when the interval changes, too.
    """

    def __init__(self) -> None:
        self._interval: float | None = None
        self._last = 0

    def every(self, interval: float | None) -> None:
        """Seconds between snapshots; None for none."""
        self._interval = interval

    def due(self, now: float) -> int | None:
        """The number of the snapshot that has to be taken at this time, in seconds since the epoch."""
        interval = self._interval
        if interval is None:
            return None
        number = round(now // interval * interval * 1000)
        if number <= self._last:
            return None
        self._last = number
        return number

    def wait(self, now: float, most: float) -> float:
        """Seconds until the next interval begins, `most` at most."""
        interval = self._interval
        return most if interval is None else min(most, max(0.0, (now // interval + 1) * interval - now))


class Host(NamedTuple):
    """The host of a snapshot; `started_us` is when the client of the job was started, where it is this host's."""

    host_id: int
    name: str
    address: str
    job: int
    started_us: int | None


def root_id(job: int) -> int:
    """The node of a job."""
    return mixed(ROOT, job)


def snapshot(look: Mapping[str, Any] | TelemetryError, host: Host, known: Known, number: int, now_us: int) -> dict[str, Any]:
    """Batches by table. `look` is the state of the processes of the job on this host, or why there is none."""
    rows = _Rows(number, now_us)
    root = root_id(host.job)
    rows.add("children", root, host.host_id, host.name, False, False)
    if host.host_id == host.job:
        rows.add("snapshots", now_us)
        _root(rows, root, host, look)
    if isinstance(look, TelemetryError):
        rows.node(host.host_id, "error")
        rows.add("resolution_errors", host.host_id, _NO_ANSWER, str(look))
        return rows.batches()
    rows.node(host.host_id, "host")
    procs = [_Proc(rows, host, known, proc) for proc in look["procs"]]
    rows.add("host_nodes", host.host_id, host.address, sum(not proc.is_system for proc in procs))
    for proc in procs:
        proc.write()
    return rows.batches()


def _root(rows: _Rows, root: int, host: Host, look: Mapping[str, Any] | TelemetryError) -> None:
    others: Sequence[Mapping[str, Any]] = [] if isinstance(look, TelemetryError) else look["hosts"]
    rows.node(root, "root")
    hosts = 1 + sum(other["state"] == "joined" for other in others)
    rows.add("root_nodes", root, hosts, rows.now_us if host.started_us is None else host.started_us, _user())


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


class _Rows:
    """Rows of one snapshot by table, without the number of the snapshot, in the order of the columns."""

    def __init__(self, number: int, now_us: int) -> None:
        self._number = number
        self.now_us = now_us
        self._rows: dict[str, list[tuple[Any, ...]]] = {}

    def add(self, table: str, *values: Any) -> None:
        self._rows.setdefault(table, []).append((self._number, *values))

    def node(self, node: int, kind: str) -> None:
        self.add("nodes", node, kind, self.now_us)

    def batches(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for table, rows in self._rows.items():
            schema = TABLES[table].schema()
            columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
            found[table] = pa.RecordBatch.from_arrays(columns, schema=schema)
        return found


class _Proc:
    """A proc of a look, and its actors."""

    def __init__(self, rows: _Rows, host: Host, known: Known, proc: Mapping[str, Any]) -> None:
        self._rows, self._host, self._look = rows, host, proc
        self._id = int(proc["uid"], 16)
        self._known = known
        kind, name, point = split_display(proc["name"])
        self.is_system = kind == _SERVICE
        self._is_client = self._id == host.job
        self._name = name if self._is_client or not point else f"{name}[{rank_of(point)}]"
        self._key = _sort_key(name, rank_of(point))

    def write(self) -> None:
        rows, look = self._rows, self._look
        rows.node(self._id, "proc")
        # The client is the agent of its host, and has the same number: an edge from a node to itself would be a cycle.
        if self._id != self._host.host_id:
            rows.add("children", self._host.host_id, self._id, self._key, self.is_system, False)
        failed = self._known.failed.get(self._id, 0)
        answer = look["answer"]
        living = self._known.living.get(self._id, {})
        actors = len(living) if answer is None else len(answer["actors"])
        rows.add("proc_nodes", self._id, self._name, actors, MOST_ENDED, failed > 0, failed)
        if self._is_client:
            self._script()
        if answer is not None:
            for actor in answer["actors"]:
                self._living(actor)
        elif look["state"] in _ANSWERS:
            rows.add("resolution_errors", self._id, _NO_ANSWER, f"the process {look['pid']} does not answer")
        alive = {int(actor["mesh"], 16) for actor in answer["actors"]} if answer is not None else set(living)
        for mesh, ended in self._known.ended.get(self._id, {}).items():
            if mesh not in alive:
                self._ended(mesh, ended)

    def _work(self, mesh: int) -> Work:
        return self._known.work.get(self._id, {}).get(mesh, Work())

    def _script(self) -> None:
        """The script, which is an actor without endpoints."""
        node = actor_id(self._id, 0)
        self._rows.node(node, "actor")
        self._rows.add("children", self._id, node, "", False, False)
        self._rows.add("actor_nodes", node, "Client", "Client", node, 0, self._host.started_us, None, 0, 0, False)

    def _living(self, actor: Mapping[str, Any]) -> None:
        rows, mesh = self._rows, int(actor["mesh"], 16)
        node, work = actor_id(self._id, mesh), self._work(mesh)
        kind, name, point = split_display(actor["display"])
        is_system = kind.startswith(SYSTEM)
        doing: str | None = actor["doing"]
        known = self._known.living.get(self._id, {}).get(mesh)
        created = None if known is None else known.created_us
        rows.node(node, "actor")
        rows.add("children", self._id, node, _sort_key(name, rank_of(point)), is_system, False)
        last = doing or work.endpoint
        done, queued = actor["taken"], actor["queued"]
        rows.add("actor_nodes", node, status_of(doing), kind, node, done, created, last, work.us, queued, is_system)
        # A look has only the oldest of the endpoints in progress: there may be others.
        rows.add("actor_executions", node, int(doing is not None), doing is None, False)
        if doing is not None:
            rows.add("active_handlers", node, doing, 1, rows.now_us - int(actor["doing_for"] * _SECOND))

    def _ended(self, mesh: int, ended: Ended) -> None:
        rows = self._rows
        node, work = actor_id(self._id, mesh), self._work(mesh)
        kind, name, point = split_display(ended.display)
        is_system = kind.startswith(SYSTEM)
        status = "Failed" if ended.failed else "Stopped"
        rows.node(node, "actor")
        rows.add("children", self._id, node, _sort_key(name, rank_of(point)), is_system, True)
        rows.add("actor_nodes", node, status, kind, node, work.handled, ended.created_us, work.endpoint, work.us, 0, is_system)
        if ended.failed:
            cause = _cause(ended.display, self._known.causes)
            _, name, point = split_display(cause)
            rows.add("actor_failures", node, ended.message, cause, name + point, ended.ended_us, cause != ended.display)


def _cause(display: str, causes: Mapping[str, str]) -> str:
    """The display of the actor that failed first: an owner that does not handle a failure fails too."""
    seen: set[str] = set()
    while display in causes and display not in seen:
        seen.add(display)
        display = causes[display]
    return display


def _sort_key(name: str, rank: int) -> str:
    """Rank 10 comes behind rank 9."""
    return f"{name} {rank:08d}"
