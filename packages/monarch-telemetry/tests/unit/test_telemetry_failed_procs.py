"""Failures of procs: what caused them, and what was running."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.telemetry._arrow import pa
from monarch.telemetry._ingest.entities import Facts
from monarch.telemetry._ingest.messages import Messages
from monarch.telemetry._ingest.places import Places
from monarch.telemetry._ingest.rows import Rows
from monarch.telemetry._ingest.running import Running
from monarch.telemetry._ingest.sampling import Sampling
from monarch.telemetry._store.store import Store
from monarch.telemetry._tables.catalog import TABLES

HOST, CLIENT, WORKER, PROCS, MESH, OTHER = 11, 21, (1 << 63) + 5, 41, 31, 32


def rows(*events: dict[str, Any], proc: int = WORKER) -> Rows:
    filled = [{"proc": proc, "number": number, "us": 1_000_000, **event} for number, event in enumerate(events)]

    def column(name: str) -> Any:
        kind = pa.string() if isinstance(filled[0][name], str) else pa.int64() if name == "us" else pa.uint64()
        return pa.array([one[name] for one in filled], kind)

    return Rows(len(filled), {name: column(name) for name in filled[0]})


def facts() -> tuple[Facts, Store]:
    history = {name: table.schema() for name, table in TABLES.items() if table.retention in ("history", "on demand")}
    entities = {name: table.schema() for name, table in TABLES.items() if table.retention == "entities"}
    kept = Store(history, entities, clock=lambda: 100.0)
    found = Facts(kept, Places(), HOST, "here", CLIENT)
    actors = ({"mesh": mesh, "actor": f"<root>.<A {name}>", "age": 0} for mesh, name in ((MESH, "a"), (OTHER, "b")))
    found.begun({"proc.start": rows({"mesh": "p-x", "rank": 0, "pid": 7, "id": PROCS, "age": 0}), "actor.start": rows(*actors)})
    return found, kept


def failures(kept: Store) -> dict[str, dict[str, Any]]:
    return {row["mesh_name"]: row for batch in kept.snapshot(["failures"])["failures"] for row in batch.to_pylist()}


def end(kind: str, number: int = 0, detail: str = "") -> dict[str, Rows]:
    return {"proc.end": rows({"peer": WORKER, "kind": kind, "number": number, "pid": 7, "detail": detail}, proc=HOST)}


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("signal", "infrastructure"),
        ("oom", "infrastructure"),
        ("host_lost", "infrastructure"),
        ("link_lost", "infrastructure"),
        ("client_lost", "infrastructure"),
        ("exit_code", "user"),
        ("not_started", "system"),
    ],
)
def test_exit_kind_decides_the_failure_kind(kind: str, cause: str) -> None:
    found, kept = facts()
    found.ended(end(kind, 9), Running())
    assert {name: row["kind"] for name, row in failures(kept).items()} == {"p": cause, "a": cause, "b": cause}


def test_signal_is_recorded_by_the_host_only() -> None:
    found, kept = facts()
    found.ended({"supervision.delivered": rows({"mesh": MESH, "rank": 0, "owner": "<root>", "kind": "signal"}, proc=CLIENT)}, Running())
    assert failures(kept) == {}


def test_dead_proc_has_its_running_endpoint() -> None:
    found, kept = facts()
    messages = Messages(Sampling())
    common = {"peer": CLIENT, "rank": 0, "parent": 0}

    def begun(call: int, mesh: int, method: str) -> dict[str, Any]:
        return {"call": call, "mesh": mesh, "method": method, **common}

    messages.batches({"message.begun": rows(begun(1, MESH, "first"), begun(0, OTHER, "told"), begun(2, MESH, "step"))}, {})
    ends = ({**begun(1, MESH, "first"), "duration": 5, "failed": 0}, {**begun(0, OTHER, "told"), "duration": 5, "failed": 0})
    messages.batches({"message.handled": rows(*ends)}, {})
    found.ended(end("signal", 9), messages.running)
    assert {name: row["endpoint"] for name, row in failures(kept).items()} == {"p": "step", "a": "step", "b": None}
    messages.running.forget(WORKER)
    assert messages.running.endpoint(WORKER) is None


def test_exception_has_its_traceback_apart_from_its_message() -> None:
    found, kept = facts()
    trace = 'Traceback of where:\n  File "a.py", line 3, in step\nValueError: no such row'
    raised = {"mesh": MESH, "kind": "raised", "detail": f"ValueError: no such row\n{trace}", "actor": "<root>.<A a>"}
    found.ended({"actor.end": rows(raised)}, Running())
    row = failures(kept)["a"]
    assert (row["message"], row["traceback"], row["kind"]) == ("ValueError: no such row", trace, "user")
    (statuses,) = kept.snapshot(["actor_status_events"])["actor_status_events"][-1:]
    assert statuses.column("reason").to_pylist()[-1] == "ValueError: no such row"


def test_end_found_later_is_no_failure() -> None:
    found, kept = facts()
    found.found_ended([{"us": 5, "peer": WORKER, "kind": "unknown", "number": 0, "detail": "overwritten"}], [], Running())
    assert failures(kept) == {} and found.living_procs() == set()
    (known,) = [row for batch in kept.snapshot(["procs"])["procs"] for row in batch.to_pylist()]
    assert (known["exit_reason"], known["ended_us"]) == ("unknown: overwritten", 5)
