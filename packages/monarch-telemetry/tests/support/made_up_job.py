"""The rows of a made-up job: 2 hosts, 4 procs of one mesh, a mesh of 4 trainers and one of 2 loaders, with messages, failures and logs.

Trainer 3 failed in `step`, so its proc is poisoned; loader 1 failed because of it. The numbers of meshes and actors are larger than those
that a JavaScript program can hold. Times are in microseconds from `START`.
"""

from __future__ import annotations

import json
from typing import Any

from monarch.telemetry._tables.catalog import TABLES

START = 1_700_000_000_000_000
SECOND = 1_000_000
BIG = 1 << 63
HOSTS = (11, 12)
HOST_MESH, PROC_MESH, TRAINERS, LOADERS = BIG + 1, BIG + 2, BIG + 3, BIG + 4
PROCS = (21, 22, 23, 24)
TRAINER = tuple(BIG + 31 + rank for rank in range(4))
LOADER = tuple(BIG + 41 + rank for rank in range(2))
ACTORS = TRAINER + LOADER
# Messages received by trainer 0, and the last state of each.
MESSAGES = 12
FAILURE, CONSEQUENCE = 71, 72
END = START + 60 * SECOND

Row = dict[str, Any]


def rows() -> dict[str, list[Any]]:
    """Batches by the name of their table, each with the schema of the catalog."""
    import pyarrow as pa

    found = {**_entities(), **_history(), **_facts(), **_snapshots(), **_stacks()}
    return {name: [pa.RecordBatch.from_pylist(found.get(name, []), schema=table.schema())] for name, table in TABLES.items()}


def _view(offset: int, sizes: list[int], strides: list[int]) -> str:
    return json.dumps({"labels": ["gpus"], "offset": offset, "sizes": sizes, "strides": strides})


def _entities() -> dict[str, list[Row]]:
    return {
        "hosts": [
            {
                "host_id": host,
                "name": f"host{index}",
                "address": f"tcp://10.0.0.{index}:26600",
                "state": "ready",
                "joined_us": START + index,
                "cpus": 8,
                "memory_bytes": 64 << 30,
                "gpus_json": "[]",
                "version": "0.1.0",
            }
            for index, host in enumerate(HOSTS)
        ],
        "procs": [
            {"proc_id": proc, "host_id": HOSTS[rank // 2], "mesh_id": PROC_MESH, "rank": rank, "pid": 1000 + rank, "started_us": START + 10}
            for rank, proc in enumerate(PROCS)
        ],
        "meshes": [
            _mesh(HOST_MESH, "Host", "hosts", {"hosts": 2}, None, None),
            _mesh(PROC_MESH, "Proc", "workers", {"gpus": 4}, HOST_MESH, _view(0, [2], [1])),
            _mesh(TRAINERS, "Trainer", "trainer", {"gpus": 4}, PROC_MESH, _view(0, [4], [1])),
            # Every second proc: ranks 1 and 3.
            _mesh(LOADERS, "Loader", "loader", {"gpus": 2}, PROC_MESH, _view(1, [2], [2])),
        ],
        "actors": [
            {
                "id": actor,
                "timestamp_us": START + 30,
                "mesh_id": TRAINERS if actor in TRAINER else LOADERS,
                "rank": rank,
                "full_name": f"<root>.<{name} {name.lower()}{{'gpus': {rank}/{len(actors)}}}>",
                "display_name": f"{name.lower()}[{rank}]",
            }
            for name, actors in (("Trainer", TRAINER), ("Loader", LOADER))
            for rank, actor in enumerate(actors)
        ],
    }


def _mesh(id: int, kind: str, name: str, shape: dict[str, int], parent: int | None, view: str | None) -> Row:
    return {
        "id": id,
        "timestamp_us": START + id - BIG,
        "class": kind,
        "given_name": name,
        "full_name": f"<root>.<{name}>",
        "shape_json": json.dumps(shape),
        "parent_mesh_id": parent,
        "parent_view_json": view,
    }


def _history() -> dict[str, list[Row]]:
    statuses: list[Row] = []
    for index, actor in enumerate(ACTORS):
        steps = [("Created", None), ("Initializing", None), ("Idle", None)]
        if actor == TRAINER[0]:
            steps.append(("Processing", None))
        if actor in (TRAINER[3], LOADER[1]):
            steps.append(("Failed", "ValueError: bad batch"))
        if actor == LOADER[0]:
            steps.append(("Stopped", "stopped by its owner"))
        for step, (status, reason) in enumerate(steps):
            statuses.append(
                {
                    "id": 1000 + 10 * index + step,
                    "timestamp_us": START + (5 * SECOND + index if status == "Failed" else 100 + 10 * step + index),
                    "actor_id": actor,
                    "new_status": status,
                    "reason": reason,
                }
            )
    messages = [
        {
            "id": BIG + 100 + number,
            "timestamp_us": START + (1 + number) * SECOND,
            "from_actor_id": LOADER[number % 2],
            "to_actor_id": TRAINER[number % 3],
            "endpoint": "step" if number % 2 else "load",
        }
        for number in range(MESSAGES)
    ]
    changes: list[Row] = []
    for number in range(MESSAGES):
        last = {10: ["queued", "active"], 11: ["queued"], 9: ["queued", "active", "failed"]}.get(number, ["queued", "active", "complete"])
        for step, status in enumerate(last):
            at = START + (1 + number) * SECOND + 1000 * step
            changes.append({"id": 5000 + 10 * number + step, "timestamp_us": at, "message_id": BIG + 100 + number, "status": status})
    sent = [
        {
            "id": BIG + 100 + number,
            "timestamp_us": START + (1 + number) * SECOND - 10,
            "sender_actor_id": LOADER[number % 2],
            "actor_mesh_id": TRAINERS,
            "view_json": _view(number % 3, [1], [1]),
            "shape_json": "{}",
        }
        for number in range(MESSAGES)
    ]
    spans = [
        {
            "process_id": PROCS[number % 4],
            "id": 900 + number,
            "name": "step" if number % 2 else "forward",
            "target": "train",
            "level": "info",
            "fields_json": "{}",
            "timestamp_us": START + number * SECOND,
            "parent_id": 900 + number - 1 if number % 2 else None,
            "thread_name": "main",
        }
        for number in range(8)
    ]
    ends = [
        {"process_id": PROCS[number % 4], "id": 900 + number, "timestamp_us": START + number * SECOND + at, "event_type": kind}
        for number in range(8)
        for at, kind in ((1, "enter"), (500, "exit"), (600, "close"))
        # The last span has not ended.
        if number != 7 or kind == "enter"
    ]
    return {
        "actor_status_events": statuses,
        "messages": messages,
        "message_status_events": changes,
        "sent_messages": sent,
        "spans": spans,
        "span_events": ends,
    }


def _facts() -> dict[str, list[Row]]:
    streams = ("stdout", "stderr", "logging", "system")
    logs = [
        {
            "timestamp_us": START + number * SECOND,
            "seq": number,
            "host": f"host{number % 4 // 2}",
            "proc": f"workers[{number % 4}]",
            "pid": 1000 + number % 4,
            "mesh_name": "trainer",
            "rank": number % 4,
            "actor_id": TRAINER[number % 4],
            "stream": streams[number % 4],
            "level": {2: "WARNING", 3: "info"}.get(number % 4),
            "logger": "train" if number % 4 == 2 else None,
            "line": f"it's line {number}, 100% done_",
        }
        for number in range(40)
    ]
    failures = [
        {
            "id": FAILURE,
            "timestamp_us": START + 5 * SECOND,
            "kind": "user",
            "first_cause": True,
            "mesh_name": "trainer",
            "rank": 3,
            "host": "host1",
            "pid": 1003,
            "endpoint": "step",
            "exit_reason": "failed",
            "message": "ValueError: bad batch",
            "traceback": "Traceback (most recent call last):\nValueError: bad batch",
        },
        {
            "id": CONSEQUENCE,
            "timestamp_us": START + 5 * SECOND + 10,
            "kind": "user",
            "first_cause": False,
            "cause_id": FAILURE,
            "mesh_name": "loader",
            "rank": 1,
            "host": "host1",
            "pid": 1003,
            "exit_reason": "failed",
            "message": "a child has failed",
        },
    ]
    stats = [
        {
            "window_us": START,
            "side": side,
            "mesh_name": "trainer",
            "endpoint": endpoint,
            "adverb": "call",
            "count": 6,
            "errors": errors,
            "latency_sum_us": 6000,
            "latency_max_us": 2000,
            "latency_buckets_json": "[[1000, 3], [10000, 6]]",
            "bytes_in": 600,
            "bytes_out": 600,
        }
        for side in ("client", "server")
        for endpoint, errors in (("step", 1), ("load", 0))
    ]
    resources = [
        {
            "timestamp_us": START + 10 * SECOND * step,
            "host": host,
            "proc": proc,
            "cpu_pct": 50.0 + step,
            "rss_bytes": (1 << 30) + step,
            "threads": 5,
            "fds": 20,
        }
        for step in range(3)
        for host, proc in (("host0", None), ("host1", None), ("host0", "workers[0]"))
    ]
    common = {"scope_name": "job", "attributes_json": "{}", "resource_attributes_json": '{"host": "host0"}'}
    gauges = [
        {"name": "loss", "timestamp_us": START + step * SECOND, "unit": "1", "value_f64": 1.0 / (step + 1), **common} for step in range(5)
    ]
    sums = [
        {
            "name": "steps",
            "timestamp_us": START + step * SECOND,
            "start_timestamp_us": START,
            "unit": "1",
            "temporality": "cumulative",
            "is_monotonic": True,
            "sum_u64": step,
            **common,
        }
        for step in range(5)
    ]
    histograms = [
        {
            "name": "latency",
            "timestamp_us": START + SECOND,
            "start_timestamp_us": START,
            "unit": "us",
            "temporality": "delta",
            "count": 4,
            "sum_f64": 10.0,
            "min_f64": 1.0,
            "max_f64": 4.0,
            "bounds_json": "[2, 5]",
            "bucket_counts_json": "[1, 3, 0]",
            **common,
        }
    ]
    supervision = [
        {
            "id": 81,
            "timestamp_us": START + 5 * SECOND + 5,
            "failure_id": FAILURE,
            "mesh_name": "trainer",
            "crashed_ranks_json": "[3]",
            "delivered_to": "<root>.<loader{'gpus': 1/2}>",
            "handled": False,
        }
    ]
    return {
        "logs": logs,
        "failures": failures,
        "endpoint_stats": stats,
        "resources": resources,
        "metric_gauges": gauges,
        "metric_sums": sums,
        "metric_histograms": histograms,
        "supervision_events": supervision,
    }


def _snapshots() -> dict[str, list[Row]]:
    """Two snapshots; in the earlier one actors had waiting messages."""
    found: dict[str, list[Row]] = {}

    def add(table: str, **row: Any) -> None:
        found.setdefault(table, []).append(row)

    for snapshot in (1, 2):
        at = START + snapshot * 20 * SECOND
        own: Row = {"snapshot_id": snapshot}
        add("snapshots", **own, snapshot_ts=at)
        add("nodes", **own, node_id=1, node_kind="root", as_of=at)
        add("root_nodes", **own, node_id=1, num_hosts=2, started_at=START, started_by="ada")
        for index, host in enumerate(HOSTS):
            add("nodes", **own, node_id=host, node_kind="host", as_of=at)
            add("children", **own, parent_id=1, child_id=host, child_sort_key=f"host{index}", is_system=False, is_stopped=False)
            add("host_nodes", **own, node_id=host, addr=f"tcp://10.0.0.{index}:26600", host_num_procs=2)
        for rank, proc in enumerate(PROCS):
            add("nodes", **own, node_id=proc, node_kind="proc", as_of=at)
            add("children", **own, parent_id=HOSTS[rank // 2], child_id=proc, child_sort_key=str(rank), is_system=False, is_stopped=False)
            failed = 2 if rank == 3 else 0
            add(
                "proc_nodes",
                **own,
                node_id=proc,
                proc_name=f"workers[{rank}]",
                num_actors=2 if rank % 2 else 1,
                stopped_retention_cap=100,
                is_poisoned=failed > 0,
                failed_actor_count=failed,
            )
        for rank, actor in [*enumerate(TRAINER), (1, LOADER[0]), (3, LOADER[1])]:
            stopped = actor in (TRAINER[3], *LOADER)
            add("nodes", **own, node_id=actor, node_kind="actor", as_of=at)
            add("children", **own, parent_id=PROCS[rank], child_id=actor, child_sort_key=str(actor), is_system=False, is_stopped=stopped)
            add(
                "actor_nodes",
                **own,
                node_id=actor,
                actor_status="Idle",
                actor_type="Trainer" if actor in TRAINER else "Loader",
                instance_id=actor,
                messages_processed=4 * snapshot,
                created_at=START + 30,
                last_message_handler="step",
                total_processing_time_us=9000,
                queue_depth=3 if snapshot == 1 else 0,
                is_system=False,
            )
        for actor, message in ((TRAINER[3], "ValueError: bad batch"), (LOADER[1], "a child has failed")):
            add(
                "actor_failures",
                **own,
                node_id=actor,
                failure_error_message=message,
                failure_root_cause_actor="<root>.<Trainer trainer{'gpus': 3/4}>",
                failure_root_cause_name="trainer[3]",
                failure_occurred_at=START + 5 * SECOND,
                failure_is_propagated=actor != TRAINER[3],
            )
        add("actor_executions", **own, node_id=TRAINER[0], active_count=1, complete=True, truncated=False)
        add("active_handlers", **own, node_id=TRAINER[0], name="step", active_count=1, oldest_since=at - SECOND)
        add(
            "actor_inbound_orderings",
            **own,
            node_id=TRAINER[0],
            enabled=True,
            snapshot_complete=True,
            skipped_session_count=0,
            known_session_count=1,
            returned_buffered_session_count=1,
            returned_buffered_message_count=2,
            returned_max_buffered_count=2,
        )
        add(
            "ordering_sessions",
            **own,
            node_id=TRAINER[0],
            session_id=1,
            sender="loader[0]",
            last_released_seq=7,
            expected_next_seq=8,
            buffered_count=2,
            oldest_buffered_seq=9,
            newest_buffered_seq=10,
        )
    # An actor of the runtime, only in the last snapshot; its events are no longer kept.
    add("children", snapshot_id=2, parent_id=PROCS[0], child_id=99, child_sort_key="~", is_system=True, is_stopped=False)
    add("nodes", snapshot_id=2, node_id=99, node_kind="actor", as_of=START + 40 * SECOND)
    add(
        "actor_nodes",
        snapshot_id=2,
        node_id=99,
        actor_status="Idle",
        actor_type="Agent",
        instance_id=99,
        messages_processed=1,
        total_processing_time_us=1,
        queue_depth=0,
        is_system=True,
    )
    add("resolution_errors", snapshot_id=2, node_id=98, error_code="gateway_timeout", error_message="host1 did not answer")
    return found


def _stacks() -> dict[str, list[Row]]:
    return {
        "pyspy_dumps": [
            {
                "dump_id": "d1",
                "timestamp_us": START + 7 * SECOND,
                "pid": 1000,
                "binary": "py-spy",
                "proc_ref": "cHJvYzoyMQ",
                "capture_mode": "outside",
                "warnings_json": "[]",
            }
        ],
        "pyspy_stack_traces": [
            {"dump_id": "d1", "pid": 1000, "thread_id": 5, "thread_name": "MainThread", "active": True, "owns_gil": True}
        ],
        "pyspy_frames": [
            {
                "dump_id": "d1",
                "thread_id": 5,
                "frame_depth": depth,
                "name": name,
                "filename": "train.py",
                "line": 10 + depth,
                "is_entry": False,
            }
            for depth, name in enumerate(("step", "main"))
        ],
    }
