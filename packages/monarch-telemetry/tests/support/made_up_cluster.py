"""The rows of a made-up job of 4 hosts and 10,000 actors, and an engine over them whose hosts can fall silent.

Trainer 77 has failed, so two loaders have. Each host has the rows of its own procs; host0 has those of meshes and of the client.
"""

from __future__ import annotations

import importlib
import json
import random
import threading
from typing import Any

from support.engine import Engine

from monarch.telemetry._asking import Answer
from monarch.telemetry._sql.coverage import Missing
from monarch.telemetry._sql.limits import DEFAULT, Limits
from monarch.telemetry._tables.catalog import TABLES

SECOND = 1_000_000
# Larger than the integers that a JavaScript program can hold.
BIG = 1 << 62
HOSTS = 4
RANKS = 10_000
LOADERS = 8
HOST_MESH, PROC_MESH, TRAINER_MESH, LOADER_MESH = BIG + 1, BIG + 2, BIG + 3, BIG + 4
TRAINER, LOADER, PROC = BIG + 100_000, BIG + 200_000, BIG + 300_000
FAILED = 77
SILENT = "host3"
Row = dict[str, Any]


def actor_id(rank: int) -> int:
    return TRAINER + rank


class Cluster:
    """Rows by host, and an engine over them. `now` is in microseconds, `ranks` the number of trainers. Any thread."""

    def __init__(self, now: int, ranks: int = RANKS) -> None:
        self._lock = threading.Lock()
        self._now, self._number = now, 0
        self._rows = [_batches(_host(host, now, ranks)) for host in range(HOSTS)]
        self._silent = False
        self._engine = self._made()

    def ask(self, sql: str, *, timeout: float | None = None, require_all: bool = False, limits: Limits = DEFAULT) -> Answer:
        with self._lock:
            engine = self._engine
        return engine.ask(sql, timeout=timeout, require_all=require_all, limits=limits)

    def set_silent(self, silent: bool) -> None:
        """Whether host3 does not answer."""
        with self._lock:
            self._silent = silent
            self._engine = self._made()

    def write_line(self, text: str) -> None:
        """A line of the log of rank 0, at this moment's place behind all others."""
        with self._lock:
            self._number += 1
            self._add("logs", _line("host0", 0, self._now + self._number * SECOND, 1_000_000 + self._number, text))

    def _add(self, table: str, row: Row) -> None:
        self._rows[0][table].extend(_batches({table: [row]})[table])
        self._engine = self._made()

    def _made(self) -> Engine:
        missing = [Missing(SILENT, "no answer within 8 s")] if self._silent else []
        return Engine(*(self._rows[:-1] if self._silent else self._rows), missing=missing)


def _batches(rows: dict[str, list[Row]]) -> dict[str, list[Any]]:
    pa: Any = importlib.import_module("pyarrow")
    return {name: [pa.RecordBatch.from_pylist(found, schema=TABLES[name].schema())] for name, found in rows.items()}


def _host(host: int, now: int, all_ranks: int) -> dict[str, list[Row]]:
    start = now - 600 * SECOND
    ranks = range(host * all_ranks // HOSTS, (host + 1) * all_ranks // HOSTS)
    random_ = random.Random(host)
    rows = {**_entities(host, ranks, start), **_events(ranks, start), **_numbers(host, ranks.start, now, random_)}
    rows["logs"] = [
        _line(f"host{host}", rank, now - (3000 - index) * 100_000, index, random_.choice(_TEXTS).format(random_.random(), index))
        for index, rank in enumerate(random_.choices(ranks, k=750))
    ]
    if host == 0:
        for table, found in _client(now, start, all_ranks).items():
            rows[table] = rows.get(table, []) + found
    return rows


_TEXTS = ("step {1} loss {0:.4f}", "loaded batch {1}", "gradient norm {0:.3f}", "checkpoint {1} written", "queue depth {1}")


def _line(host: str, rank: int, at: int, seq: int, text: str) -> Row:
    level = {0: "WARNING", 1: "ERROR"}.get(seq % 40)
    return {
        "timestamp_us": at,
        "seq": seq,
        "host": host,
        "proc": f"workers[{rank}]",
        "pid": 10_000 + rank,
        "mesh_name": "trainer",
        "rank": rank,
        "actor_id": actor_id(rank),
        "stream": "logging" if level else "stdout",
        "level": level,
        "logger": "train" if level else None,
        "line": text,
    }


def _entities(host: int, ranks: range, start: int) -> dict[str, list[Row]]:
    return {
        "hosts": [
            {
                "host_id": 11 + host,
                "name": f"host{host}",
                "address": f"tcp://10.0.0.{host}:26600",
                "state": "ready",
                "joined_us": start + host,
                "cpus": 96,
                "memory_bytes": 1 << 40,
                "gpus_json": "[]",
                "version": "0.1.0",
            }
        ],
        "procs": [
            {"proc_id": PROC + rank, "host_id": 11 + host, "mesh_id": PROC_MESH, "rank": rank, "pid": 10_000 + rank, "started_us": start}
            for rank in ranks
        ],
        "actors": [_actor(actor_id(rank), TRAINER_MESH, "trainer", rank, start) for rank in ranks],
    }


def _actor(id: int, mesh: int, name: str, rank: int, start: int) -> Row:
    return {
        "id": id,
        "timestamp_us": start,
        "mesh_id": mesh,
        "rank": rank,
        "full_name": f"<root>.<{name.capitalize()} {name}[{rank}]>",
        "display_name": f"{name}[{rank}]",
    }


def _events(ranks: range, start: int) -> dict[str, list[Row]]:
    statuses: list[Row] = []
    for rank in ranks:
        last = "Failed" if rank == FAILED else "Processing" if rank % 3 else "Idle"
        for step, status in enumerate(("Created", last)):
            statuses.append(
                {
                    "id": 10 * rank + step,
                    "timestamp_us": start + step * 500 * SECOND + rank,
                    "actor_id": actor_id(rank),
                    "new_status": status,
                    "reason": "ValueError: bad batch" if status == "Failed" else None,
                }
            )
    return {"actor_status_events": statuses}


def _numbers(host: int, first: int, now: int, random_: random.Random) -> dict[str, list[Row]]:
    name = f"host{host}"
    resources = [
        {
            "timestamp_us": now - step * 10 * SECOND,
            "host": name,
            "cpu_pct": 4000 + 500 * host + 300 * random_.random(),
            "rss_bytes": (200 + 10 * host - step) << 30,
            "threads": 900,
            "fds": 5000,
        }
        for step in range(60)
    ]
    common = {"scope_name": "monarch", "attributes_json": "{}", "resource_attributes_json": json.dumps({"host.name": name})}
    gauges = [
        {"name": "train.loss", "timestamp_us": now - step * 5 * SECOND, "unit": "1", "value_f64": 1 + step / 60 + random_.random() / 9}
        | common
        for step in range(120)
    ]
    sums = [
        {
            "name": "actor.messages_received",
            "timestamp_us": now - step * 10 * SECOND,
            "start_timestamp_us": now - 3600 * SECOND,
            "unit": "1",
            "temporality": "cumulative",
            "is_monotonic": True,
            "sum_u64": 1_000_000 - 900 * step,
        }
        | common
        for step in range(60)
    ]
    histograms = [
        {
            "name": "endpoint_call_latency_us_histogram",
            "timestamp_us": now - step * 10 * SECOND,
            "start_timestamp_us": now - 3600 * SECOND,
            "unit": "us",
            "temporality": "delta",
            "count": 100,
            "sum_f64": 90_000.0,
            "bounds_json": "[100, 1000, 10000]",
            "bucket_counts_json": json.dumps([10 + step % 7, 80, 9, 1]),
        }
        | common
        for step in range(60)
    ]
    spans: list[Row] = []
    ends: list[Row] = []
    for number in range(80):
        rank = first + number % 4
        at, took = now - 50 * SECOND + (number // 4) * 2 * SECOND, 1_500_000 + number * 1000
        for depth, span in enumerate(("step", "forward")):
            id = 2 * number + depth + 1
            spans.append(
                {
                    "process_id": PROC + rank,
                    "id": id,
                    "name": span,
                    "target": "train",
                    "level": "info",
                    "fields_json": "{}",
                    "timestamp_us": at + depth * 1000,
                    "parent_id": id - 1 if depth else None,
                    "thread_name": "main",
                }
            )
            for kind, then in (("enter", at + depth * 1000), ("exit", at + took // (depth + 1))):
                ends.append({"process_id": PROC + rank, "id": id, "timestamp_us": then, "event_type": kind})
    return {
        "resources": resources,
        "metric_gauges": gauges,
        "metric_sums": sums,
        "metric_histograms": histograms,
        "spans": spans,
        "span_events": ends,
    }


def _client(now: int, start: int, ranks: int) -> dict[str, list[Row]]:
    meshes = [
        _mesh(HOST_MESH, "Host", "hosts", {"hosts": HOSTS}, None),
        _mesh(PROC_MESH, "Proc", "workers", {"gpus": ranks}, HOST_MESH),
        _mesh(TRAINER_MESH, "Trainer", "trainer", {"gpus": ranks}, PROC_MESH),
        _mesh(LOADER_MESH, "Loader", "loader", {"gpus": LOADERS}, PROC_MESH),
    ]
    messages: list[Row] = [
        {
            "id": BIG + 1_000_000 + number,
            "timestamp_us": start + number * 600 * SECOND // 2000,
            "from_actor_id": LOADER + number % LOADERS,
            "to_actor_id": actor_id(number % 50),
            "endpoint": ("step", "load", "save")[number % 7 % 3],
        }
        for number in range(2000)
    ]
    changes: list[Row] = [
        {"id": 3 * number + step, "timestamp_us": message["timestamp_us"] + 900 * step, "message_id": message["id"], "status": status}
        for number, message in enumerate(messages)
        for step, status in enumerate(("queued", "active", "failed" if number % 500 == 0 else "complete"))
    ]
    at = start + 500 * SECOND
    failures = [_failure(71, at, None, "trainer", FAILED, "ValueError: bad batch\n  in train.py, line 31")] + [
        _failure(80 + rank, at + 1000 + rank, 71, "loader", rank, f"trainer[{FAILED}] has failed") for rank in range(2)
    ]
    stats = [
        {
            "window_us": start,
            "side": "server",
            "mesh_name": "trainer",
            "endpoint": endpoint,
            "adverb": "call",
            "count": count,
            "errors": errors,
            "latency_sum_us": count * mean,
            "latency_max_us": mean * 9,
            "latency_buckets_json": "[]",
            "bytes_in": count * 512,
            "bytes_out": count * 128,
        }
        for endpoint, count, errors, mean in (("step", 820_000, 3, 4200), ("load", 410_000, 0, 900), ("save", 120, 0, 2_100_000))
    ]
    audit = [
        {
            "timestamp_us": now - number * 20 * SECOND,
            "who": ("ada", "grace")[number % 2],
            "scope": "admin" if number % 5 == 0 else "read",
            "source": "127.0.0.1",
            "action": "POST /v1/actions/stop_mesh" if number % 5 == 0 else "POST /v1/query",
            "target": "loader" if number % 5 == 0 else "SELECT count(*) FROM actors",
            "outcome": "refused" if number % 9 == 4 else "done",
            "detail": "403 this needs a token of the scope admin" if number % 9 == 4 else "200 in 12 ms",
        }
        for number in range(60)
    ]
    return {
        "meshes": meshes,
        "actors": [_actor(LOADER + rank, LOADER_MESH, "loader", rank, start) for rank in range(LOADERS)],
        "actor_status_events": [
            {"id": 900_000 + rank, "timestamp_us": at + rank, "actor_id": LOADER + rank, "new_status": "Failed" if rank < 2 else "Idle"}
            for rank in range(LOADERS)
        ],
        "messages": messages,
        "message_status_events": changes,
        "failures": failures,
        "endpoint_stats": stats,
        "audit": audit,
    }


def _failure(id: int, at: int, cause: int | None, mesh: str, rank: int, message: str) -> Row:
    return {
        "id": id,
        "timestamp_us": at,
        "kind": "user",
        "first_cause": cause is None,
        "cause_id": cause,
        "mesh_name": mesh,
        "rank": rank,
        "host": "host0",
        "pid": 10_000 + rank,
        "endpoint": "step" if cause is None else None,
        "exit_reason": "failed",
        "message": message,
    }


def _mesh(id: int, kind: str, name: str, shape: dict[str, int], parent: int | None) -> Row:
    size = next(iter(shape.values()))
    view = {"labels": list(shape), "offset": 0, "sizes": [size], "strides": [1]}
    return {
        "id": id,
        "timestamp_us": id - BIG,
        "class": kind,
        "given_name": name,
        "full_name": f"<root>.<{name}>",
        "shape_json": json.dumps(shape),
        "parent_mesh_id": parent,
        "parent_view_json": None if parent is None else json.dumps(view),
    }
