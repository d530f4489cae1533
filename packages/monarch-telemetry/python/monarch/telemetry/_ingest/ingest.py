"""All that a look at the rings of a host gives, written to its store.

Batches are taken as they come, and joined: one pass over the columns of many processes costs little more than one over those of one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from monarch.extension.events import Batch
from monarch.telemetry._arrow import pa, pc
from monarch.telemetry._ingest.activity import Logs, error_batch, event_batch, span_batches
from monarch.telemetry._ingest.broadcasts import Broadcasts
from monarch.telemetry._ingest.call_spans import CallSpans
from monarch.telemetry._ingest.endpoints import EndpointStats
from monarch.telemetry._ingest.entities import Ended, Facts, Living
from monarch.telemetry._ingest.gaps import Gaps, LostEnds
from monarch.telemetry._ingest.messages import Messages
from monarch.telemetry._ingest.metrics import Metrics
from monarch.telemetry._ingest.places import Places
from monarch.telemetry._ingest.reported import Reported
from monarch.telemetry._ingest.rows import Part, Rows, joined, newer, parts_of
from monarch.telemetry._ingest.sampling import Sampling
from monarch.telemetry._store.store import Store

_MESSAGES = ("message.sent", "cast.sent", "message.received", "message.begun", "message.handled")
# The most events that wait to be written: the thread that adds more writes them.
_MOST_WAITING = 200_000
# Tables of `Ingest.open_rows`.
OPEN = frozenset({"endpoint_stats", "supervision_events", "spans", "span_events", "span_context"})
# The most errors of this module that become rows; all are counted.
_MOST_REPORTED = 100


class Counts(NamedTuple):
    """Since the start. `lost` are events of rings that were overwritten before they were read."""

    events: int
    lost: int
    lost_lines: int
    dropped_updates: int
    weight: int
    # By table: rows of other wheels beyond the limits, or overwritten.
    dropped_rows: Mapping[str, int]


class Work(NamedTuple):
    """What an actor has done since recording began: messages, microseconds in endpoints, and the endpoint that it ran last."""

    handled: int = 0
    us: int = 0
    endpoint: str | None = None


class Known(NamedTuple):
    """What the events of processes give about their actors. By proc and mesh; `causes` as `Facts.known_actors`."""

    work: Mapping[int, Mapping[int, Work]]
    living: Mapping[int, Mapping[int, Living]]
    ended: Mapping[int, Mapping[int, Ended]]
    failed: Mapping[int, int]
    causes: Mapping[str, str]


class Ingest:
    """Any thread: `take` by the observer, `flush` by who needs the rows now. `clock` gives seconds since the epoch."""

    def __init__(self, store: Store, host_id: int, host: str, client: int, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self.places = Places()
        self.facts = Facts(store, self.places, host_id, host, client)
        self._sampling = Sampling()
        self._broadcasts = Broadcasts()
        self._messages = Messages(self._sampling)
        self._endpoints = EndpointStats()
        self._call_spans = CallSpans(self.facts.names)
        self._reported = Reported(store, self.places, host)
        self._logs = Logs(host)
        self._metrics = Metrics()
        self._waiting_lock, self._writing_lock = threading.Lock(), threading.Lock()
        self._waiting: list[Part] = []
        self._waiting_rows = 0
        self._ended: list[int] = []
        # By proc and mesh.
        self._work: dict[int, dict[int, Work]] = {}
        self._since_ns = 0
        # Processes that have introduced themselves, which they do when they start to record.
        self._introduced: set[int] = set()
        self._quiet: set[int] = set()
        # The number of failed writes.
        self.errors = 0
        self._events = 0
        self._lost: dict[int, int] = {}
        self._lost_before = 0
        self.gaps = Gaps()
        self._lost_ends = LostEnds()

    def begin(self, since_us: int) -> None:
        """Events before this time have no rows, but for those that introduce a process."""
        self._since_ns = since_us * 1000
        with self._waiting_lock:
            self._introduced.clear()

    def introduced(self) -> set[int]:
        """The processes that have begun to record since `begin`."""
        with self._waiting_lock:
            return set(self._introduced)

    def end(self) -> None:
        """What is read again after this has been read before."""
        with self._waiting_lock:
            self._lost_before += sum(self._lost.values())
            self._lost.clear()

    def take(self, batch: Batch) -> None:
        """New events of one process. The observer's function."""
        parts = newer(parts_of(batch), self._since_ns)
        with self._waiting_lock:
            if any(part.kind == "proc.start" and pc.max(part.columns["time"]).as_py() >= self._since_ns for part in parts):
                self._introduced.add(int(batch.proc))
            self._waiting.extend(parts)
            self._waiting_rows += len(batch)
            self._events += len(batch)
            if batch.lost > self._lost.get(batch.proc, 0):
                self.gaps.found()
            self._lost[batch.proc] = batch.lost
            if batch.ended:
                self._ended.append(int(batch.proc))
                self._lost_before += self._lost.pop(batch.proc)
            is_full = self._waiting_rows >= _MOST_WAITING
        if is_full:
            self.flush()

    def flush(self) -> None:
        """Writes what has come."""
        with self._writing_lock:
            with self._waiting_lock:
                parts, self._waiting, self._waiting_rows = self._waiting, [], 0
                ended, self._ended = self._ended, []
                self._introduced.difference_update(ended)
            now_us = int(self._clock() * 1e6)
            if parts:
                self._write(parts)
            for table, batches in self._metrics.batches(now_us, self.places, now=bool(ended)).items():
                self._append(table, batches)
            closed = self._endpoints.closed(now_us, self.facts.names)
            if closed is not None:
                self._append("endpoint_stats", [closed])
            if ended:
                self._guarded("call spans", lambda: self._append_all(self._call_spans.end(ended, now_us)))
            for proc in ended:
                self._sampling.forget(proc)
                self._messages.forget(proc)
                self._endpoints.forget(proc)
                self.facts.forget(proc)
                self._metrics.forget(proc)
                self._reported.end(proc)
                self._work.pop(proc, None)
                self.places.forget(proc)
            self._store.expire()

    def _write(self, parts: list[Part]) -> None:
        rows = joined(parts)
        # An error in the rows of one table does not affect the others.
        self._guarded("begun", lambda: self.facts.begun(rows))
        self._without_telemetry(rows)
        self._guarded("broadcasts", lambda: rows.update(self._broadcasts.mark(rows)))
        self._guarded("messages", lambda: self._append_all(self._messages.batches(rows, self.facts.shapes)))
        self._guarded("endpoints", lambda: self._endpoints.add(rows))
        self._guarded("work", lambda: self._add_work(rows.get("message.handled")))
        self._guarded("call spans", lambda: self._append_all(self._call_spans.batches(rows)))
        self._guarded("spans", lambda: self._append_all(span_batches(rows, self._call_spans.is_receiver)))
        if "user.event" in rows:
            self._guarded("events", lambda: self._add_events(rows["user.event"]))
        self._guarded("logs", lambda: self._append("logs", self._logs.batches(rows, self.places)))
        if "metric.update" in rows:
            self._guarded("metrics", lambda: self._metrics.add(rows["metric.update"]))
        # Last of all: a failure includes the last lines of its process.
        self._guarded("ended", lambda: self.facts.ended(rows, self._messages.running))
        if "actor.end" in rows:
            ended = rows["actor.end"]
            actors = set(zip(ended["proc"].to_pylist(), ended["mesh"].to_pylist(), strict=True))
            self._guarded("actors", lambda: self._forget_actors(actors, pc.max(ended["us"]).as_py()))

    def _forget_actors(self, actors: Collection[tuple[int, int]], us: int) -> None:
        """Actors have ended, by process and mesh, and their rows are written: a job makes actors and ends them for ever."""
        for proc, mesh in actors:
            self._messages.forget(proc, mesh)
        self._append_all(self._call_spans.end_actors(actors, us))

    def held(self) -> dict[str, int]:
        """What is kept from one look to the next, by kind: states of what lives, and no more of them than their bound."""
        with self._writing_lock:
            return {
                "messages counted": self._messages.counted,
                "endpoints running": len(self._messages.running),
                "broadcasts": len(self._broadcasts),
                "calls": len(self._endpoints),
                "call spans": len(self._call_spans),
                "work": sum(map(len, self._work.values())),
                **self.facts.held(),
            }

    def _add_events(self, recorded: Rows) -> None:
        others = self._reported.take(recorded)
        if others.count:
            self._append("events", [event_batch(others)])

    def _guarded(self, what: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self.errors += 1
            if self.errors <= _MOST_REPORTED:
                self._append("events", [error_batch(what, error, int(self._clock() * 1e6))])

    def _append_all(self, batches: Mapping[str, list[Any]]) -> None:
        for table, each in batches.items():
            self._append(table, each)

    def sample_above(self, most: int | None) -> None:
        """Messages of a proc in a second that all have rows; None: however many."""
        with self._writing_lock:
            self._sampling.change(most)

    def serve_as(self, name: str) -> None:
        """What metrics of programs have as `service.name`."""
        with self._writing_lock:
            self._metrics.service = name

    def know_hosts(self, hosts: Iterable[Mapping[str, Any]]) -> None:
        """See `Facts.know_hosts`."""
        with self._writing_lock:
            self._guarded("links", lambda: self.facts.know_hosts(hosts))

    def compare(self, looked: Mapping[str, Any]) -> None:
        """Compares the rows with the agent's table of processes: ends without an event are written when they are seen twice."""
        with self._waiting_lock:
            torn = {proc for proc, lost in self._lost.items() if lost}
        with self._writing_lock:
            self._guarded("lost ends", lambda: self._end_lost(looked, torn))

    def _end_lost(self, looked: Mapping[str, Any], torn: set[int]) -> None:
        living, _, _ = self.facts.known_actors()
        procs, actors = self._lost_ends.look(looked, self.facts.living_procs(), living, torn, int(self._clock() * 1e6))
        self.facts.found_ended(procs, actors, self._messages.running)
        self._forget_actors({(row["proc"], row["mesh"]) for row in actors}, int(self._clock() * 1e6))

    def be_quiet_about(self, procs: Iterable[int]) -> None:
        """Messages to these processes, and the ends of calls of them, have no rows."""
        with self._waiting_lock:
            self._quiet.update(procs)

    def _without_telemetry(self, rows: dict[str, Rows]) -> None:
        """Messages to collectors and to what starts them, and what collectors print, are nothing that the job does."""
        for field, values, kinds in (
            ("peer", self._quiet, ("message.sent", "output.line")),
            ("mesh", self.facts.starters, _MESSAGES),
        ):
            numbers = pa.array(values, pa.uint64())
            for kind in kinds if values else ():
                if kind in rows:
                    rows[kind] = rows[kind].where(pc.invert(pc.is_in(rows[kind][field], value_set=numbers)))
                    if not rows[kind].count:
                        del rows[kind]

    def _add_work(self, handled: Rows | None) -> None:
        if handled is None:
            return
        names = ["proc", "mesh"]
        columns = [handled["proc"], handled["mesh"], handled["duration"], handled["method"]]
        # On one thread: rows are in the order of time, and the last method is that of the last row.
        grouped = pa.TableGroupBy(pa.table(columns, [*names, "duration", "method"]), names, use_threads=False)
        summed = grouped.aggregate([("duration", "sum"), ("duration", "count"), ("method", "last")])
        for row in summed.to_pylist():
            of = self._work.setdefault(row["proc"], {})
            before = of.get(row["mesh"], Work())
            of[row["mesh"]] = Work(
                before.handled + row["duration_count"],
                before.us + row["duration_sum"] // 1000,
                row["method_last"] or before.endpoint,
            )

    def known(self) -> Known:
        """What is known of the actors of this host, at one moment."""
        with self._writing_lock:
            living, ended, causes = self.facts.known_actors()
            for proc, of in self._work.items():
                # The number of actors that procs create and end is unlimited.
                for mesh in of.keys() - living.get(proc, {}).keys() - ended.get(proc, {}).keys():
                    del of[mesh]
            work = {proc: dict(of) for proc, of in self._work.items()}
            return Known(work, living, ended, dict(self.facts.failed), causes)

    def work_of(self, proc: int, mesh: int) -> Work:
        """What an actor has done."""
        return self._work.get(proc, {}).get(mesh, Work())

    def _append(self, table: str, batches: list[Any]) -> None:
        for batch in batches:
            self._store.append(table, batch)

    def open_rows(self) -> dict[str, list[Any]]:
        """Rows by table (`OPEN`) that are no history yet: sums of open windows, failures without an outcome, calls without an end."""
        with self._writing_lock:
            sums = [self._endpoints.current(self.facts.names)]
            return {"endpoint_stats": sums, "supervision_events": self.facts.delivered(), **self._call_spans.open()}

    def metrics_now(self) -> None:
        """Writes the state of every series that has changed."""
        with self._writing_lock:
            for table, batches in self._metrics.batches(int(self._clock() * 1e6), self.places, now=True).items():
                self._append(table, batches)

    def metric_states(self) -> dict[str, list[Any]]:
        """The state of every series of the programs that run, by table."""
        with self._writing_lock:
            return self._metrics.states(self.places)

    def counts(self) -> Counts:
        with self._waiting_lock:
            lost = self._lost_before + sum(self._lost.values())
            return Counts(self._events, lost, self._logs.lost, self._metrics.dropped, self._sampling.weight, dict(self._reported.dropped))
