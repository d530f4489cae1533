"""Rows as OTLP: encoded by the SDK, decoded with opentelemetry-proto, field by field."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource

from monarch.telemetry._export.otlp_records import LogMapper, MetricMapper, SpanMapper
from monarch.telemetry._export.otlp_resource import Resources, kubernetes
from monarch.telemetry._export.otlp_settings import read
from monarch.telemetry._export.otlp_spans import Span
from monarch.telemetry._export.otlp_values import Attributes, span_id
from monarch.telemetry._tables.catalog import TABLES

TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
WIRE = 0x00F067AA0BA902B7


def batch(table: str, *rows: dict[str, Any]) -> Any:
    """Columns that a row does not have are empty."""
    empty = {"text": "", "u64": 0, "i64": 0, "i32": 0, "f64": 0.0, "bool": False}
    one = TABLES[table]
    filled = [{column.name: None if column.nullable else empty[column.kind] for column in one.columns} | row for row in rows]
    return pa.RecordBatch.from_pylist(filled, schema=one.schema())


class Mapping:
    """The mappers of a collector with one proc."""

    def __init__(self, replaced: str = "", **variables: str) -> None:
        settings = read({**variables, "OTEL_RESOURCE_ATTRIBUTES": replaced})
        chosen = settings.resource if replaced else {}
        resources = Resources({"host.name": "node-1", "monarch.job": "train"}, chosen)
        resources.add("hosts", batch("hosts", {"host_id": 9, "name": "node-2"}))
        resources.add("meshes", batch("meshes", {"id": 4, "given_name": "trainers"}))
        resources.add("procs", batch("procs", {"proc_id": 1, "host_id": 9, "mesh_id": 4, "rank": 3, "pid": 1234}))
        self.spans, self.logs = SpanMapper(settings, resources), LogMapper(settings, resources)
        self.metrics = MetricMapper(settings, resources, lambda: 0)


def value(one: Any) -> Any:
    kind = one.WhichOneof("value")
    if kind == "array_value":
        return [value(item) for item in one.array_value.values]
    if kind == "kvlist_value":
        return plain(one.kvlist_value.values)
    return None if kind is None else getattr(one, kind)


def plain(pairs: Any) -> dict[str, Any]:
    return {pair.key: value(pair.value) for pair in pairs}


def the(items: Any) -> Any:
    (one,) = items
    return one


def traces(*spans: Span, by: Mapping | None = None) -> Any:
    return encode_spans((by or Mapping()).spans.spans(spans))


def span(number: int = 1, **more: Any) -> Span:
    return Span(1, number, **{"name": "work", "target": "app", "began_us": 100, "ended_us": 900, "trace": TRACE, "fields": {}, **more})


def test_span_has_ids_times_and_its_resource() -> None:
    resource = the(traces(span(thread="7", file="a.py", line=3, fields={"step": 4})).resource_spans)
    assert plain(resource.resource.attributes) == {
        "service.name": "monarch",
        "telemetry.sdk.name": "monarch",
        "host.name": "node-2",
        "monarch.job": "train",
        "monarch.mesh": "trainers",
        "monarch.rank": 3,
        "process.pid": 1234,
    }
    scope = the(resource.scope_spans)
    one = the(scope.spans)
    assert scope.scope.name == "app" and one.name == "work" and one.kind == one.SPAN_KIND_INTERNAL
    assert (
        one.trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"
        and int.from_bytes(one.span_id, "big") == span_id(1, 1)
        and one.parent_span_id == b""
    )
    assert (one.start_time_unix_nano, one.end_time_unix_nano) == (100_000, 900_000)
    assert plain(one.attributes) == {"thread.name": "7", "code.file.path": "a.py", "code.line.number": 3, "step": 4}
    assert one.status.code == 0 and not one.links and one.flags == 0x100


def test_reserved_fields_are_status_and_links() -> None:
    fields = {
        "otel.kind": "server",
        "otel.status_code": "ERROR",
        "otel.status_description": "boom",
        "otel.links": [{"trace_id": f"{TRACE:032x}", "span_id": f"{WIRE:016x}"}, {"trace_id": "?"}, 3],
    }
    by = Mapping()
    one = the(the(the(traces(span(fields=fields, kind=2), by=by).resource_spans).scope_spans).spans)
    assert (one.kind, one.status.code, one.status.message) == (one.SPAN_KIND_SERVER, 2, "boom")
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in one.links] == [(f"{TRACE:032x}", f"{WIRE:016x}")]
    assert not one.attributes and by.spans.malformed == 1


def test_receiver_span_of_a_cast_links_the_sender() -> None:
    parent = span_id(2, WIRE)
    one = the(the(the(traces(span(kind=5, around=(2, WIRE), parent=parent)).resource_spans).scope_spans).spans)
    assert one.kind == one.SPAN_KIND_CONSUMER and int.from_bytes(one.parent_span_id, "big") == parent
    assert (the(one.links).trace_id, the(one.links).span_id) == (one.trace_id, one.parent_span_id)
    assert one.flags == 0x300


def test_spans_of_one_process_and_target_are_together() -> None:
    other = span(4)
    other.process = 77
    request = traces(span(1), span(2), span(3, target="other"), other)
    assert [[len(scope.spans) for scope in resource.scope_spans] for resource in request.resource_spans] == [[2, 1], [1]]
    assert plain(request.resource_spans[1].resource.attributes)["host.name"] == "node-1"


def test_span_that_ends_early_has_no_duration() -> None:
    one = the(the(the(traces(span(began_us=100, ended_us=50)).resource_spans).scope_spans).spans)
    assert one.start_time_unix_nano == one.end_time_unix_nano == 100_000


def test_limits_of_attributes_are_counted() -> None:
    fields = {"a": "x" * 50, "b": 2, "c": 3}
    one = the(
        the(
            the(
                traces(
                    span(fields=fields), by=Mapping(OTEL_ATTRIBUTE_COUNT_LIMIT="2", OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT="5")
                ).resource_spans
            ).scope_spans
        ).spans
    )
    assert plain(one.attributes) == {"a": "xxxxx", "b": 2} and one.dropped_attributes_count == 1


def logs(by: Mapping | None = None, /, **rows: Any) -> Any:
    return encode_logs((by or Mapping()).logs.records({table: [one] for table, one in rows.items()}))


def test_line_has_stream_severity_and_trace() -> None:
    row = {"timestamp_us": 5, "seq": 7, "host": "node-2", "proc": "trainers-3", "pid": 1234, "mesh_name": "trainers", "rank": 3}
    row |= {"actor_id": 11, "stream": "logging", "level": "WARNING", "logger": "app.train", "line": "slow"}
    resource = the(logs(logs=batch("logs", {**row, "trace_id": f"{TRACE:032x}", "span_id": 1})).resource_logs)
    found = plain(resource.resource.attributes)
    assert found == {
        "service.name": "monarch",
        "telemetry.sdk.name": "monarch",
        "host.name": "node-2",
        "monarch.job": "train",
        "monarch.mesh": "trainers",
        "monarch.rank": 3,
        "process.pid": 1234,
    }
    scope = the(resource.scope_logs)
    one = the(scope.log_records)
    assert scope.scope.name == "app.train" and one.body.string_value == "slow"
    assert (one.severity_number, one.severity_text, one.time_unix_nano) == (13, "WARNING", 5000)
    assert one.trace_id.hex() == f"{TRACE:032x}" and int.from_bytes(one.span_id, "big") == span_id(1, 1) and one.flags == 1
    assert plain(one.attributes) == {
        "monarch.stream": "logging",
        "monarch.proc": "trainers-3",
        "monarch.actor.id": 11,
        "log.record.original_sequence": 7,
    }


def test_printed_line_has_no_severity() -> None:
    one = the(the(the(logs(logs=batch("logs", {"stream": "stderr", "line": "x"})).resource_logs).scope_logs).log_records)
    assert one.severity_number == 0 and one.severity_text == "" and not one.trace_id
    assert plain(one.attributes)["log.iostream"] == "stderr"


def test_span_id_of_an_unknown_process_is_omitted() -> None:
    rows = [{"trace_id": f"{TRACE:032x}", "span_id": number, "host": "elsewhere", "pid": 1234} for number in (1, WIRE)]
    records = the(the(logs(logs=batch("logs", *rows)).resource_logs).scope_logs).log_records
    assert [record.span_id.hex() for record in records] == ["", f"{WIRE:016x}"]


@pytest.mark.parametrize(
    ("level", "number"),
    [("debug", 5), ("INFO", 9), ("Level 25", 11), ("30", 13), ("critical", 21), ("99", 24), ("0", 0), ("odd", 0), ("٣٠", 0), (None, 0)],
)
def test_severities(level: str | None, number: int) -> None:
    one = the(the(the(logs(logs=batch("logs", {"level": level})).resource_logs).scope_logs).log_records)
    assert one.severity_number == number


def test_events_failures_and_audit_are_named_records() -> None:
    request = logs(
        events=batch("events", {"name": "loaded", "target": "user", "level": "info", "fields_json": '{"step": [1, {"a": null}]}'}),
        failures=batch("failures", {"message": "boom", "kind": "user", "first_cause": True, "host": "node-2", "traceback": "Traceback"}),
        audit=batch("audit", {"who": "me", "action": "kill", "target": "job", "outcome": "refused"}),
    )
    found = {one.event_name: one for resource in request.resource_logs for scope in resource.scope_logs for one in scope.log_records}
    assert plain(found["loaded"].attributes) == {"step": [1, {"a": None}]}
    failure = plain(found["monarch.failure"].attributes)
    assert (
        failure["exception.message"] == "boom" and failure["exception.stacktrace"] == "Traceback" and failure["monarch.failure.first_cause"]
    )
    assert found["monarch.failure"].severity_number == 17
    assert found["monarch.audit"].body.string_value == "kill job: refused" and found["monarch.audit"].severity_number == 13


def metrics(by: Mapping | None = None, /, **rows: Any) -> Any:
    data, items = (by or Mapping()).metrics.metrics({table: [one] for table, one in rows.items()})
    request = encode_metrics(data)
    found = [one for resource in request.resource_metrics for scope in resource.scope_metrics for one in scope.metrics]
    assert items == sum(len(getattr(one, one.WhichOneof("data")).data_points) for one in found)
    return request


def only(request: Any) -> Any:
    return the(the(the(request.resource_metrics).scope_metrics).metrics)


SERIES = {
    "name": "tokens",
    "unit": "{token}",
    "scope_name": "app",
    "timestamp_us": 9,
    "start_timestamp_us": 4,
    "attributes_json": '{"k": "v"}',
}


def test_gauge() -> None:
    by = Mapping("service.name=mine,host.name=named")
    rows = [{**SERIES, "value_f64": 1.5}, {**SERIES, "value_i64": -3}, {**SERIES, "value_u64": (1 << 64) - 1}, SERIES]
    request = metrics(
        by, metric_gauges=batch("metric_gauges", *({**row, "resource_attributes_json": '{"monarch.rank": 2}'} for row in rows))
    )
    resource = the(request.resource_metrics)
    attributes = {"service.name": "mine", "telemetry.sdk.name": "monarch", "host.name": "named", "monarch.job": "train", "monarch.rank": 2}
    assert plain(resource.resource.attributes) == attributes and the(resource.scope_metrics).scope.name == "app"
    one = only(request)
    assert (one.name, one.unit, one.WhichOneof("data")) == ("tokens", "{token}", "gauge")
    points = one.gauge.data_points
    assert [getattr(point, point.WhichOneof("value")) for point in points] == [1.5, -3, float((1 << 64) - 1)]
    assert (points[0].time_unix_nano, plain(points[0].attributes)) == (9000, {"k": "v"})
    assert by.metrics.malformed == 1  # the row without a value


@pytest.mark.parametrize(("text", "number"), [("delta", 1), ("cumulative", 2), ("odd", 0)])
def test_sum(text: str, number: int) -> None:
    one = only(metrics(metric_sums=batch("metric_sums", {**SERIES, "temporality": text, "is_monotonic": True, "sum_u64": 8})))
    assert one.sum.aggregation_temporality == number and one.sum.is_monotonic and the(one.sum.data_points).as_int == 8


def histogram(**more: Any) -> Any:
    return batch("metric_histograms", {**SERIES, "name": "latency", "temporality": "delta", **more})


def test_histogram() -> None:
    rows = histogram(count=6, sum_f64=4.5, min_f64=0.1, max_i64=3, bounds_json="[0.5, 1]", bucket_counts_json="[1, 2, 3]")
    point = the(only(metrics(metric_histograms=rows)).histogram.data_points)
    assert (point.count, point.sum, point.min, point.max) == (6, 4.5, 0.1, 3)
    assert [*point.explicit_bounds] == [0.5, 1.0] and [*point.bucket_counts] == [1, 2, 3]


def test_histogram_without_buckets_has_its_count() -> None:
    point = the(
        only(metrics(metric_histograms=histogram(count=6, sum_u64=5, bounds_json="[]", bucket_counts_json="[]"))).histogram.data_points
    )
    assert point.count == 6 and [*point.bucket_counts] == [6] and not point.HasField("min")


@pytest.mark.parametrize(
    ("bounds", "counts"),
    [
        ("[1, 1]", "[1, 2, 3]"),
        ("[1]", "[6]"),
        ("[2, 1]", "[1, 2, 3]"),
        ("[1, 2]", "[1, 2, 4]"),
        ("[1]", "[-1, 7]"),
        ("?", "[]"),
        ("[NaN]", "[3, 3]"),
    ],
)
def test_malformed_buckets_are_left_out_and_counted(bounds: str, counts: str) -> None:
    by = Mapping()
    metrics(by, metric_histograms=histogram(count=6, bounds_json=bounds, bucket_counts_json=counts))
    assert by.metrics.malformed == 1


def test_metrics_of_monarch_have_a_description() -> None:
    row = {**SERIES, "name": "mailbox.posts", "temporality": "delta", "sum_u64": 1}
    assert only(metrics(metric_sums=batch("metric_sums", row))).description.startswith("Messages that mailboxes got")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=()), max_size=5), JSON, max_size=5))
def test_any_json_becomes_attributes(fields: dict[str, Any]) -> None:
    by = Attributes()
    parsed = by.parsed(json.dumps(fields))
    kept, dropped = by.limited(parsed)
    assert (dropped, by.malformed) == (0, 0)
    record = LogRecord(attributes=kept, timestamp=1)
    ((made,),) = (scope.log_records for scope in the(encode_logs([ReadableLogRecord(record, Resource({}))]).resource_logs).scope_logs)
    assert plain(made.attributes).keys() == kept.keys() and made.SerializeToString()


@given(st.text(max_size=20))
def test_no_text_is_an_error(text: str) -> None:
    assert isinstance(Attributes().parsed(text), dict)


def test_deep_json_is_text_below_a_depth() -> None:
    deep: Any = "end"
    for _ in range(50):
        deep = [deep]
    by = Attributes()
    found = by.limited({"deep": deep})[0]["deep"]
    for _ in range(8):
        found = the(found)
    assert json.loads(found) == json.loads("[" * 42 + '"end"' + "]" * 42)
    assert by.parsed("[" * 100_000) == {} and by.malformed == 1


def test_kubernetes_names_come_from_environment_or_pod(tmp_path: Any) -> None:
    file = tmp_path / "namespace"
    file.write_text("team-a\n")
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "pod-1"}
    assert kubernetes({"HOSTNAME": "pod-1"}, file) == {}
    assert kubernetes(inside, file) == {"k8s.namespace.name": "team-a", "k8s.pod.name": "pod-1"}
    assert kubernetes({**inside, "POD_NAME": "named", "POD_NAMESPACE": "ns"}, file) == {"k8s.namespace.name": "ns", "k8s.pod.name": "named"}
    assert kubernetes(inside, tmp_path / "none") == {"k8s.pod.name": "pod-1"}
