"""The canned queries: each finds its fault in rows of a made-up job, and nothing where the fault is not."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support import made_up_faults as job
from support.engine import SCHEMAS, Engine

from monarch.telemetry._queries import formats
from monarch.telemetry._queries.catalog import load
from monarch.telemetry._sql import gate

QUERIES = load({}, Path(__file__).parent).queries
NAMES = sorted(job.FAULTS)
# Further causes of a fault: first_cause names any cause.
ALSO = {"crash_loop": {"first_cause"}}
# The expected rows by name of a fault.
FOUND: dict[str, list[dict[str, Any]]] = {
    "first_cause": [{"rank": 3, "host": "host1", "endpoint": "step", "message": "ValueError: bad batch", "caused": 2}],
    "straggler": [{"mesh": "trainer", "rank": 5, "host": "host2", "handled": 1140, "last_handler": "step"}],
    "stuck_endpoint": [{"mesh": "trainer", "rank": 2, "endpoint": "step", "running_s": 180.0, "longest_s": 1.0, "host": "host1"}],
    "queue_growth": [{"mesh": "trainer", "rank": 7, "actor_type": "Trainer", "handled": 1140}],
    "memory_growth": [{"host": "host3", "proc": "workers[6]", "first_mib": 2048.0}],
    "slow_link": [
        {"from_host": "host1", "to_host": "host3", "rtt_us": 40_000, "usual_us": 220},
        {"from_host": "host2", "to_host": "host0", "reconnects": 9, "last_error": "no heartbeat"},
    ],
    "gpu_idle": [{"host": "host2", "gpu": 1, "util_pct": 0.0, "memory_mib": 30 * 1024.0}],
    "lost_host": [
        {"host": "host3", "reason": "no heartbeat for 3 s", "up_minutes": 8.0, "procs": 2, "first_rank": 6, "last_rank": 7}
        | {"last_event": "preempted: by job 7"}
    ],
    "log_burst": [
        {"minute_us": job.START + 120 * job.SECOND, "host": "host2", "proc": "workers[4]", "lines": 3000, "usual": 30, "errors": 3000}
    ],
    "slow_mount": [
        {"host": "host3", "errors": 3, "last_error": "error a/b.bin EIO: gone"},
        {"host": "host1", "errors": 0, "faults": 50_000, "usual": 112},
        {"host": "host2", "generation": 3, "newest": 4},
    ],
    "crash_loop": [{"mesh_name": "trainer", "rank": 1, "failures": 6, "every_s": 20.0, "messages": 1, "message": "no such device"}],
    "deadlock": [
        {"actor_a": "<root>.<trainer{'gpus': 2/8}>", "a_runs": "exchange_2", "a_calls": "give", "waits_s": 39.0}
        | {"actor_b": "<root>.<trainer{'gpus': 3/8}>", "b_runs": "exchange_3", "b_calls": "give"}
    ],
}


def answers(rows: job.Rows) -> dict[str, list[dict[str, Any]]]:
    """What every query finds, without those that find nothing."""
    engine = Engine(job.batches(rows))
    found = {name: engine.ask(QUERIES[name].sql).table.to_pylist() for name in NAMES}
    return {name: rows for name, rows in found.items() if rows}


def test_every_fault_has_a_query() -> None:
    assert sorted(QUERIES) == NAMES == sorted(FOUND)


@pytest.mark.parametrize("name", NAMES)
def test_query_is_allowed_and_empty_on_empty_tables(name: str) -> None:
    gate.check(QUERIES[name].sql, SCHEMAS)
    table = Engine({}).ask(QUERIES[name].sql).table
    assert table.num_rows == 0
    explained = [column for one in QUERIES[name].columns for column in one.columns.split(", ")]
    assert sorted(explained) == sorted(table.schema.names)


def test_healthy_job_has_no_fault() -> None:
    assert answers(job.healthy()) == {}


@pytest.mark.parametrize("name", NAMES)
def test_query_finds_its_fault_and_no_other_does(name: str) -> None:
    rows = job.healthy()
    job.FAULTS[name](rows)
    found = answers(rows)
    assert set(found) - ALSO.get(name, set()) == {name}
    assert [{key: row[key] for key in wanted} for row, wanted in zip(found[name], FOUND[name], strict=True)] == FOUND[name]


def test_first_cause_shows_the_last_output() -> None:
    rows = job.healthy()
    job.first_cause(rows)
    (row,) = answers(rows)["first_cause"]
    assert row["last_lines"].endswith("loss is nan") and len(row["last_lines"]) == 300


def test_call_that_was_answered_is_no_deadlock() -> None:
    rows = job.healthy()
    job.deadlock(rows)
    rows["message_status_events"].append(
        {"timestamp_us": job.END, "message_id": rows["messages"][-1]["id"], "status": "complete"},
    )
    assert answers(rows) == {}


def test_actor_that_calls_itself_is_a_deadlock() -> None:
    rows = job.healthy()
    job.deadlock(rows)
    for row in rows["messages"][-2:]:
        row["to_actor_id"] = row["from_actor_id"]
    found = answers(rows)["deadlock"]
    assert [(row["actor_a"], row["actor_b"], row["a_calls"]) for row in found] == [
        (f"<root>.<trainer{{'gpus': {rank}/8}}>",) * 2 + ("give",) for rank in (2, 3)
    ]


def live(rank: int, age: float | None, **more: Any) -> job.Row:
    """A trainer as it is now; `age` is how long its endpoint has been in progress, in seconds."""
    busy = {} if age is None else {"endpoint": "step", "endpoint_since_us": time.time_ns() // 1000 - int(age * job.SECOND)}
    return {"actor_id": job.actor(rank), "proc_id": 20 + rank, "host": job.host(rank), "mesh_name": "trainer", "rank": rank, **busy, **more}


def test_live_state_comes_before_that_of_snapshots() -> None:
    rows = job.healthy()
    job.stuck_endpoint(rows)
    rows["live_actors()"] = [live(rank, 100.0 if rank == 6 else 0.5 if rank == 4 else None) for rank in job.RANKS]
    found = answers(rows)["stuck_endpoint"]
    assert [(row["rank"], row["host"], row["endpoint"]) for row in found] == [(6, "host3", "step")]
    rows["live_actors()"] = [live(rank, None) for rank in job.RANKS]
    assert answers(rows) == {}


def test_live_state_is_enough() -> None:
    rows = job.healthy()
    for name in ("snapshots", "children", "proc_nodes", "actor_nodes", "active_handlers"):
        rows[name] = []
    rows["live_actors()"] = [
        live(rank, 30.0 if rank > 5 else None, messages_processed=50, total_processing_time_us=(9 if rank == 1 else 1) * job.SECOND)
        for rank in job.RANKS
    ]
    rows["messages"] += [
        {"id": 7 + rank, "timestamp_us": time.time_ns() // 1000 - 20 * job.SECOND, "endpoint": "give"}
        | {"from_actor_id": job.actor(rank), "to_actor_id": job.actor(rank ^ 1)}
        for rank in (6, 7)
    ]
    found = answers(rows)
    assert set(found) == {"straggler", "deadlock"}
    assert [(row["rank"], row["host"], row["mean_ms"], row["usual_ms"]) for row in found["straggler"]] == [(1, "host0", 180.0, 20.0)]
    assert [(row["a_runs"], row["a_calls"], row["b_calls"], row["waits_s"] >= 20) for row in found["deadlock"]] == [
        ("step", "give", "give", True)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_rows_on_several_hosts_give_the_same_answer(name: str) -> None:
    rows = job.healthy()
    job.FAULTS[name](rows)
    whole = job.batches(rows)
    hosts = [
        {table: [one.take(pa.array(range(at, one.num_rows, 3), pa.int64())) for one in found] for table, found in whole.items()}
        for at in range(3)
    ]
    found = Engine(*hosts).ask(QUERIES[name].sql).table.to_pylist()
    assert found == Engine(whole).ask(QUERIES[name].sql).table.to_pylist() and found


def hostile(rows: job.Rows) -> job.Rows:
    """Every thing of the job is there twenty times more, with names and texts that are as long as can be."""

    def long(row: dict[str, Any], number: int) -> dict[str, Any]:
        kinds = {"event": 0, "side": 0, "state": 0, "status": 0, "stream": 0, "kind": 0, "level": 0, "class": 0, "endpoint": 0, "name": 0}
        ids = {"id", "mesh_id", "node_id", "instance_id", "child_id", "actor_id", "from_actor_id", "to_actor_id", "message_id", "link_id"}
        longer = {key: value if key in kinds else f"{value}{number}{key[0] * 2000}" for key, value in row.items() if type(value) is str}
        numbers = {key: value + number * 100_000_000 for key, value in row.items() if key in ids | {"proc_id", "host_id", "parent_id"}}
        return {**row, **longer, **numbers}

    few = {name: found for name, found in rows.items() if name not in ("logs", "resources", "messages", "message_status_events")}
    shared = {"snapshots", "endpoint_stats"}
    return {
        **rows,
        **{name: [long(row, number) for number in range(20) for row in found] for name, found in few.items() if name not in shared},
    }


@pytest.mark.parametrize("name", NAMES)
def test_answer_stays_below_eight_kilobytes(name: str) -> None:
    rows = job.healthy()
    job.FAULTS[name](rows)
    if name in ("log_burst", "memory_growth", "gpu_idle"):
        # These group by host and process: twenty hosts with long names.
        table = "logs" if name == "log_burst" else "resources"
        rows[table] = [
            {**row, "host": f"{number}{row['host']}" + "h" * 500, **({"proc": row["proc"] + "p" * 500} if row.get("proc") else {})}
            for number in range(20)
            for row in rows[table]
            if row["host"] in ("host2", "host3") and (name != "log_burst" or row["stream"] == "logging")
        ]
        if name == "log_burst":
            rows[table] += job.healthy()["logs"]
    elif name == "deadlock":
        rows["actors"] = [{**row, "full_name": row["full_name"] + "n" * 500} for row in rows["actors"]]
    else:
        rows = hostile(rows)
    table = Engine(job.batches(rows)).ask(QUERIES[name].sql).table
    assert table.num_rows >= (1 if name == "deadlock" else 5)
    sizes = {}
    for form in ("table", "json", "jsonl", "csv"):
        out = io.BytesIO()
        formats.write(table, form, out)
        sizes[form] = len(out.getvalue())
    assert max(sizes.values()) <= 8000, sizes
