"""The tables: the columns of the contract, kinds, meanings, examples that run, and the catalog."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from datafusion import SessionContext, udtf
from datafusion import Table as Provider

from monarch.telemetry import QueryError
from monarch.telemetry._tables.catalog import SECTIONS, TABLES, catalog, table
from monarch.telemetry._tables.table import Column, Table, time

# Columns of torchmonarch 0.7, as section 4 of the contract lists them: in this order, `?` where a value may be missing.
COLUMNS_07 = {
    "actors": "id timestamp_us mesh_id rank full_name display_name?",
    "meshes": "id timestamp_us class given_name full_name shape_json parent_mesh_id? parent_view_json?",
    "actor_status_events": "id timestamp_us actor_id new_status reason?",
    "sent_messages": "id timestamp_us sender_actor_id actor_mesh_id view_json shape_json",
    "messages": "id timestamp_us from_actor_id to_actor_id endpoint? port_index?",
    "message_status_events": "id timestamp_us message_id status",
    "spans": "process_id id name target level fields_json timestamp_us parent_id? thread_name file? line?",
    "span_events": "process_id id timestamp_us event_type",
    "events": "name target level fields_json timestamp_us parent_span? thread_id thread_name module_path? file? line?",
    "metric_gauges": "name timestamp_us start_timestamp_us? scope_name unit attributes_json resource_attributes_json"
    " value_f64? value_i64? value_u64?",
    "metric_sums": "name timestamp_us start_timestamp_us scope_name unit temporality is_monotonic attributes_json resource_attributes_json"
    " sum_f64? sum_i64? sum_u64?",
    "metric_histograms": "name timestamp_us start_timestamp_us scope_name unit temporality attributes_json resource_attributes_json count"
    " sum_f64? sum_i64? sum_u64? min_f64? min_i64? min_u64? max_f64? max_i64? max_u64? bounds_json bucket_counts_json",
    "pyspy_dumps": "dump_id timestamp_us pid binary proc_ref capture_mode warnings_json",
    "pyspy_stack_traces": "dump_id pid thread_id thread_name? os_thread_id? active owns_gil",
    "pyspy_frames": "dump_id thread_id frame_depth name filename module? short_filename? line is_entry",
    "pyspy_local_variables": "dump_id thread_id frame_depth name addr arg repr?",
    "snapshots": "snapshot_id snapshot_ts",
    "nodes": "snapshot_id node_id node_kind as_of",
    "children": "snapshot_id parent_id child_id child_sort_key is_system is_stopped",
    "root_nodes": "snapshot_id node_id num_hosts started_at started_by",
    "host_nodes": "snapshot_id node_id addr host_num_procs",
    "proc_nodes": "snapshot_id node_id proc_name num_actors stopped_retention_cap is_poisoned failed_actor_count",
    "actor_nodes": "snapshot_id node_id actor_status actor_type instance_id messages_processed created_at? last_message_handler?"
    " total_processing_time_us queue_depth is_system",
    "actor_failures": "snapshot_id node_id failure_error_message failure_root_cause_actor failure_root_cause_name? failure_occurred_at"
    " failure_is_propagated",
    "actor_executions": "snapshot_id node_id active_count complete truncated",
    "active_handlers": "snapshot_id node_id name active_count oldest_since",
    "actor_inbound_orderings": "snapshot_id node_id enabled snapshot_complete skipped_session_count known_session_count"
    " returned_buffered_session_count returned_buffered_message_count returned_max_buffered_count",
    "ordering_sessions": "snapshot_id node_id session_id sender? last_released_seq expected_next_seq buffered_count"
    " oldest_buffered_seq? newest_buffered_seq?",
    "resolution_errors": "snapshot_id node_id error_code error_message",
}
# Section 4.5, with one change: a table without rows has no oldest one.
COLUMNS_NEW = {
    "logs": "timestamp_us seq host proc pid mesh_name? rank? actor_id? stream level? logger? line trace_id? span_id?",
    "hosts": "host_id name address state reason? joined_us left_us? cpus memory_bytes gpus_json version",
    "procs": "proc_id host_id mesh_id rank pid started_us ended_us? exit_reason? exit_code? signal? rss_peak_bytes?",
    "failures": "id timestamp_us kind first_cause cause_id? mesh_name rank? host? pid? endpoint? exit_reason message traceback?"
    " last_lines?",
    "supervision_events": "id timestamp_us failure_id mesh_name crashed_ranks_json delivered_to handled",
    "endpoint_stats": "window_us side mesh_name endpoint adverb count errors latency_sum_us latency_max_us latency_buckets_json"
    " bytes_in bytes_out",
    "links": "link_id from_host to_host kind state rtt_us bytes_out bytes_in reconnects unacked last_error?",
    "resources": "timestamp_us host proc? cpu_pct rss_bytes threads fds gpu? gpu_util_pct? gpu_memory_bytes?",
    "span_context": "process_id span_id trace_id parent_process_id? parent_span_id? sampled",
    "rdma_ops": "timestamp_us proc peer op path bytes latency_us retries error?",
    "rdma_buffers": "buffer proc bytes readonly created_us lease_until_us? given_away",
    "fs_events": "timestamp_us host target event path? bytes? detail?",
    "mounts": "host target source generation state bytes_held faults",
    "job_events": "timestamp_us job kind event host? detail?",
    "audit": "timestamp_us who scope source action target outcome detail?",
    "telemetry_status": "host table_name rows bytes oldest_us? dropped sample_weight",
    "metric_totals": "kind name timestamp_us start_timestamp_us scope_name unit is_monotonic attributes_json resource_attributes_json"
    " value_f64? value_i64? value_u64? count? bounds_json? bucket_counts_json?",
}
LIVE = ("stacks", "live_procs", "live_actors", "live_queues", "memory")
# Types that the contract itself specifies.
TYPES = (
    "actors.rank:u64 metric_histograms.count:u64 pyspy_dumps.pid:i32 pyspy_stack_traces.thread_id:u64 pyspy_frames.frame_depth:i32"
    " pyspy_frames.line:i32 pyspy_local_variables.addr:u64 snapshots.snapshot_ts:i64 failures.first_cause:bool"
    " supervision_events.handled:bool"
)
# Names of identifiers that are text: the caller chooses the name of a dump, a trace has 128 bits.
TEXT_IDS = {"dump_id", "trace_id"}
ALL = pytest.mark.parametrize("name", TABLES)


def shown(one: Table) -> str:
    return " ".join(f"{column.name}?" if column.nullable else column.name for column in one.columns)


def test_tables_are_in_the_contracts_order() -> None:
    assert [*TABLES] == [*COLUMNS_07, *COLUMNS_NEW, *LIVE]
    assert sum(map(len, SECTIONS.values())) == len(TABLES)
    assert [name for name, one in TABLES.items() if one.function] == [*LIVE]
    assert all(name == one.name for name, one in TABLES.items())


@pytest.mark.parametrize(("name", "columns"), [*COLUMNS_07.items(), *COLUMNS_NEW.items()])
def test_columns_are_in_the_contracts_order(name: str, columns: str) -> None:
    assert shown(TABLES[name]) == columns
    assert TABLES[name].schema().names == [column.rstrip("?") for column in columns.split()]
    assert [field.nullable for field in TABLES[name].schema()] == [column.endswith("?") for column in columns.split()]


@pytest.mark.parametrize("typed", TYPES.split())
def test_types_of_the_contract(typed: str) -> None:
    where, kind = typed.split(":")
    name, column = where.split(".")
    assert {one.name: one.kind for one in TABLES[name].columns}[column] == kind


@ALL
def test_kinds_go_by_the_names_of_columns(name: str) -> None:
    """A rule for each kind of name, so that a join over tables never casts."""
    for column in TABLES[name].columns:
        if column.name == "id" or (column.name.endswith("_id") and column.name not in TEXT_IDS):
            assert column.kind == "u64", column
        if column.name in TEXT_IDS or column.name.endswith(("_json", "_name", "_type", "_message")):
            assert column.kind == "text", column
        if column.name.startswith("is_"):
            assert column.kind == "bool", column
        if column.name.endswith(("_count", "_cap", "bytes", "_depth_max")) or column.name.startswith("num_") or column.name == "rank":
            assert column.kind == "u64", column
        if column.name == "pid":
            assert column.kind == "i32", column
        assert (column.kind == "i64" and not column.name.endswith("_i64")) == ("microseconds since the epoch" in column.meaning), column


@ALL
def test_every_table_and_column_has_a_meaning(name: str) -> None:
    one = TABLES[name]
    for text in (one.meaning, *(column.meaning for column in one.columns)):
        assert text == text.strip() and not text.endswith(".") and "|" not in text and "\n" not in text
        assert 3 <= len(text) <= 120, text
    assert one.meaning[0].isupper()
    for column in one.columns:
        assert re.fullmatch("[a-z][a-z0-9_]*", column.name)
        if column.name.endswith("_us") and column.kind != "i64":
            assert "microseconds" in column.meaning, column
    assert len({column.name for column in one.columns}) == len(one.columns)


@pytest.fixture(scope="module")
def empty() -> SessionContext:
    """Empty tables of all schemas, and the table functions."""
    context = SessionContext()
    for name, one in TABLES.items():
        if one.function:
            # Created here: a table function is called inside datafusion, where none can be created.
            provider = Provider(context.create_dataframe([[one.empty()]]))
            context.register_udtf(udtf(lambda *_mesh, provider=provider: provider, name))
        else:
            context.register_record_batches(name, [[one.empty()]])
    return context


@ALL
def test_examples_run(name: str, empty: SessionContext) -> None:
    example = TABLES[name].example
    assert TABLES[name].source in example and ";" not in example
    assert empty.sql(example).to_arrow_table().num_columns >= 2


@ALL
def test_all_columns_can_be_asked_for(name: str, empty: SessionContext) -> None:
    one = TABLES[name]
    assert empty.sql(f"SELECT * FROM {one.source}").schema().names == one.schema().names
    for column in one.columns:
        empty.sql(f"SELECT {column.name} FROM {one.source}")


def test_live_state_and_history_join_in_one_statement(empty: SessionContext) -> None:
    found = empty.sql(
        "SELECT p.rank, s.name, l.line FROM live_procs('trainers') p JOIN stacks('trainers') s ON s.proc_id = p.proc_id"
        " JOIN procs h ON h.proc_id = p.proc_id JOIN logs l ON l.pid = h.pid AND l.host = p.host"
    )
    assert found.to_arrow_table().num_rows == 0


def test_schema_of_every_kind() -> None:
    one = Table(
        "things",
        (
            Column("id", "u64", "the thing"),
            time("timestamp_us", "when it was made"),
            Column("name", "text", "its name", True),
            Column("pid", "i32", "the process"),
            Column("share", "f64", "its share in percent"),
            Column("is_new", "bool", "whether it is new"),
        ),
        "Each thing",
        "SELECT * FROM things",
        "history",
    )
    schema = one.schema()
    assert schema is one.schema()
    assert [(field.name, field.type, field.nullable) for field in schema] == [
        ("id", pa.uint64(), False),
        ("timestamp_us", pa.int64(), False),
        ("name", pa.string(), True),
        ("pid", pa.int32(), False),
        ("share", pa.float64(), False),
        ("is_new", pa.bool_(), False),
    ]
    assert schema.field("timestamp_us").metadata == {b"meaning": b"when it was made, in microseconds since the epoch"}
    assert one.empty().num_rows == 0 and one.empty().schema.equals(schema, check_metadata=True)
    assert [column.type for column in one.columns] == ["u64", "i64", "text?", "i32", "f64", "bool"]
    assert (one.source, one._replace(function=True).source) == ("things", "things()")


def test_retention_goes_by_what_rows_are() -> None:
    kept = {kind: {name for name, one in TABLES.items() if one.retention == kind} for kind in ("history", "entities", "on demand", "live")}
    assert kept["entities"] == {"actors", "meshes", "hosts", "procs", "links", "rdma_buffers", "mounts"}
    assert kept["on demand"] == {name for name in TABLES if name.startswith("pyspy_")}
    assert kept["live"] == {*LIVE, "telemetry_status", "metric_totals"}
    assert sum(map(len, kept.values())) == len(TABLES)


@pytest.mark.parametrize(("name", "hint"), [("massages", "'messages'"), ("live_proc", "'live_procs'"), ("qqqqqq", "SHOW TABLES")])
def test_unknown_table_has_the_nearest_name(name: str, hint: str) -> None:
    assert table("messages") is TABLES["messages"]
    with pytest.raises(QueryError, match=hint) as raised:
        table(name)
    assert repr(name) in str(raised.value)


def test_catalog_has_each_table_column_and_example() -> None:
    lines = catalog().splitlines()
    assert len(lines) == sum(2 + len(one.columns) for one in TABLES.values())
    assert "messages (history): " + TABLES["messages"].meaning in lines
    assert "  messages.endpoint text?: the method, where the message is a call" in lines
    assert "  stacks example: " + TABLES["stacks"].example in lines
    assert lines[-1].startswith("  memory example: SELECT") and any(line.startswith("memory() (live): ") for line in lines)
    # One word finds the table with the column.
    assert [line.split()[0] for line in lines if "GIL" in line] == ["pyspy_stack_traces.owns_gil", "stacks.owns_gil"]
    assert len(catalog().encode()) <= 50_000
