"""Exports the rows of a collector by OTLP: what the OTEL_* variables ask for, with a thread that encodes and one for each receiver.

    exporter = start({"host.name": "node-1", "monarch.job": "train"})     # None where the variables name no receiver
    exporter.add({"logs": [batch]})                                      # each row once, from any thread; it never waits
    exporter.close(5)

Rows wait as Arrow batches until they are encoded. Rows without room are dropped, the oldest first, and counted in `status`.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from threading import Condition, Thread
from typing import Any, NamedTuple

from monarch.extension import seconds, setting
from monarch.telemetry._export.metric_totals import Totals
from monarch.telemetry._export.otlp_messages import Encoder
from monarch.telemetry._export.otlp_resource import Resources, kubernetes
from monarch.telemetry._export.otlp_sender import Sender, Status, Transport
from monarch.telemetry._export.otlp_settings import OtlpSettings, Signal, Target, read
from monarch.telemetry._export.otlp_spans import Span, Spans
from monarch.telemetry._export.otlp_values import Attributes

_LOGGER = logging.getLogger("monarch.telemetry")
HINT = "pip install 'monarch-telemetry[otel]'"
_ENTITIES = ("hosts", "procs", "meshes")
_SPANS = ("spans", "span_context", "span_events")
_LOGS = ("logs", "events", "failures", "audit")
_METRICS = ("metric_gauges", "metric_sums", "metric_histograms")
TABLES = (*_ENTITIES, *_SPANS, *_LOGS, *_METRICS)
# The most bytes of batches that wait to be encoded.
_MOST_BYTES = 64 << 20
# The most bytes of the rows of one request: receivers accept 4 MiB and more.
_REQUEST_BYTES = 2 << 20
_POINTS = 2048
_KEPT_US = 3600 * 1_000_000
_EXIT_S = 2.0


class ExportStatus(NamedTuple):
    """Counts since the start. `dropped` rows had no room before they were encoded; `malformed` ones were left out, at least in part."""

    signals: Mapping[Signal, Status]
    dropped: int
    dropped_spans: int
    dropped_series: int
    malformed: int
    # Failed steps, with all of their rows.
    broken: int


class OtlpExporter:
    """Exports rows. `close` ends its threads; the end of the interpreter closes it within 2 seconds."""

    def __init__(
        self,
        settings: OtlpSettings,
        base: Mapping[str, Any],
        transports: Mapping[Signal, Transport],
        *,
        clock: Callable[[], float] = time.monotonic,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """`base` are the resource attributes of this collector; signals without a transport are not exported."""
        self._settings = settings
        self._clock, self._now_us = clock, now_us
        attributes = Attributes(settings.attribute_count, settings.attribute_length)
        self._encoder = Encoder(Resources(base, settings.resource), attributes)
        self._spans = Spans(settings.sampler, attributes)
        self._finished: list[Span] = []
        self._lines: dict[str, list[Any]] = {}
        self._totals = Totals()
        self._deltas: dict[str, list[Any]] = {}
        now = clock()
        self._due: dict[Signal, float] = {signal: now + settings.batching[signal].delay for signal in transports}
        self._senders: dict[Signal, Sender] = {
            signal: Sender(signal, transport, most_items=settings.batching[signal].queue) for signal, transport in transports.items()
        }
        self._changed = Condition()
        self._inbox: deque[tuple[str, Any]] = deque()
        self._inbox_bytes = self._dropped = 0
        self._flushes = self._flushed = 0
        self._closing = False
        self._broken = 0
        self._thread = Thread(target=self._run, name="monarch-otlp", daemon=True)
        self._thread.start()
        # An interpreter that ends while a thread is in Arrow aborts.
        atexit.register(self._close_at_exit)

    def add(self, rows: Mapping[str, Sequence[Any]]) -> None:
        """Takes batches by the name of their table; tables that are not exported are left out."""
        with self._changed:
            for table, batches in rows.items():
                if table not in TABLES or self._closing:
                    continue
                for batch in batches:
                    if batch.num_rows:
                        self._inbox.append((table, batch))
                        self._inbox_bytes += batch.nbytes
            while self._inbox_bytes > _MOST_BYTES:
                _, batch = self._taken()
                self._dropped += batch.num_rows
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Exports what was added, whether it is due or not, at most for so many seconds. Returns whether receivers have taken it."""
        until = self._clock() + timeout
        with self._changed:
            self._flushes += 1
            wanted = self._flushes
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._flushed >= wanted or self._closing, timeout):
                return False
        return all(sender.drained(max(0.0, until - self._clock())) for sender in self._senders.values())

    def close(self, timeout: float) -> bool:
        """Exports what was added, at most for so many seconds, and ends. Returns whether receivers have taken all of it."""
        atexit.unregister(self._close_at_exit)
        until = self._clock() + timeout
        flushed = self.flush(timeout)
        with self._changed:
            self._closing = True
            self._inbox.clear()
            self._changed.notify_all()
        closed = [sender.close(max(0.0, until - self._clock())) for sender in self._senders.values()]
        self._thread.join(1.0)
        return flushed and all(closed)

    def _close_at_exit(self) -> None:
        self.close(_EXIT_S)

    def status(self) -> ExportStatus:
        """The counts until now. Any thread."""
        signals: dict[Signal, Status] = {signal: sender.status() for signal, sender in self._senders.items()}
        with self._changed:
            dropped = self._dropped
        return ExportStatus(signals, dropped, self._spans.dropped, self._totals.dropped, self._encoder.malformed, self._broken)

    def _taken(self) -> tuple[str, Any]:
        table, batch = self._inbox.popleft()
        self._inbox_bytes -= batch.nbytes
        return table, batch

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, max(0.0, min(self._due.values(), default=1.0) - self._clock()))
                if self._closing:
                    return
                batches = [self._taken() for _ in range(len(self._inbox))]
                flush = self._flushes
            self._encode(batches, forced=flush > self._flushed)
            with self._changed:
                self._flushed = flush
                self._changed.notify_all()

    def _has_work(self) -> bool:
        return bool(self._inbox) or self._closing or self._flushes > self._flushed

    def _encode(self, batches: Sequence[tuple[str, Any]], *, forced: bool) -> None:
        for table, batch in batches:
            self._guarded(lambda table=table, batch=batch: self._sort(table, batch))
        exports: dict[Signal, Callable[[bool], None]] = {"traces": self._traces, "logs": self._logs, "metrics": self._metrics}
        for signal in self._senders:
            self._guarded(lambda export=exports[signal]: export(forced))

    def _guarded(self, step: Callable[[], None]) -> None:
        """Telemetry ends nothing: the next rows, and those of other signals, may be right."""
        try:
            step()
        except Exception:
            self._broken += 1
            if self._broken == 1:
                _LOGGER.warning("OTLP: rows could not be exported; this is logged once", exc_info=True)

    def _sort(self, table: str, batch: Any) -> None:
        if table in _ENTITIES:
            self._encoder.resources.add(table, batch)
        elif table in _SPANS and "traces" in self._senders:
            self._spans.add(table, batch)
        elif table in _LOGS and "logs" in self._senders:
            self._lines.setdefault(table, []).append(batch)
        elif table in _METRICS and "metrics" in self._senders:
            if self._settings.temporality == "cumulative":
                self._totals.add({table: [batch]})
            else:
                self._deltas.setdefault(table, []).append(batch)

    def _is_due(self, signal: Signal, rows: int, forced: bool) -> bool:
        """Whether a request is made; from then on the delay counts again."""
        batching, now = self._settings.batching[signal], self._clock()
        due = forced or now >= self._due[signal] or rows >= batching.batch
        if due:
            self._due[signal] = now + batching.delay
        return due

    def _traces(self, forced: bool) -> None:
        self._finished += self._spans.take()
        if forced:
            # Spans that wait for late events.
            self._finished += self._spans.take()
        if self._is_due("traces", len(self._finished), forced):
            spans, self._finished = self._finished, []
            size = self._settings.batching["traces"].batch
            for start in range(0, len(spans), size):
                self._senders["traces"].offer(self._encoder.traces(spans[start : start + size]))

    def _logs(self, forced: bool) -> None:
        if self._is_due("logs", sum(map(_rows, self._lines.values())), forced):
            lines, self._lines = self._lines, {}
            for part in _parts(lines, self._settings.batching["logs"].batch):
                self._senders["logs"].offer(self._encoder.logs(part))

    def _metrics(self, forced: bool) -> None:
        if not self._is_due("metrics", 0, forced):
            return
        now_us = self._now_us()
        rows, self._deltas = self._deltas, {}
        if self._settings.temporality == "cumulative":
            self._totals.forget(now_us - _KEPT_US)
            rows = {name: [batch] for name, batch in self._totals.batches(now_us, fresh_gauges=True).items()}
        for part in _parts(rows, _POINTS):
            self._senders["metrics"].offer(self._encoder.metrics(part))


def start(base: Mapping[str, Any], *, environment: Mapping[str, str] | None = None) -> OtlpExporter | None:
    """The exporter that the environment asks for; None where it names no receiver, or where the library is missing.

    `base` are the resource attributes of this collector, such as `host.name` and `monarch.job`. An invalid variable is logged.
    """
    interval = seconds("otel_metric_export_interval") or 1.0
    traces, metrics = bool(setting("enable_otel_tracing")), bool(setting("enable_otel_metrics"))
    settings = read(environment, traces=traces, metrics=metrics, metric_interval=interval)
    for problem in settings.problems:
        _LOGGER.warning("OpenTelemetry: %s", problem)
    if not settings.targets:
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.proto") is None:
        _LOGGER.warning("OpenTelemetry: nothing is exported: the library opentelemetry-proto is not installed (`%s`)", HINT)
        return None
    transports: dict[Signal, Transport] = {}
    for signal, target in settings.targets.items():
        try:
            transports[signal] = _transport(target)
        except (OSError, ValueError) as error:
            _LOGGER.warning("OpenTelemetry: %s are not exported to %s: %s", signal, target.shown, error)
    return OtlpExporter(settings, {**kubernetes(), **base}, transports) if transports else None


def _transport(target: Target) -> Transport:
    if target.protocol == "grpc":
        from monarch.telemetry._export.otlp_grpc import GrpcTransport

        return GrpcTransport(target)
    from monarch.telemetry._export.otlp_http import HttpTransport

    return HttpTransport(target)


def _rows(batches: Sequence[Any]) -> int:
    return sum(batch.num_rows for batch in batches)


def _parts(rows: Mapping[str, Sequence[Any]], size: int) -> Iterator[dict[str, list[Any]]]:
    """The rows in parts of so many rows, and of so many bytes unless one row has more."""
    part: dict[str, list[Any]] = {}
    count = held = 0
    for table, batches in rows.items():
        for batch in batches:
            for piece in _pieces(batch, size):
                if count and (count + piece.num_rows > size or held + piece.nbytes > _REQUEST_BYTES):
                    yield part
                    part, count, held = {}, 0, 0
                part.setdefault(table, []).append(piece)
                count, held = count + piece.num_rows, held + piece.nbytes
    if count:
        yield part


def _pieces(batch: Any, size: int) -> Iterator[Any]:
    if batch.num_rows > 1 and (batch.num_rows > size or batch.nbytes > _REQUEST_BYTES):
        half = batch.num_rows // 2
        yield from _pieces(batch.slice(0, half), size)
        yield from _pieces(batch.slice(half), size)
    elif batch.num_rows:
        yield batch
