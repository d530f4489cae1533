"""The formats of Prometheus: parsed by the parsers of prometheus_client, with names and labels of every kind."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as text
from support.engine import Engine

from monarch.telemetry._export.metric_totals import Totals
from monarch.telemetry._export.prometheus import CONTENT_TYPES, exposition, negotiate, render
from monarch.telemetry._export.prometheus_names import Metric, families, label_name, labels, plain_name
from monarch.telemetry._tables.catalog import TABLES

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
TABLE = {"gauge": "metric_gauges", "sum": "metric_sums", "histogram": "metric_histograms"}


def row(name: str, value: float = 1, time: int = 9, /, *, kind: str = "gauge", **more: Any) -> tuple[str, Any]:
    prefix = "value" if kind == "gauge" else "sum"
    made = {"name": name, "timestamp_us": time, "start_timestamp_us": 1, "scope_name": "", "unit": "", "temporality": "cumulative"}
    made |= {"attributes_json": "{}", "resource_attributes_json": "{}", "is_monotonic": True, f"{prefix}_f64": value}
    if kind == "histogram":
        made |= {"count": 6, "bounds_json": "[0.5, 1]", "bucket_counts_json": "[1, 2, 3]"}
    schema = TABLES[TABLE[kind]].schema()
    return TABLE[kind], pa.RecordBatch.from_pylist([{field.name: (made | more).get(field.name) for field in schema}], schema=schema)


def totals(*rows: tuple[str, Any], most: int = 1000) -> Totals:
    found = Totals(most)
    for table, batch in rows:
        found.add({table: [batch]})
    return found


def parsed(found: Totals) -> Samples:
    """The samples, which both formats agree on; no name and labels twice."""
    both: list[Samples] = []
    for parse, form in ((text, "text"), (openmetrics, "openmetrics")):
        samples: Samples = {}
        for family in parse(render(found, form).decode()):  # type: ignore[arg-type]
            for one in family.samples:
                key = (one.name, frozenset(one.labels.items()))
                assert key not in samples, key
                samples[key] = one.value
        both.append(samples)
    assert both[0] == both[1]
    return both[0]


def plain(found: Totals) -> dict[str, float]:
    return {name: value for (name, labels), value in parsed(found).items() if not labels}


def test_text_of_each_kind() -> None:
    found = totals(
        row("process.memory.rss_bytes", 2048, unit="By", attributes_json='{"proc": "p0"}'),
        row("tokens", 7, kind="sum", unit="{token}", scope_name="app"),
        row("latency", 4.5, kind="histogram", unit="s"),
    )
    assert render(found).decode() == (
        "# HELP latency_seconds latency, measured by a program\n"
        "# TYPE latency_seconds histogram\n"
        'latency_seconds_bucket{le="0.5"} 1\n'
        'latency_seconds_bucket{le="1.0"} 3\n'
        'latency_seconds_bucket{le="+Inf"} 6\n'
        "latency_seconds_sum 4.5\n"
        "latency_seconds_count 6\n"
        "# HELP process_memory_rss_bytes Memory of a process in use\n"
        "# TYPE process_memory_rss_bytes gauge\n"
        'process_memory_rss_bytes{proc="p0"} 2048.0\n'
        "# HELP tokens_total tokens, measured by app\n"
        "# TYPE tokens_total counter\n"
        'tokens_total{otel_scope_name="app"} 7.0\n'
    )
    opened = render(found, "openmetrics").decode()
    assert opened.endswith("# EOF\n") and "# TYPE tokens counter\n" in opened and "# UNIT latency_seconds seconds\n" in opened
    parsed(found)


def test_empty_totals_have_a_text() -> None:
    assert render(Totals()) == b"" and render(Totals(), "openmetrics") == b"# EOF\n"


def test_of_gauges_the_last_one_counts() -> None:
    assert plain(totals(row("depth", 1, 5), row("depth", 2, 9), row("depth", 3, 7))) == {"depth": 2}


def test_deltas_are_added() -> None:
    rows = [row("n", 2, 5, kind="sum", temporality="delta"), row("n", 3, 6, kind="sum", temporality="delta")]
    rows += [row("h", 4.5, kind="histogram", temporality="delta")] * 2
    rows += [row("h", 1, kind="histogram", temporality="delta", count=1, bounds_json="[0.7]", bucket_counts_json="[1, 0]")]
    found = parsed(totals(*rows))
    assert found["n_total", frozenset()] == 5 and found["h_count", frozenset()] == 13 and found["h_sum", frozenset()] == 10
    buckets = {dict(key).get("le"): value for (name, key), value in found.items() if name == "h_bucket"}
    assert buckets == {"0.5": 2, "0.7": 3, "1.0": 7, "+Inf": 13}


def test_of_cumulative_rows_the_last_one_counts() -> None:
    assert plain(totals(row("n", 9, 5, kind="sum"), row("n", 12, 7, kind="sum"), row("n", 10, 6, kind="sum"))) == {"n_total": 12}


def test_sum_that_can_fall_is_a_gauge() -> None:
    assert plain(totals(row("open", -3, kind="sum", is_monotonic=False))) == {"open": -3}


def test_numbers_of_every_size() -> None:
    values = [0.1, 1e300, -1e-300, math.inf, -math.inf, 5e-324]
    found = totals(*(row(f"v{number}", value) for number, value in enumerate(values)), row("big", value_f64=None, value_u64=(1 << 64) - 1))
    assert plain(found) == {**{f"v{number}": value for number, value in enumerate(values)}, "big": (1 << 64) - 1}
    assert "big 18446744073709551615\n" in render(found).decode()
    assert b"nan NaN\n" in render(totals(row("nan", math.nan)))


def test_histogram_below_zero_has_no_sum_in_openmetrics() -> None:
    found = totals(row("cold", -4, kind="histogram", bounds_json="[-5, 5]"))
    assert b"cold_sum -4.0\n" in render(found)
    names = {one.name for family in openmetrics(render(found, "openmetrics").decode()) for one in family.samples}
    assert names == {"cold_bucket"}


def test_labels_are_escaped() -> None:
    attributes = {"path": 'C:\\new\n"x"', "é": "ü", "n": 3, "yes": True, "list": [1, "a"], "none": None}
    ((name, found), value) = next(iter(parsed(totals(row("depth", 2, attributes_json=json.dumps(attributes)))).items()))
    assert (name, value) == ("depth", 2)
    assert dict(found) == {"path": 'C:\\new\n"x"', "_": "ü", "n": "3", "yes": "true", "list": '[1, "a"]'}


def test_resource_and_scope_are_labels() -> None:
    resource = {"host.name": "a", "monarch.rank": 3}
    found = parsed(totals(row("depth", scope_name="app", resource_attributes_json=json.dumps(resource))))
    assert [*found] == [("depth", frozenset({("host_name", "a"), ("monarch_rank", "3"), ("otel_scope_name", "app")}))]


def test_labels_that_meet_keep_both_values() -> None:
    assert labels({"host.name": "mine", "le": "x", "a.b": 1, "a_b": 2}, {"host.name": "a"}, "") == (
        ("a_b", "1;2"),
        ("exported_host_name", "mine"),
        ("exported_le", "x"),
        ("host_name", "a"),
    )


def test_series_that_become_one_are_added() -> None:
    rows = [row("n", 2, kind="sum", attributes_json=one) for one in ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}')]
    assert [*parsed(totals(*rows)).values()] == [4]


@pytest.mark.parametrize(
    ("metric", "wanted"),
    [
        (Metric("channel.latency.us", "us", "gauge"), ("channel_latency_us", "us")),
        (Metric("endpoint_call_latency_us_histogram", "us", "histogram"), ("endpoint_call_latency_us_histogram", "")),
        (Metric("process.memory.rss_bytes", "By", "gauge"), ("process_memory_rss_bytes", "bytes")),
        (Metric("endpoint_message_size", "By", "histogram"), ("endpoint_message_size_bytes", "bytes")),
        (Metric("requests_total", "{call}", "counter"), ("requests", "")),
        (Metric("9lives", "", "gauge"), ("_9lives", "")),
        (Metric("日本", "", "gauge"), ("metric", "")),
        (Metric("us", "us", "gauge"), ("us", "")),
    ],
)
def test_names_have_their_unit_once(metric: Metric, wanted: tuple[str, str]) -> None:
    assert families([metric])[metric] == wanted


def test_names_that_meet_differ() -> None:
    metrics = [
        Metric("a_b", "", "gauge"),
        Metric("a.b", "", "gauge"),
        Metric("a-b", "s", "gauge"),
        Metric("a_b", "", "counter"),
        Metric("a_b", "", "histogram"),
        Metric("a_b_sum", "", "gauge"),
        Metric("a.b.total", "", "gauge"),
    ]
    found = families(metrics)
    assert len({*found.values()}) == len(metrics) and "a_b" in {family.name for family in found.values()}
    # An added or removed metric renames none of the others.
    assert families([metrics[0], metrics[2]])[metrics[2]] == found[metrics[2]]
    kinds = {"gauge": "gauge", "counter": "sum", "histogram": "histogram"}
    parsed(totals(*(row(one.name, 1, kind=kinds[one.kind], unit=one.unit) for one in metrics)))


NAMES = st.text(st.sampled_from("ab._:é9-"), min_size=1, max_size=6)
ATTRIBUTES = st.dictionaries(NAMES, st.text(max_size=6) | st.integers(), max_size=3).map(json.dumps)
ROWS = st.builds(
    lambda name, kind, unit, attributes, resource, value: row(
        name, value, kind=kind, unit=unit, attributes_json=attributes, resource_attributes_json=resource
    ),
    NAMES,
    st.sampled_from([*TABLE]),
    st.sampled_from(["", "s", "By", "a", "%"]),
    ATTRIBUTES,
    ATTRIBUTES,
    st.floats(0, 1e6),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, max_size=8))
def test_any_rows_can_be_parsed(rows: list[tuple[str, Any]]) -> None:
    parsed(totals(*rows))


@given(st.text(max_size=10))
def test_any_name_becomes_one_of_prometheus(name: str) -> None:
    assert plain_name(name).isascii() and not plain_name(name)[0].isdigit()
    assert label_name(name).isidentifier() and not label_name(name).startswith("__")


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (None, "text"),
        ("", "text"),
        ("*/*", "text"),
        ("application/openmetrics-text", "openmetrics"),
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;q=0.4,text/plain;version=0.0.4;q=0.3",
            "openmetrics",
        ),
        ("text/plain;version=0.0.4;q=0.9, application/openmetrics-text;q=0.5", "text"),
        ("application/openmetrics-text;version=2.0.0,text/plain;q=0.1", "text"),
        ("application/openmetrics-text;q=nan", "text"),
        ("text/html", "text"),
        (";;,q", "text"),
    ],
)
def test_format_is_negotiated(accept: str | None, wanted: str) -> None:
    assert negotiate(accept) == wanted


def test_rows_without_room_are_counted() -> None:
    found = totals(row("a"), row("b"), row("c"), row("a", 5, 20), most=2)
    assert plain(found) == {"a": 5, "b": 1} and found.dropped == 1
    found.forget(10)
    assert plain(found) == {"a": 5}


def as_table(found: Totals) -> list[Any]:
    return [pa.RecordBatch.from_pylist(found.table(), schema=TABLES["metric_totals"].schema())]


def test_metrics_of_a_job_are_asked_in_sql() -> None:
    first = totals(
        row("depth", 4, 100),
        row("n", 7, kind="sum", temporality="delta"),
        row("n", 5, kind="sum", temporality="delta"),
        row("same", 7, kind="sum", temporality="delta", is_monotonic=False),
        row("latency", 4.5, kind="histogram", unit="s"),
    )
    second = totals(row("depth", 5, 99), row("n", 1, kind="sum"), row("latency", 0.5, kind="histogram", unit="s"), row("only", 3))
    engine = Engine({"metric_totals": as_table(first)}, {"metric_totals": as_table(second)})
    content_type, body = exposition(lambda sql: engine.ask(sql).table, "application/openmetrics-text")
    assert content_type == CONTENT_TYPES["openmetrics"]
    found = {family.name: family.type for family in openmetrics(body.decode())}
    assert found == {"depth": "gauge", "n": "counter", "same": "gauge", "latency_seconds": "histogram", "only": "gauge"}
    samples = {one.name: one.value for family in openmetrics(body.decode()) for one in family.samples}
    assert (samples["depth"], samples["n_total"], samples["same"], samples["only"]) == (4, 13, 7, 3)
    assert (samples["latency_seconds_count"], samples["latency_seconds_sum"]) == (12, 5)
    assert exposition(lambda sql: engine.ask(sql).table)[0] == CONTENT_TYPES["text"]


def test_rows_of_totals_that_are_malformed_are_counted() -> None:
    rows = totals(row("a"), row("latency", kind="histogram")).table()
    rows += [{**rows[1], "bounds_json": "[", "name": "b"}, {**rows[0], "kind": "summary", "name": "c"}]
    found = Totals.of_table([pa.RecordBatch.from_pylist(rows, schema=TABLES["metric_totals"].schema())])
    assert {key.name for key, _ in found.series()} == {"a", "latency"} and found.dropped == 2
    assert Totals.of_table(as_table(totals(row("a"), row("b"))), 1).dropped == 1


def test_series_survive_their_table() -> None:
    kinds = [row("a", 2), row("b", 3, kind="sum"), row("c", 4.5, kind="histogram"), row("d", -1, kind="sum", is_monotonic=False)]
    found = totals(*kinds, row("big", value_f64=None, value_u64=(1 << 64) - 1))
    assert parsed(Totals.of_table(as_table(found))) == parsed(found)


def test_unmeasured_gauges_are_forgotten() -> None:
    found = totals(row("a", 1, 10), row("rare", 1, 10), row("b", 1, 90), row("n", 1, 10, kind="sum"))
    found.forget_gauges(100, {"rare": 95}, 20)
    assert {key.name for key, _ in found.series()} == {"rare", "b", "n"}


def test_gauges_are_exported_once_for_each_row() -> None:
    found = totals(row("depth", 4, 100), row("n", 7, 100, kind="sum"))
    assert {*found.batches(200, fresh_gauges=True)} == {"metric_gauges", "metric_sums"}
    assert {*found.batches(200, fresh_gauges=True)} == {"metric_sums"}
    # A row may be added after an export that is later than the time of the row.
    found.add({TABLE["gauge"]: [row("depth", 5, 150)[1]]})
    assert found.batches(300, fresh_gauges=True)["metric_gauges"].to_pylist()[0]["timestamp_us"] == 150
    assert {*found.batches(300)} == {"metric_gauges", "metric_sums"}
