"""Rows as spans, log records and metrics of OpenTelemetry's SDK, in the order of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags, set_span_in_context

from monarch.telemetry._export.metric_names import meaning
from monarch.telemetry._export.metric_totals import Totals, histogram, value_of
from monarch.telemetry._export.otlp_pipeline import Data, Rows
from monarch.telemetry._export.otlp_resource import Resources
from monarch.telemetry._export.otlp_settings import OtlpSettings
from monarch.telemetry._export.otlp_spans import Span, Spans
from monarch.telemetry._export.otlp_values import Attributes, clean, hexadecimal, span_id, trace_id
from monarch.telemetry._tables.facts import LOGS

SCOPE = "monarch"
_SEVERITIES = {
    "trace": 1,
    "debug": 5,
    "info": 9,
    "warn": 13,
    "warning": 13,
    "error": 17,
    "critical": 21,
    "fatal": 21,
}
_KINDS = {1: SpanKind.INTERNAL, 2: SpanKind.SERVER, 3: SpanKind.CLIENT, 4: SpanKind.PRODUCER, 5: SpanKind.CONSUMER}
_STATUSES = {"ok": StatusCode.OK, "error": StatusCode.ERROR}
_TEMPORALITIES = {"delta": AggregationTemporality.DELTA, "cumulative": AggregationTemporality.CUMULATIVE}
_UNSPECIFIED = AggregationTemporality.UNSPECIFIED
_MOST_U64 = (1 << 64) - 1
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
# Series that were not measured for so long are not exported any more.
_KEPT_US = 3600 * 1_000_000
# Points of one request: those of histograms have up to 256 buckets, and receivers accept 4 MiB and more.
_POINTS = 1000


class _Source(Resource):
    """A resource that is itself its key: the SDK's hash makes a JSON text for each span and record."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class _Mapper:
    """What the signals have in common. `malformed` counts rows that could not be exported, or not with all of their attributes."""

    def __init__(self, settings: OtlpSettings, resources: Resources) -> None:
        self.resources = resources
        self.attributes = Attributes(settings.attribute_count, settings.attribute_length)
        self._left_out = 0
        self._scopes: dict[str, InstrumentationScope] = {}

    @property
    def malformed(self) -> int:
        return self._left_out + self.attributes.malformed

    @property
    def dropped(self) -> int:
        return 0

    def _scope(self, name: str) -> InstrumentationScope:
        found = self._scopes.get(name)
        if found is None:
            if len(self._scopes) >= 1000:
                self._scopes.clear()
            found = self._scopes[name] = InstrumentationScope(clean(name) or SCOPE)
        return found

    def _resource(self, attributes: Mapping[str, Any]) -> Resource:
        return _Source(self.attributes.limited(attributes)[0])

    def _limited(self, attributes: Mapping[str, Any]) -> Any:
        found, dropped = self.attributes.limited(attributes)
        if not dropped:
            return found
        bounded = BoundedAttributes(attributes=found)
        bounded.dropped = dropped
        return bounded


class SpanMapper(_Mapper):
    """Spans of traces."""

    def __init__(self, settings: OtlpSettings, resources: Resources) -> None:
        super().__init__(settings, resources)
        self._spans = Spans(settings.sampler, self.attributes)
        self._size = settings.batching["traces"].batch
        self._finished: list[Span] = []

    @property
    def dropped(self) -> int:
        """Spans that were dropped for room, or had no beginning."""
        return self._spans.dropped

    def add(self, rows: Rows) -> Iterator[Data]:
        """Takes rows of `spans`, `span_context` and `span_events`."""
        for table, batches in rows.items():
            for batch in batches:
                self._spans.add(table, batch)
        yield from ()

    def finish(self, is_due: bool, forced: bool) -> Iterator[Data]:
        """Finished spans; if `forced`, spans that wait for late events too."""
        self.resources.update()
        for _ in range(2 if forced else 1):
            self._finished += self._spans.take()
        if is_due or len(self._finished) >= self._size:
            spans, self._finished = self._finished, []
            for first in range(0, len(spans), self._size):
                part = self.spans(spans[first : first + self._size])
                yield part, len(part)

    def spans(self, spans: Iterable[Span]) -> list[ReadableSpan]:
        """Spans, from `Spans.take`."""
        resources: dict[int, Resource] = {}
        made: list[ReadableSpan] = []
        for span in spans:
            resource = resources.get(span.process)
            if resource is None:
                resource = resources[span.process] = self._resource(self.resources.of_process(span.process))
            made.append(self._span(span, resource))
        return made

    def _span(self, span: Span, resource: Resource) -> ReadableSpan:
        fields = dict(span.fields or {})
        status, about, listed = (fields.pop(name, None) for name in ("otel.status_code", "otel.status_description", "otel.links"))
        fields.pop("otel.kind", None)
        began = span.began_us or 0
        parent = None
        if span.around is not None and span.parent:
            parent = SpanContext(span.trace, span.parent, span.around[0] != span.process, _SAMPLED)
        links: list[Link] = []
        if _KINDS[span.kind] is SpanKind.CONSUMER and parent is not None:
            links.append(Link(parent))
        for link in _listed(listed):
            trace, number = trace_id(link.get("trace_id")), hexadecimal(link.get("span_id"), 16)
            if trace and number:
                links.append(Link(SpanContext(trace, number, True)))
            else:
                self._left_out += 1
        code = _STATUSES.get(str(status).lower(), StatusCode.UNSET)
        place = {"thread.name": span.thread or None, "code.file.path": span.file, "code.line.number": span.line}
        return ReadableSpan(
            clean(span.name),
            SpanContext(span.trace, span_id(span.process, span.number), False, _SAMPLED),
            parent,
            resource,
            self._limited({**place, **fields}),
            links=links,
            kind=_KINDS[span.kind],
            status=Status(code, clean(str(about)) if code is StatusCode.ERROR and about is not None else None),
            start_time=_nanoseconds(began),
            end_time=_nanoseconds(max(began, span.ended_us or began)),
            instrumentation_scope=self._scope(span.target),
        )


class LogMapper(_Mapper):
    """Log records."""

    def add(self, rows: Rows) -> Iterator[Data]:
        """Rows of `logs`, `events`, `failures` and `audit`, by the name of the table."""
        records = self.records(rows)
        yield records, len(records)

    def finish(self, is_due: bool, forced: bool) -> Iterator[Data]:
        """Nothing waits here."""
        yield from ()

    def records(self, rows: Rows) -> list[ReadableLogRecord]:
        """A record for each row."""
        self.resources.update()
        found: list[ReadableLogRecord] = []
        resources: dict[_Key, Resource] = {}

        def add(source: _Key, scope: str, record: LogRecord) -> None:
            resource = resources.get(source)
            if resource is None:
                names = ("host.name", "process.pid", "monarch.mesh", "monarch.rank")
                known = {name: value for name, value in zip(names, source, strict=True) if value is not None}
                resource = resources[source] = self._resource(self.resources.merged(known))
            found.append(ReadableLogRecord(record, resource, self._scope(scope)))

        for batch in rows.get("logs", ()):
            self._lines(batch, add)
        for table, fill in (("events", self._event), ("failures", self._failure), ("audit", self._audit)):
            for row in _rows(rows.get(table, ())):
                fill(row, add)
        return found

    def _lines(self, batch: Any, add: _Add) -> None:
        """Adds the rows of a batch of `logs`. There may be many: attributes of lines from one place are made once."""
        columns = [batch.column(name).to_pylist() for name in _LINE]
        places: dict[tuple[object, ...], dict[str, Any]] = {}
        for time, seq, host, proc, pid, mesh, rank, actor, stream, level, logger, line, trace_text, number in zip(*columns, strict=True):
            place = (stream, proc, actor)
            attributes = places.get(place)
            if attributes is None:
                found = {
                    "log.iostream": stream if stream in ("stdout", "stderr") else None,
                    "monarch.stream": stream,
                    "monarch.proc": proc,
                    "monarch.actor.id": actor,
                }
                attributes = places[place] = self.attributes.limited(found)[0]
            trace = trace_id(trace_text) if trace_text else 0
            of = self._span_of(host, pid, number) if trace and number else 0
            with_sequence = {**attributes, "log.record.original_sequence": seq}
            add((host, pid, mesh, rank), logger or SCOPE, _record(time, level, with_sequence, body=clean(line), trace=trace, span=of))

    def _span_of(self, host: str, pid: int, number: int) -> int:
        """The id of the span that wrote a line; 0 where the process of a counted span is not known."""
        if number >> 32:
            return span_id(0, number)
        process = self.resources.process_of(host, pid)
        return 0 if process is None else span_id(process, number)

    def _event(self, row: dict[str, Any], add: _Add) -> None:
        place = {
            "thread.name": row["thread_name"] or None,
            "thread.id": row["thread_id"] or None,
            "code.file.path": row["file"],
            "code.line.number": row["line"],
        }
        attributes = self._limited({**place, **self.attributes.parsed(row["fields_json"])})
        add(_NOWHERE, row["target"] or SCOPE, _record(row["timestamp_us"], row["level"], attributes, name=row["name"]))

    def _failure(self, row: dict[str, Any], add: _Add) -> None:
        attributes = {
            "exception.message": row["message"],
            "exception.stacktrace": row["traceback"],
            "monarch.exit_reason": row["exit_reason"],
            "monarch.failure.id": row["id"],
            "monarch.failure.kind": row["kind"],
            "monarch.failure.first_cause": row["first_cause"],
            "monarch.failure.cause_id": row["cause_id"],
            "monarch.endpoint": row["endpoint"],
            "monarch.last_lines": row["last_lines"],
        }
        record = _record(row["timestamp_us"], "error", self._limited(attributes), body=clean(row["message"]), name="monarch.failure")
        add((row["host"], row["pid"], row["mesh_name"], row["rank"]), SCOPE, record)

    def _audit(self, row: dict[str, Any], add: _Add) -> None:
        names = ("who", "scope", "source", "action", "target", "outcome", "detail")
        attributes = self._limited({f"monarch.audit.{name}": row[name] for name in names})
        level, body = "info" if row["outcome"] == "done" else "warn", clean(f"{row['action']} {row['target']}: {row['outcome']}")
        add(_NOWHERE, SCOPE, _record(row["timestamp_us"], level, attributes, body=body, name="monarch.audit"))


class MetricMapper(_Mapper):
    """Metrics: totals of each series, or the rows as they are where deltas are preferred."""

    def __init__(self, settings: OtlpSettings, resources: Resources, now_us: Callable[[], int]) -> None:
        super().__init__(settings, resources)
        self._now_us = now_us
        self._totals = Totals() if settings.temporality == "cumulative" else None

    @property
    def dropped(self) -> int:
        """Rows whose series had no room."""
        return 0 if self._totals is None else self._totals.dropped

    def add(self, rows: Rows) -> Iterator[Data]:
        """Rows of `metric_gauges`, `metric_sums` and `metric_histograms`, by the name of the table."""
        if self._totals is None:
            yield self.metrics(rows)
        else:
            self._totals.add(rows)

    def finish(self, is_due: bool, forced: bool) -> Iterator[Data]:
        """The totals until now."""
        if self._totals is None or not is_due:
            return
        now_us = self._now_us()
        self._totals.forget(now_us - _KEPT_US)
        part: dict[str, list[Any]] = {}
        count = 0
        for table, batch in self._totals.batches(now_us, fresh_gauges=True).items():
            first = 0
            while first < batch.num_rows:
                piece = batch.slice(first, _POINTS - count)
                part[table] = [piece]
                first, count = first + piece.num_rows, count + piece.num_rows
                if count == _POINTS:
                    yield self.metrics(part)
                    part, count = {}, 0
        yield self.metrics(part)

    def metrics(self, rows: Rows) -> Data:
        """Rows of one resource and scope are together; the number is that of the points."""
        self.resources.update()
        resources: dict[str, dict[str, list[Metric]]] = {}
        points: dict[tuple[object, ...], list[Any]] = {}
        items = 0
        for table, kind in _METRICS.items():
            for row in _rows(rows.get(table, ())):
                point = self._point(row, kind)
                if point is None:
                    self._left_out += 1
                    continue
                resource, scope = row["resource_attributes_json"], row["scope_name"]
                temporality, monotonic = row.get("temporality", ""), bool(row.get("is_monotonic"))
                key = (resource, scope, table, row["name"], row["unit"], temporality, monotonic)
                of_metric = points.get(key)
                if of_metric is None:
                    of_metric = points[key] = []
                    of = _TEMPORALITIES.get(temporality, _UNSPECIFIED)
                    data = (
                        Gauge(of_metric)
                        if kind == "gauge"
                        else Sum(of_metric, of, monotonic)
                        if kind == "sum"
                        else Histogram(of_metric, of)
                    )
                    metric = Metric(clean(row["name"]), meaning(row["name"]), clean(row["unit"]), data)
                    resources.setdefault(resource, {}).setdefault(scope, []).append(metric)
                of_metric.append(point)
                items += 1
        made = [
            ResourceMetrics(
                self._resource(self.resources.merged(self.attributes.parsed(resource))),
                [ScopeMetrics(self._scope(scope), metrics, "") for scope, metrics in scopes.items()],
                "",
            )
            for resource, scopes in resources.items()
        ]
        return MetricsData(made), items

    def _point(self, row: dict[str, Any], kind: str) -> NumberDataPoint | HistogramDataPoint | None:
        """The point of a row; None for a row without a value, or with buckets that are malformed."""
        value = value_of(row, "value" if kind == "gauge" else "sum")
        start, end = _nanoseconds(row["start_timestamp_us"] or 0), _nanoseconds(row["timestamp_us"])
        attributes = self._limited(self.attributes.parsed(row["attributes_json"]))
        if kind != "histogram":
            if value is None:
                return None
            is_int = isinstance(value, int) and -(1 << 63) <= value < 1 << 63
            return NumberDataPoint(attributes, start, end, value if is_int else float(value))
        found = histogram(row)
        if found is None:
            return None
        bounds, counts = found
        # The SDK's type has no histogram without a sum or limits; its encoder leaves out None.
        total, least, most = (None if one is None else float(one) for one in (value, value_of(row, "min"), value_of(row, "max")))
        limits: Any = {"sum": total, "min": least, "max": most}
        return HistogramDataPoint(attributes, start, end, sum(counts), bucket_counts=counts, explicit_bounds=bounds, **limits)


# Host, pid, mesh and rank of a record.
_Key = tuple[object, object, object, object]
_Add = Callable[[_Key, str, LogRecord], None]
_NOWHERE = (None, None, None, None)
_LINE = tuple(column.name for column in LOGS.columns)
_METRICS = {"metric_gauges": "gauge", "metric_sums": "sum", "metric_histograms": "histogram"}


def _rows(batches: Sequence[Any]) -> Iterable[dict[str, Any]]:
    for batch in batches:
        names = batch.schema.names
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield dict(zip(names, row, strict=True))


def _listed(links: Any) -> list[dict[str, Any]]:
    return [one for one in links if isinstance(one, dict)] if isinstance(links, list) else []  # pyright: ignore[reportUnknownVariableType]


def _record(
    time_us: int, level: str | None, attributes: Any, *, body: str | None = None, name: str = "", trace: int = 0, span: int = 0
) -> LogRecord:
    when = _nanoseconds(time_us)
    return LogRecord(
        timestamp=when,
        observed_timestamp=when,
        context=set_span_in_context(NonRecordingSpan(SpanContext(trace, span, False, _SAMPLED))) if trace else None,
        severity_text=clean(level) if level else None,
        severity_number=SeverityNumber(_SEVERITIES.get(level.lower(), _numbered(level))) if level else None,
        body=body,
        attributes=attributes,
        event_name=clean(name) or None,
    )


def _numbered(level: str) -> int:
    """Levels of logging that are numbers, and those of programs, such as `Level 25`: 10 is debug, 50 is critical."""
    digits = level.rpartition(" ")[2]
    if not digits.isascii() or not digits.isdigit():
        return 0
    number = int(digits[:6])
    return min(24, 1 + (number // 10) * 4 + (number % 10) * 4 // 10) if number else 0


def _nanoseconds(time_us: int) -> int:
    return min(max(0, time_us * 1000), _MOST_U64)
