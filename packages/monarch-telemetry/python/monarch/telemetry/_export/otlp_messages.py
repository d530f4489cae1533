"""Rows as OTLP requests: bytes of `ExportMetricsServiceRequest`, `ExportLogsServiceRequest` and `ExportTraceServiceRequest`.

Rows of one resource and scope are together in a request, in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from monarch.telemetry._export.metric_names import meaning
from monarch.telemetry._export.metric_totals import histogram, value_of
from monarch.telemetry._export.otlp_resource import Resources
from monarch.telemetry._export.otlp_spans import STATUSES, Span
from monarch.telemetry._export.otlp_values import Attributes, clean, hexadecimal, messages, span_id, trace_id
from monarch.telemetry._tables.facts import LOGS

SCOPE = "monarch"
_SAMPLED = 1
# Bits of the flags of a span: the parent is known to be in this process, or in another one.
_KNOWN_PARENT, _REMOTE_PARENT = 0x100, 0x200
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
_TEMPORALITIES = {"delta": 1, "cumulative": 2}
_MOST_U64 = (1 << 64) - 1


class Request(NamedTuple):
    """The bytes of a request, and how many spans, log records or points are in it."""

    body: bytes
    items: int


class Encoder:
    """Makes requests. `malformed` counts rows that could not be exported, or not with all of their attributes. One thread at a time."""

    def __init__(self, resources: Resources, attributes: Attributes | None = None) -> None:
        self.resources = resources
        self.attributes = attributes if attributes is not None else Attributes()
        self._left_out = 0

    @property
    def malformed(self) -> int:
        return self._left_out + self.attributes.malformed

    def traces(self, spans: Iterable[Span]) -> Request:
        """Spans, from `Spans.take`."""
        proto, items = messages("trace.v1.trace"), 0
        request = messages("collector.trace.v1.trace_service").ExportTraceServiceRequest()
        groups: dict[tuple[int, str], Any] = {}
        resources: dict[int, Any] = {}
        for span in spans:
            group = groups.get((span.process, span.target))
            if group is None:
                of_process = resources.get(span.process)
                if of_process is None:
                    of_process = resources[span.process] = request.resource_spans.add()
                    self._resource(of_process.resource, self.resources.of_process(span.process))
                group = groups[span.process, span.target] = of_process.scope_spans.add()
                group.scope.name = clean(span.target) or SCOPE
            self._span(proto, group.spans, span)
            items += 1
        return Request(request.SerializeToString(), items)

    def _span(self, proto: Any, spans: Any, span: Span) -> None:
        fields = dict(span.fields or {})
        status, about, links = (fields.pop(name, None) for name in ("otel.status_code", "otel.status_description", "otel.links"))
        fields.pop("otel.kind", None)
        began = span.began_us or 0
        flags = _SAMPLED
        if span.around is not None:
            flags |= _KNOWN_PARENT | (_REMOTE_PARENT if span.around[0] != span.process else 0)
        made = spans.add(
            trace_id=span.trace.to_bytes(16, "big"),
            span_id=span_id(span.process, span.number),
            parent_span_id=span.parent,
            name=clean(span.name),
            kind=span.kind,
            flags=flags,
            start_time_unix_nano=_nanoseconds(began),
            end_time_unix_nano=_nanoseconds(max(began, span.ended_us or began)),
        )
        place = {"thread.name": span.thread or None, "code.file.path": span.file, "code.line.number": span.line}
        attributes = {**place, **fields}
        made.attributes.extend(self.attributes.pairs(attributes))
        dropped = self.attributes.dropped(attributes)
        if dropped:
            made.dropped_attributes_count = dropped
        if status is not None:
            made.status.code = STATUSES.get(str(status).lower(), 0)
            if made.status.code == STATUSES["error"] and about is not None:
                made.status.message = clean(str(about))
        if span.kind == proto.Span.SPAN_KIND_CONSUMER and span.parent:
            made.links.add(trace_id=made.trace_id, span_id=span.parent, flags=_SAMPLED)
        for link in _listed(links):
            trace, number = trace_id(link.get("trace_id")), hexadecimal(link.get("span_id"), 16)
            if trace and number:
                made.links.add(trace_id=trace.to_bytes(16, "big"), span_id=number.to_bytes(8, "big"))
            else:
                self._left_out += 1

    def logs(self, batches: Mapping[str, Sequence[Any]]) -> Request:
        """Rows of `logs`, `events`, `failures` and `audit`, by the name of the table."""
        request = messages("collector.logs.v1.logs_service").ExportLogsServiceRequest()
        groups: dict[tuple[object, ...], Any] = {}
        resources: dict[tuple[object, ...], Any] = {}

        def group(source: _Source, scope: str) -> Any:
            found = groups.get((source, scope))
            if found is None:
                of_source = resources.get(source)
                if of_source is None:
                    of_source = resources[source] = request.resource_logs.add()
                    self._resource(of_source.resource, self._source(source))
                made = of_source.scope_logs.add()
                made.scope.name = clean(scope)
                found = groups[source, scope] = made.log_records
            return found

        items = sum(self._lines(batch, group) for batch in batches.get("logs", ()))
        for table, fill in (("events", self._event), ("failures", self._failure), ("audit", self._audit)):
            for row in _rows(batches.get(table, ())):
                fill(row, group)
                items += 1
        return Request(request.SerializeToString(), items)

    def _lines(self, batch: Any, group: _Group) -> int:
        """Adds the rows of a batch of `logs`. There may be many: attributes of lines from one place are made once."""
        columns = [batch.column(name).to_pylist() for name in _LINE]
        places: dict[tuple[object, ...], list[Any]] = {}
        pair = self.attributes.pair
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
                attributes = places[place] = self.attributes.pairs(found)
            when = _nanoseconds(time)
            record = group((host, pid, mesh, rank), logger or SCOPE).add(time_unix_nano=when, observed_time_unix_nano=when)
            record.body.string_value = clean(line)
            record.attributes.extend(attributes)
            record.attributes.append(pair("log.record.original_sequence", seq))
            if level:
                _severity(record, level)
            trace = trace_id(trace_text) if trace_text else 0
            if trace:
                record.trace_id, record.flags = trace.to_bytes(16, "big"), _SAMPLED
                if number:
                    record.span_id = self._span_of(host, pid, number)
        return batch.num_rows

    def _source(self, source: _Source) -> dict[str, Any]:
        names = ("host.name", "process.pid", "monarch.mesh", "monarch.rank")
        return self.resources.merged({name: value for name, value in zip(names, source, strict=True) if value is not None})

    def _span_of(self, host: str, pid: int, number: int) -> bytes:
        """The id of the span that wrote a line; empty where the process of a counted span is not known."""
        if number >> 32:
            return span_id(0, number)
        process = self.resources.process_of(host, pid)
        return b"" if process is None else span_id(process, number)

    def _event(self, row: dict[str, Any], group: _Group) -> None:
        record = group(_NOWHERE, row["target"] or SCOPE).add(event_name=clean(row["name"]))
        _dated(record, row["timestamp_us"])
        _severity(record, row["level"])
        place = {
            "thread.name": row["thread_name"] or None,
            "thread.id": row["thread_id"] or None,
            "code.file.path": row["file"],
            "code.line.number": row["line"],
        }
        self._attributes(record, {**place, **self.attributes.parsed(row["fields_json"])})

    def _failure(self, row: dict[str, Any], group: _Group) -> None:
        record = group((row["host"], row["pid"], row["mesh_name"], row["rank"]), SCOPE).add(event_name="monarch.failure")
        _dated(record, row["timestamp_us"])
        _severity(record, "error")
        record.body.string_value = clean(row["message"])
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
        self._attributes(record, attributes)

    def _audit(self, row: dict[str, Any], group: _Group) -> None:
        record = group(_NOWHERE, SCOPE).add(event_name="monarch.audit")
        _dated(record, row["timestamp_us"])
        _severity(record, "info" if row["outcome"] == "done" else "warn")
        record.body.string_value = clean(f"{row['action']} {row['target']}: {row['outcome']}")
        names = ("who", "scope", "source", "action", "target", "outcome", "detail")
        self._attributes(record, {f"monarch.audit.{name}": row[name] for name in names})

    def _attributes(self, record: Any, attributes: dict[str, Any]) -> None:
        record.attributes.extend(self.attributes.pairs(attributes))
        record.dropped_attributes_count = self.attributes.dropped(attributes)

    def metrics(self, batches: Mapping[str, Sequence[Any]]) -> Request:
        """Rows of `metric_gauges`, `metric_sums` and `metric_histograms`, by the name of the table."""
        request = messages("collector.metrics.v1.metrics_service").ExportMetricsServiceRequest()
        scopes: dict[tuple[str, str], Any] = {}
        resources: dict[str, Any] = {}
        found: dict[tuple[object, ...], Any] = {}
        items = 0
        for table, kind in _METRICS.items():
            for row in _rows(batches.get(table, ())):
                resource, scope = row["resource_attributes_json"], row["scope_name"]
                temporality, monotonic = row.get("temporality", ""), row.get("is_monotonic")
                key = (resource, scope, table, row["name"], row["unit"], temporality, monotonic)
                metric = found.get(key)
                if metric is None:
                    group = scopes.get((resource, scope))
                    if group is None:
                        of_resource = resources.get(resource)
                        if of_resource is None:
                            of_resource = resources[resource] = request.resource_metrics.add()
                            self._resource(of_resource.resource, self.resources.merged(self.attributes.parsed(resource)))
                        group = scopes[resource, scope] = of_resource.scope_metrics.add()
                        group.scope.name = clean(scope) or SCOPE
                    metric = found[key] = getattr(_metric(group, row), kind)
                    if kind != "gauge":
                        metric.aggregation_temporality = _TEMPORALITIES.get(temporality, 0)
                    if kind == "sum":
                        metric.is_monotonic = monotonic
                items += self._point(metric, row, kind)
        return Request(request.SerializeToString(), items)

    def _point(self, metric: Any, row: dict[str, Any], kind: str) -> int:
        """Adds the point of a row; 0 for a row without a value, or with buckets that are malformed."""
        found = histogram(row) if kind == "histogram" else None
        value = value_of(row, "value" if kind == "gauge" else "sum")
        if (kind == "histogram" and found is None) or (kind != "histogram" and value is None):
            self._left_out += 1
            return 0
        point = metric.data_points.add()
        point.time_unix_nano = _nanoseconds(row["timestamp_us"])
        point.start_time_unix_nano = _nanoseconds(row["start_timestamp_us"] or 0)
        point.attributes.extend(self.attributes.pairs(self.attributes.parsed(row["attributes_json"])))
        if found is None:
            if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
                point.as_int = value
            else:
                point.as_double = float(value or 0)
            return 1
        bounds, counts = found
        point.count = sum(counts)
        point.explicit_bounds.extend(bounds)
        point.bucket_counts.extend(counts)
        for name, one in (("sum", value), ("min", value_of(row, "min")), ("max", value_of(row, "max"))):
            if one is not None:
                setattr(point, name, float(one))
        return 1

    def _resource(self, made: Any, attributes: Mapping[str, Any]) -> None:
        made.attributes.extend(self.attributes.pairs(attributes))


# Host, pid, mesh and rank of a record; the key of a source and scope.
_Source = tuple[object, object, object, object]
_Group = Callable[[_Source, str], Any]
_NOWHERE = (None, None, None, None)
_LINE = tuple(column.name for column in LOGS.columns)
_METRICS = {"metric_gauges": "gauge", "metric_sums": "sum", "metric_histograms": "histogram"}


def _rows(batches: Iterable[Any]) -> Iterable[dict[str, Any]]:
    for batch in batches:
        names = batch.schema.names
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield dict(zip(names, row, strict=True))


def _metric(group: Any, row: dict[str, Any]) -> Any:
    name = row["name"]
    return group.metrics.add(name=clean(name), unit=clean(row["unit"]), description=meaning(name))


def _listed(links: Any) -> list[dict[str, Any]]:
    return [one for one in links if isinstance(one, dict)] if isinstance(links, list) else []  # pyright: ignore[reportUnknownVariableType]


def _dated(record: Any, time_us: int) -> None:
    record.time_unix_nano = record.observed_time_unix_nano = _nanoseconds(time_us)


def _severity(record: Any, level: str | None) -> None:
    if level:
        record.severity_text = clean(level)
        record.severity_number = _SEVERITIES.get(level.lower(), _numbered(level))


def _numbered(level: str) -> int:
    """Levels of logging that are numbers, and those of programs, such as `Level 25`: 10 is debug, 50 is critical."""
    digits = level.rpartition(" ")[2]
    if not digits.isascii() or not digits.isdigit():
        return 0
    number = int(digits[:6])
    return min(24, 1 + (number // 10) * 4 + (number % 10) * 4 // 10) if number else 0


def _nanoseconds(time_us: int) -> int:
    return min(max(0, time_us * 1000), _MOST_U64)
