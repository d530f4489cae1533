"""Rows that other wheels report as events: defaults, refusals, entities that end, and a flood of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monarch.telemetry._arrow import pa
from monarch.telemetry._ingest import reported as reported_module
from monarch.telemetry._ingest.places import Place, Places
from monarch.telemetry._ingest.reported import Reported
from monarch.telemetry._ingest.rows import Rows
from monarch.telemetry._store.store import Store
from monarch.telemetry._tables.catalog import TABLES

PROC, PEER = 5, 6


def made() -> tuple[Reported, Store]:
    history = {name: TABLES[name].schema() for name in ("rdma_ops", "fs_events", "job_events")}
    store = Store(history, {name: TABLES[name].schema() for name in ("rdma_buffers", "mounts")}, clock=lambda: 1.0)
    places = Places()
    places.put(PROC, Place("workers[0]", 100, "workers", 0))
    places.put(PEER, Place("workers[1]", 101, "workers", 1))
    return Reported(store, places, "node"), store


def events(*given: tuple[str, Any], us: int = 7) -> Rows:
    texts = [fields if fields is None or isinstance(fields, str) else json.dumps(fields) for _, fields in given]
    columns = {
        "name": pa.array([name for name, _ in given], pa.string()),
        "fields": pa.array(texts, pa.string()),
        "proc": pa.array([PROC] * len(given), pa.uint64()),
        "us": pa.array([us] * len(given), pa.int64()),
    }
    return Rows(len(given), columns)


def stored(store: Store, table: str) -> list[dict[str, Any]]:
    return [row for batch in store.snapshot([table])[table] for row in batch.to_pylist()]


OP = {"peer": "process 101", "peer_id": PEER, "op": "read", "path": "shm", "bytes": 8, "latency_us": 3, "retries": 0}


def test_reported_event_becomes_a_row_of_its_table() -> None:
    reported, store = made()
    rest = reported.take(events(("rdma_ops", OP), ("loading", {"step": 1}), ("rdma_ops", {**OP, "peer_id": 99, "error": "gone"})))
    assert rest["name"].to_pylist() == ["loading"]
    known = {"timestamp_us": 7, "proc": "workers[0]", "op": "read", "path": "shm", "bytes": 8, "latency_us": 3, "retries": 0}
    assert stored(store, "rdma_ops") == [
        {**known, "peer": "workers[1]", "error": None},
        {**known, "peer": "process 101", "error": "gone"},
    ]
    assert reported.take(events(("job_events", {"timestamp_us": 1, "job": "j", "kind": "slurm", "event": "healed"}))).count == 0
    assert stored(store, "job_events")[0]["timestamp_us"] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {**OP, "bytes": "many"},
        {**OP, "colour": "red"},
        {**OP, "bytes": -1},
        {"op": "read"},
        '{"op": "re',
        "[1]",
    ],
    ids=str,
)
def test_event_unfit_for_its_table_stays_an_event(wrong: Any) -> None:
    reported, store = made()
    rest = reported.take(events(("rdma_ops", wrong), ("rdma_ops", OP), ("mounts", {"source": "/a"}), ("own", {})))
    assert sorted(rest["name"].to_pylist()) == ["mounts", "own", "rdma_ops"]
    assert len(stored(store, "rdma_ops")) == 1 and stored(store, "mounts") == []


def test_buffers_end_by_themselves_and_with_their_process() -> None:
    reported, store = made()

    def buffer(number: int, **more: Any) -> tuple[str, Any]:
        return "rdma_buffers", {"buffer": number, **more}

    new = {"bytes": 4, "readonly": False, "given_away": False}
    reported.take(events(buffer(1, **new), buffer(2, **new), buffer(3, **new)))
    reported.take(events(buffer(1, given_away=True), buffer(2, ended=True), us=9))
    assert [(row["buffer"], row["given_away"], row["created_us"]) for row in stored(store, "rdma_buffers")] == [(1, True, 7), (3, False, 7)]
    reported.end(PROC)
    assert stored(store, "rdma_buffers") == []
    # One without a recorded start has no row.
    assert reported.take(events(buffer(4, given_away=True))).count == 1 and stored(store, "rdma_buffers") == []


def test_ended_mount_keeps_its_last_values() -> None:
    reported, store = made()
    mount = {"target": "/data", "source": "/src", "generation": 1, "state": "live", "bytes_held": 5, "faults": 0}
    reported.take(events(("mounts", mount)))
    reported.take(events(("mounts", {"target": "/data", "state": "unmounted", "ended": True})))
    assert stored(store, "mounts") == [{**mount, "host": "node", "state": "unmounted"}]


def test_flood_and_overwritten_fields_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reported_module, "_MOST", 3)
    reported, store = made()
    assert reported.take(events(*[("rdma_ops", OP)] * 5, ("job_events", None))).count == 0
    assert len(stored(store, "rdma_ops")) == 3 and reported.dropped == {"rdma_ops": 2, "job_events": 1}
