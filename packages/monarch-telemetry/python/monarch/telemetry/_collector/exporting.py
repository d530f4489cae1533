"""What leaves a collector: the metrics of its host as rows, and all that OTEL_* variables ask for, to a receiver of OTLP.

Each new batch of rows goes to the exporter, which never waits, after the entities that name its processes. Metrics are measured over the
rows of this host. An error costs no rows of other tables: the row `telemetry.export` of `events` states it, once for each signal.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from monarch.extension import JobId
from monarch.telemetry._arrow import pa, pc
from monarch.telemetry._collector.keeping import Keeping, schemas
from monarch.telemetry._collector.options import Options
from monarch.telemetry._export.metric_sources import SOURCES, Window, computed, process_memory
from monarch.telemetry._sql.context import Session
from monarch.telemetry._sql.functions import mentioned
from monarch.telemetry._tables.events import EVENTS
from monarch.telemetry._tables.metrics import SDK

if TYPE_CHECKING:
    from monarch.telemetry._export.otlp import OtlpExporter

_ENTITIES = ("hosts", "procs", "meshes")
# The most seconds that rows may be late: windows of metrics end that long ago, so that each row is in exactly one.
_LATE = 2.0
# Seconds between two measurements without an export of metrics: the interval of rows of endpoint_stats and resources.
_TABLES_EVERY = 10.0
# The largest part of the time that a measurement may take.
_SHARE = 0.05
# The most seconds for the last exports to the receiver when telemetry is stopped.
_REST = 2.0
# Microseconds that rows may be older than the window of metrics: rows of endpoint_stats are.
_OLDER_US = 30_000_000
# The column with the time of a row, of each table whose rows are counted by it.
_TIMED = {
    "endpoint_stats": "window_us",
    "snapshots": "snapshot_ts",
    **dict.fromkeys(("messages", "sent_messages", "actor_status_events", "resources", "failures", "rdma_ops", "fs_events"), "timestamp_us"),
}

# The table that has to have rows for a source, where its name differs from that of the source: without rows the answer is constant.
_NEEDED = {
    "undeliverable": "message_status_events",
    "sent": "sent_messages",
    "queues": "snapshots",
    "actor_failures": "actor_status_events",
}

Start = Callable[..., "OtlpExporter | None"]


class Exporting:
    """Of one collector. `follow`, `step` and `rest` exclude each other."""

    def __init__(
        self, keeping: Keeping, job: JobId, host: str, *, start: Start | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._keeping, self._store, self._host, self._job = keeping, keeping.store, host, f"{int(job):016x}"
        self._start, self._clock = start, clock
        self._lock = threading.Lock()
        self._options: Options | None = None
        self._exporter: OtlpExporter | None = None
        self._exports_metrics = False
        self._exported = frozenset[str]()
        # The variables of the last start, also of a failed one.
        self._asked: tuple[tuple[str, str], ...] = ()
        self._stated: set[str] = set()
        # Entities that changed since their last export.
        self._changed = set[str](_ENTITIES)
        self._handing = threading.Lock()
        self._since_us = self._started_us = self._late_us()
        self._due = self._memory_due = clock()
        # The last answers of sources, with the rows that they depend on: an idle host runs few statements.
        self._answered: dict[str, tuple[list[Any] | None, Any]] = {}
        mine = mentioned(" ".join(source.sql for source in SOURCES), schemas())
        self._measured = [name for name in mine if "(" not in name]

    def follow(self, options: Options) -> None:
        """Does from now on what these options ask for."""
        with self._lock:
            is_begin, self._options = self._options is None, options
            if is_begin:
                self._since_us = self._started_us = self._late_us()
                # With a delay: a start is followed by questions that wait for its end.
                self._due = self._clock() + options.metric_interval_secs
                self._memory_due = self._clock()
            if options.otel and options.otel != self._asked and options.level != "off" and self._exporter is None:
                self._asked = options.otel
                self._guarded("start", lambda: self._begin(options))

    def _begin(self, options: Options) -> None:
        from monarch.telemetry._export import otlp
        from monarch.telemetry._export.otlp_settings import read

        environment = dict(options.otel)
        asked = read(environment)
        for problem in asked.problems:
            self._state(problem, problem)
        base = {"host.name": self._host, "monarch.job": options.job or self._job}
        self._exporter = (self._start or otlp.start)(base, environment=environment)
        if self._exporter is None:
            if asked.targets:
                self._state("start", f"nothing is exported: the library or a receiver is missing ({otlp.HINT})")
            return
        self._exports_metrics, self._exported = "metrics" in asked.targets, frozenset(otlp.TABLES)
        self._changed.update(_ENTITIES)
        self._store.listener = self._hand_over

    def _hand_over(self, table: str, batch: Any) -> None:
        """The listener of the store: new rows, or None where an entity has changed."""
        exporter = self._exporter
        if exporter is None or (batch is None and table not in _ENTITIES):
            return
        if batch is None:
            self._changed.add(table)
            return
        if table not in self._exported:
            return
        try:
            with self._handing:
                changed = [name for name in _ENTITIES if name in self._changed]
                self._changed.difference_update(changed)
                if changed:
                    exporter.add(self._store.snapshot(changed))
                exporter.add({table: [batch]})
        except Exception as error:
            # Without the listener this row is not exported again.
            self._store.listener = None
            self._state("rows", f"rows are not exported any more: {type(error).__name__}: {error}")

    def step(self) -> None:
        """What is due: a measurement of metrics, and what the exporter has failed to do."""
        with self._lock:
            options, now = self._options, self._clock()
            if options is None or options.level == "off" or now < self._due:
                return
            self._guarded("measuring", lambda: self._measure(options))
            interval = options.metric_interval_secs if self._exports_metrics else max(options.metric_interval_secs, _TABLES_EVERY)
            ended = self._clock()
            self._due = max(now + interval, ended + (ended - now) * (1 / _SHARE - 1))
            self._guarded("status", self._look_at_exporter)

    def rest(self) -> None:
        """Exports what is there, and ends."""
        with self._lock:
            options, self._options = self._options, None
            if options is not None and options.level != "off":
                self._guarded("measuring", lambda: self._measure(options, last=True))
                self._guarded("meters", self._keeping.ingest.metrics_now)
            self._store.listener = None
            exporter, self._exporter = self._exporter, None
            self._exports_metrics, self._asked = False, ()
            if exporter is not None:
                self._guarded("end", lambda: exporter.close(_REST))

    def _late_us(self) -> int:
        return int((self._clock() - _LATE) * 1e6)

    def _measure(self, options: Options, *, last: bool = False) -> None:
        """`last`: no more rows come, so windows of all tables end now."""
        until_us = int(self._clock() * 1e6) if last else self._late_us()
        if until_us <= self._since_us:
            return
        window = Window(self._since_us, until_us, self._started_us)
        # A failed measurement is not repeated: its rows may be the cause.
        self._since_us = until_us
        resource = {"host.name": self._host, "service.name": options.service_name, **SDK}
        found = self._keeping.tables(self._measured)
        near = _near(found, window)
        answers: dict[str, Any] = {}
        left: dict[str, tuple[str, list[Any] | None]] = {}
        for source in SOURCES:
            schema, rows = near[_NEEDED.get(source.name, source.name)]
            asked = window._replace(until_us=until_us + source.lag_us) if last else window
            selected = source.selected(schema, rows, asked)
            if selected is not None:
                answers[source.name] = selected
                continue
            # The data on which the answer depends: nothing without rows, the rows if it does not depend on time, else it is unknown.
            given = [] if not any(batch.num_rows for batch in rows) else rows if "{since}" not in source.sql else None
            before, answer = self._answered.get(source.name, (None, None))
            if given is not None and before is not None and _are_same(given, before):
                answers[source.name] = answer
                continue
            left[source.name] = source.statement(asked), given
        if left:
            session = Session(mentioned(" ".join(sql for sql, _ in left.values()), near))
            for name, (sql, given) in left.items():
                answers[name] = session.frame(sql).to_arrow_table()
                self._answered[name] = given, answers[name]
        self._write(computed({source.name: answers[source.name] for source in SOURCES}, window, resource).items())
        if self._clock() >= self._memory_due:
            living = {place.name: place.pid for place in self._keeping.ingest.places.living().values() if place.name and place.pid}
            if living:
                # A collector has no processes until their first events arrive.
                self._memory_due = self._clock() + options.memory_interval_secs
            self._write(process_memory(living, self._host, window, resource).items())

    def _write(self, rows: Iterable[tuple[str, Any]]) -> None:
        for table, batch in rows:
            self._keeping.measured(table, batch)

    def _look_at_exporter(self) -> None:
        if self._exporter is None:
            return
        for signal, one in self._exporter.status().items():
            if one.error:
                self._state(signal, one.error)
            elif one.dropped_rows or one.rejected_items:
                self._state(signal, f"{one.dropped_rows} rows were dropped, {one.rejected_items} rejected by the receiver")
            if one.broken:
                self._state("rows", "rows could not be mapped to OpenTelemetry")

    def _guarded(self, what: str, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:
            self._state(what, f"{type(error).__name__}: {error}")

    def _state(self, what: str, problem: str) -> None:
        """A row of `events`, the first time."""
        if what in self._stated:
            return
        self._stated.add(what)
        thread = threading.current_thread()
        row = {
            "name": "telemetry.export",
            "target": "monarch.telemetry",
            "level": "warn",
            "fields_json": json.dumps({"host": self._host, "what": what, "problem": problem}),
            "timestamp_us": int(self._clock() * 1e6),
            "thread_id": threading.get_native_id(),
            "thread_name": thread.name,
        }
        self._store.append("events", pa.RecordBatch.from_pylist([row], schema=EVENTS.schema()))


def _are_same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def _near(tables: dict[str, tuple[Any, list[Any]]], window: Window) -> dict[str, tuple[Any, list[Any]]]:
    """The rows that statements about this window may read: tables keep an hour, a window is a second."""
    since = window.since_us - _OLDER_US
    kept = {name: _since(batches, _TIMED[name], since) if name in _TIMED else batches for name, (_, batches) in tables.items()}
    # Of joined tables: the rows that match the few rows on the other side.
    states = _since(tables["message_status_events"][1], "timestamp_us", window.since_us)
    failed = [batch.filter(pc.equal(batch.column("status"), "failed")) for batch in states]
    kept["message_status_events"] = _matching(tables["message_status_events"][1], "message_id", failed)
    kept["actor_nodes"] = _matching(tables["actor_nodes"][1], "snapshot_id", kept["snapshots"])
    return {name: (schema, kept[name]) for name, (schema, _) in tables.items()}


def _since(batches: list[Any], time: str, us: int) -> list[Any]:
    """Without batches whose rows are all older."""
    first = pa.scalar(us, pa.int64())
    return [batch for batch in batches if batch.num_rows and pc.greater_equal(pc.max(batch.column(time)), first).as_py()]


def _matching(batches: list[Any], column: str, others: list[Any]) -> list[Any]:
    """The rows whose value is in the same column of the others."""
    others = [batch.column(column) for batch in others if batch.num_rows]
    if not others:
        return []
    wanted = pc.unique(pa.concat_arrays(others))
    return [batch.filter(pc.is_in(batch.column(column), value_set=wanted)) for batch in batches]
