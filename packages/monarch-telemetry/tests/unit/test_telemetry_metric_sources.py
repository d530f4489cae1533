"""Monarch's own metrics: every name has rows, and their values are those of the tables they come from."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from monarch.telemetry._collector.keeping import schemas
from monarch.telemetry._engine.one_host import OneHost
from monarch.telemetry._export import metric_names
from monarch.telemetry._export.metric_names import BY_NAME, METRICS
from monarch.telemetry._export.metric_sources import LATENCY_BOUNDS_US, SOURCES, Source, Window, computed, measure, merged, process_memory
from monarch.telemetry._export.metric_totals import Totals, value_of
from monarch.telemetry._ingest.metrics import Metrics
from monarch.telemetry._ingest.places import Places
from monarch.telemetry._ingest.rows import Rows
from monarch.telemetry._tables.catalog import TABLES

SECOND = 1_000_000
WINDOW = Window(100 * SECOND, 200 * SECOND, started_us=5)
IN, BEFORE = 150 * SECOND, 99 * SECOND
# Metrics of 0.7, as the contract lists them.
NAMES_07 = (
    "mailbox.posts mailbox.undeliverable_messages actor.messages_sent actor.messages_received actor.message_receive_errors"
    " actor.message_queue_size actor.message_handler_duration.ns channel.connections channel.reconnections channel.errors"
    " channel.latency.us channel.throughput.bytes channel.throughput.messages channel.remote_message_send_size message.e2e_latency.us"
    " proc_mesh.active_procs proc_mesh.proc_failures proc_mesh.actor_failures endpoint_message_size process.memory.rss_bytes"
    " process.memory.vm_bytes py_messages_handled endpoint_broadcast_error endpoint_broadcast_throughput"
).split() + [
    f"endpoint_{adverb}_{what}"
    # Without `choose`, which is counted as `call_one`.
    for adverb in ("call", "call_one", "stream")
    for what in ("error", "throughput", "latency_us_histogram")
]


def batch(table: str, *rows: dict[str, Any]) -> Any:
    empty = {"text": "", "u64": 0, "i64": 0, "i32": 0, "f64": 0.0, "bool": False}
    one = TABLES[table]
    filled = [{column.name: None if column.nullable else empty[column.kind] for column in one.columns} | row for row in rows]
    return pa.RecordBatch.from_pylist(filled, schema=one.schema())


def calls(side: str, adverb: str, count: int, window: int = IN, **more: Any) -> dict[str, Any]:
    row = {"window_us": window, "side": side, "mesh_name": "trainers", "endpoint": "step", "adverb": adverb, "count": count}
    buckets = json.dumps([[64, count - 1], [1024, 1]]) if count else "[]"
    numbers = {
        "errors": 1,
        "latency_sum_us": 1500,
        "latency_max_us": 1000,
        "latency_buckets_json": buckets,
        "bytes_in": 10,
        "bytes_out": 20,
    }
    return row | numbers | more


ROWS: dict[str, list[dict[str, Any]]] = {
    "endpoint_stats": [
        *(calls("client", adverb, 4) for adverb in metric_names.ADVERBS),
        calls("server", "call", 7),
        calls("client", "call", 1000, BEFORE - 40 * SECOND),
        calls("client", "rref", 1),
    ],
    "messages": [{"id": 1, "timestamp_us": IN}, {"id": 2, "timestamp_us": IN}, {"id": 3, "timestamp_us": BEFORE}],
    "message_status_events": [
        {"id": 1, "message_id": 1, "status": "active", "timestamp_us": IN},
        {"id": 2, "message_id": 1, "status": "failed", "timestamp_us": IN},
        {"id": 3, "message_id": 2, "status": "failed", "timestamp_us": IN},
    ],
    "sent_messages": [{"timestamp_us": IN}, {"timestamp_us": WINDOW.until_us}],
    "snapshots": [{"snapshot_id": 1, "snapshot_ts": IN}, {"snapshot_id": 2, "snapshot_ts": IN + 1}],
    "actor_nodes": [
        {"snapshot_id": 1, "node_id": 7, "queue_depth": 50},
        {"snapshot_id": 2, "node_id": 7, "queue_depth": 3},
        {"snapshot_id": 2, "node_id": 8, "queue_depth": 4},
    ],
    "links": [
        {"from_host": "a", "to_host": "b", "state": "up", "rtt_us": 90, "reconnects": 2, "bytes_out": 500},
        {"from_host": "a", "to_host": "b", "state": "down", "rtt_us": 70, "reconnects": 1, "bytes_out": 50},
    ],
    "procs": [
        {"pid": 1},
        {"pid": 2, "ended_us": IN, "signal": 9},
        {"pid": 3, "ended_us": IN, "exit_code": 0},
        {"ended_us": BEFORE, "exit_code": 1},
    ],
    "actor_status_events": [{"timestamp_us": IN, "new_status": "Failed"}, {"timestamp_us": IN, "new_status": "Idle"}],
    "resources": [
        {"timestamp_us": IN, "host": "a", "cpu_pct": 10.0, "rss_bytes": 1000},
        {"timestamp_us": IN + 2, "host": "a", "cpu_pct": 20.5, "rss_bytes": 2000},
        {"timestamp_us": IN, "host": "a", "proc": "p0", "cpu_pct": 5.0, "rss_bytes": 300, "threads": 4, "fds": 8},
        {"timestamp_us": IN, "host": "a", "gpu": 0, "gpu_util_pct": 75.0, "gpu_memory_bytes": 1 << 33},
    ],
    "rdma_ops": [
        {"timestamp_us": IN, "op": "read", "path": "local", "bytes": 10, "latency_us": 3, "retries": 1},
        {"timestamp_us": IN, "op": "read", "path": "local", "bytes": 20, "latency_us": 5, "error": "gone"},
    ],
    "rdma_buffers": [{"proc": "p0", "bytes": 4096}, {"proc": "p0", "bytes": 1}],
    "fs_events": [{"timestamp_us": IN, "event": "fault", "bytes": 7}, {"timestamp_us": IN, "event": "mount"}],
    "mounts": [{"host": "a", "target": "/data", "bytes_held": 9, "faults": 3}],
    "hosts": [{"state": "ready"}, {"state": "ready"}, {"state": "lost"}],
    "job_events": [{"timestamp_us": IN, "event": "healed", "kind": "slurm"}],
    "failures": [{"timestamp_us": IN, "kind": "user", "first_cause": True}, {"timestamp_us": IN, "kind": "user"}],
    "telemetry_status": [
        {"host": "a", "table_name": "messages", "rows": 5, "dropped": 2, "sample_weight": 2.5},
        {"host": "b", "table_name": "messages", "rows": 6, "sample_weight": 1.0},
    ],
}
Points = dict[tuple[str, str], Any]


def measured(rows: Mapping[str, list[dict[str, Any]]], window: Window = WINDOW) -> dict[str, Any]:
    engine = OneHost({table: [batch(table, *some)] for table, some in rows.items()})
    return measure(lambda sql: engine.ask(sql).table, window, {"host.name": "a"})


def points(found: Mapping[str, Any]) -> Points:
    """Values by name and attributes; a histogram is its row."""
    values: Points = {}
    for table, one in found.items():
        for row in one.to_pylist():
            key = (row["name"], ",".join(map(str, json.loads(row["attributes_json"]).values())))
            assert key not in values
            values[key] = row if table == "metric_histograms" else value_of(row, "value" if table == "metric_gauges" else "sum")
    return values


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return measured(ROWS)


@pytest.mark.parametrize("source", [source for source in SOURCES if source.selects is not None], ids=lambda source: source.name)
def test_selection_equals_the_answer_of_its_statement(source: Source) -> None:
    batches = [batch(source.name, row) for row in ROWS[source.name]]
    engine = OneHost({source.name: batches})
    for window in (WINDOW, Window(0, 1), Window(0, 1 << 62)):
        expected = engine.ask(source.statement(window)).table
        selected = source.selected(schemas()[source.name], batches, window)
        assert selected.column_names == expected.column_names
        assert sorted(selected.to_pylist(), key=str) == sorted(expected.to_pylist(), key=str)
    assert all(source.selected(schemas()["links"], [], WINDOW) is None for source in SOURCES if source.selects is None)


def test_names_of_torchmonarch_are_kept() -> None:
    assert {*NAMES_07} <= BY_NAME.keys() and len(BY_NAME) == len(METRICS)
    new = BY_NAME.keys() - {*NAMES_07}
    assert all(name.startswith("monarch.") for name in new)
    assert {name.split(".")[1] for name in new} >= {"rdma", "fs", "job", "gpu"}


def test_every_metric_has_rows_of_its_kind(found: dict[str, Any]) -> None:
    kinds = {"metric_gauges": "gauge", "metric_sums": "counter", "metric_histograms": "histogram"}
    rows = {(kinds[table], row["name"], row["unit"]) for table, one in found.items() for row in one.to_pylist()}
    assert rows == {(one.kind, one.name, one.unit) for one in METRICS if one.source != "/proc"}


def test_attributes_are_those_of_the_table(found: dict[str, Any]) -> None:
    for one in found.values():
        for row in one.to_pylist():
            # Rows name actors, which are in no series.
            assert {*json.loads(row["attributes_json"])} == {*BY_NAME[row["name"]].attributes, *OF_ACTORS.get(row["name"], ())}, row
            assert (row["timestamp_us"], row["scope_name"]) == (WINDOW.until_us, "monarch")
            assert json.loads(row["resource_attributes_json"]) == {"host.name": "a"}


_PAIR = ("actor_id", "dest_actor_id")
OF_ACTORS = {
    "mailbox.posts": _PAIR,
    "mailbox.undeliverable_messages": _PAIR,
    "actor.messages_sent": _PAIR[:1],
    "actor.message_queue_size": _PAIR[:1],
    "proc_mesh.actor_failures": _PAIR[:1],
}
VALUES: dict[tuple[str, str], float] = {
    ("endpoint_call_throughput", "step,trainers"): 4,
    ("endpoint_broadcast_error", "step,trainers"): 1,
    ("py_messages_handled", "step,trainers"): 7,
    ("actor.message_receive_errors", "step,trainers"): 1,
    ("channel.throughput.messages", ""): 4 * 4 + 1 + 4 * 3 + 1,
    ("mailbox.posts", "0,0"): 5,
    ("mailbox.undeliverable_messages", "0,0"): 1,
    ("actor.messages_sent", "0"): 1,
    ("actor.message_queue_size", "7"): 3,
    ("actor.message_queue_size", "8"): 4,
    ("channel.connections", "a,b"): 1,
    ("channel.latency.us", "a,b"): 90,
    ("channel.reconnections", "a,b"): 3,
    ("channel.errors", "a,b"): 4,
    ("channel.throughput.bytes", "a,b"): 550,
    ("proc_mesh.active_procs", ""): 1,
    ("proc_mesh.proc_failures", ""): 1,
    ("proc_mesh.actor_failures", "0"): 1,
    ("monarch.host.cpu", "a"): 20.5,
    ("process.memory.rss_bytes", "a,p0"): 300,
    ("monarch.gpu.utilization", "0,a"): 75.0,
    ("monarch.rdma.operations", "read,local"): 2,
    ("monarch.rdma.errors", "read,local"): 1,
    ("monarch.rdma.io", "read,local"): 30,
    ("monarch.rdma.buffer_memory", "p0"): 4097,
    ("monarch.fs.io", "fault"): 7,
    ("monarch.fs.faults", "a,/data"): 3,
    ("monarch.job.hosts", "ready"): 2,
    ("monarch.job.failures", "user"): 1,
    ("monarch.telemetry.rows", "messages"): 11,
    ("monarch.telemetry.dropped", "a,messages"): 2,
}


@pytest.mark.parametrize("key", VALUES, ids="-".join)
def test_values(found: dict[str, Any], key: tuple[str, str]) -> None:
    assert points(found)[key] == VALUES[key]


def test_posts_of_the_busiest_pairs_name_their_actors() -> None:
    sent = [{"id": n, "timestamp_us": IN, "from_actor_id": 1, "to_actor_id": 2**63 + n % 40} for n in range(60)]
    found = measured({"messages": sent})
    values = {key: value for key, value in points(found).items() if key[0] == "mailbox.posts"}
    assert len(values) == 33 and values["mailbox.posts", f"1,{2**63}"] == 2 and values["mailbox.posts", ""] == 60 - 20 * 2 - 12
    totals = Totals()
    totals.add({table: [one] for table, one in found.items()})
    assert points(totals.batches(400 * SECOND))["mailbox.posts", ""] == 60


def test_queues_of_the_fullest_actors_are_added_up() -> None:
    nodes = [{"snapshot_id": 1, "node_id": n, "queue_depth": max(0, n - 60)} for n in range(100)]
    totals = Totals()
    for seconds, depth in ((0, 1), (10, 0)):
        snapshots = [{"snapshot_id": 1, "snapshot_ts": IN + seconds * SECOND}]
        rows = {"snapshots": snapshots, "actor_nodes": [{**node, "queue_depth": node["queue_depth"] * depth} for node in nodes]}
        found = measured(rows, Window(BEFORE, WINDOW.until_us + seconds * SECOND))
        values = {key: value for key, value in points(found).items() if key[0] == "actor.message_queue_size"}
        others = sum(range(8))
        assert values.get(("actor.message_queue_size", "99")) == (39 if depth else None)
        assert (len(values), values["actor.message_queue_size", ""]) == ((33, others) if depth else (1, 0))
        totals.add({table: [one] for table, one in found.items()})
        assert points(totals.batches(400 * SECOND))["actor.message_queue_size", ""] == sum(range(40)) * depth


def test_histograms_have_the_buckets_of_their_series(found: dict[str, Any]) -> None:
    row = points(found)["endpoint_call_latency_us_histogram", "step,trainers"]
    bounds, counts = json.loads(row["bounds_json"]), json.loads(row["bucket_counts_json"])
    assert bounds == [*LATENCY_BOUNDS_US]
    assert {bound: count for bound, count in zip(bounds, counts, strict=False) if count} == {64: 3, 1024: 1} and counts[-1] == 0
    assert (row["count"], row["sum_u64"], row["max_u64"]) == (4, 1500, 1000)
    handler = points(found)["actor.message_handler_duration.ns", "step,trainers"]
    assert json.loads(handler["bounds_json"])[0] == LATENCY_BOUNDS_US[0] * 1000 and handler["sum_u64"] == 1_500_000
    whole = points(found)["message.e2e_latency.us", ""]
    assert whole["count"] == 4 * 3 + 1 and whole["temporality"] == "delta"


def test_adjacent_windows_count_each_row_once() -> None:
    edges = [90, 120, 150, 151, 163, 170, 300]
    totals = Totals()
    for since, until in zip(edges, edges[1:], strict=False):
        found = measured(ROWS, Window(since * SECOND, until * SECOND, 5))
        totals.add({table: [one] for table, one in found.items()})
    values = points(totals.batches(400 * SECOND))
    assert values["endpoint_call_throughput", "step,trainers"] == 4
    assert values["actor.messages_sent", ""] == 2 and values["mailbox.posts", ""] == round(2.5) + 5
    assert values["channel.reconnections", "a,b"] == 3
    assert values["message.e2e_latency.us", ""]["count"] == 13


def test_no_rows_give_no_more_than_zeros() -> None:
    assert {value if isinstance(value, (int, float)) else value["count"] for value in points(measured({})).values()} == {0}


def test_answers_that_are_there_are_used() -> None:
    answer = pa.table({"state": ["ready"], "hosts": pa.array([2], pa.int64())})
    assert points(computed({"hosts": answer}, WINDOW, {})) == {("monarch.job.hosts", "ready"): 2}
    with pytest.raises(KeyError, match="'host'"):
        computed({"host": answer}, WINDOW, {})


@pytest.mark.parametrize("buckets", ["[[64, 9]]", "[[64, -1]]", "?", "[1]", '[["x", 1]]', "[[1, 2, 3]]"])
def test_malformed_buckets_leave_the_count(buckets: str) -> None:
    row = points(measured({"endpoint_stats": [calls("server", "call", 4, latency_buckets_json=buckets)]}))
    found = row["actor.message_handler_duration.ns", "step,trainers"]
    assert (found["count"], found["bounds_json"], found["bucket_counts_json"]) == (4, "[]", "[4]")


def test_bucket_without_a_bound_is_above_all() -> None:
    row = points(measured({"endpoint_stats": [calls("server", "call", 4, latency_buckets_json="[[100, 1], [null, 3]]")]}))
    found = row["actor.message_handler_duration.ns", "step,trainers"]
    assert (json.loads(found["bounds_json"]), json.loads(found["bucket_counts_json"])) == ([100_000.0], [1, 3])


def test_histograms_are_merged_bound_by_bound() -> None:
    assert merged([([1, 4], [1, 2, 3], 10, 9), ([2, 4], [5, 6, 7], 20, None)]) == ([1, 2, 4], [1, 5, 8, 10], 30, 9)


def test_process_memory_comes_from_the_system() -> None:
    found = points(process_memory({"me": os.getpid(), "gone": 1 << 30}, "a", WINDOW, {}))
    assert {*found} == {("process.memory.rss_bytes", "a,me"), ("process.memory.vm_bytes", "a,me")}
    assert found["process.memory.vm_bytes", "a,me"] > found["process.memory.rss_bytes", "a,me"] > 1 << 20


def test_statements_read_one_window() -> None:
    for source in SOURCES:
        assert "{" not in source.statement(WINDOW)
        assert source.lag_us or "100000000" in source.statement(WINDOW) or "since" not in source.sql


def test_page_has_the_tables_of_the_modules() -> None:
    from monarch.telemetry._export import otlp_settings

    root = next(folder for folder in Path(__file__).parents if (folder / "docs" / "sql.md").exists())
    page = (root / "docs" / "opentelemetry-reference.md").read_text(encoding="utf-8")
    assert metric_names.markdown() in page and otlp_settings.markdown() in page
    for source in re.findall(r"sql\.md#(\w+)", page):
        assert source in TABLES


def test_user_instrument_has_its_unit() -> None:
    metrics = Metrics()
    columns = {name: pa.array([value]) for name, value in {"meter": "m", "name": "read", "kind": "counter By", "attributes": "{}"}.items()}
    numbers = {"proc": pa.array([5], pa.uint64()), "amount": pa.array([3.0]), "us": pa.array([1_000_000])}
    metrics.add(Rows(1, {**columns, **numbers}))
    (batch,) = metrics.states(Places())["metric_sums"]
    (row,) = batch.to_pylist()
    assert (row["unit"], row["is_monotonic"], row["sum_f64"]) == ("By", True, 3.0)
