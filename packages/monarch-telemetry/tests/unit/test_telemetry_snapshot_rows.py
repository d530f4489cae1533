"""Rows of snapshots from a look and what events gave, when they are taken, and the GPUs of a host, without processes of a job."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.extension import HostId, JobId, ProcId
from monarch.telemetry._arrow import pa
from monarch.telemetry._collector import gpus
from monarch.telemetry._collector.gpus import Gpu, Gpus, parsed
from monarch.telemetry._collector.keeping import Keeping
from monarch.telemetry._collector.snapshots import Host, Schedule, root_id, snapshot
from monarch.telemetry._engine.one_host import OneHost
from monarch.telemetry._ingest.entities import MOST_ENDED, Ended, Facts, Living, point_of, rank_of
from monarch.telemetry._ingest.ids import FAILURE, actor_id, mixed
from monarch.telemetry._ingest.ingest import Ingest, Known, Work
from monarch.telemetry._ingest.places import Places
from monarch.telemetry._ingest.rows import Rows
from monarch.telemetry._ingest.running import Running
from monarch.telemetry._queries.catalog import load
from monarch.telemetry._store.store import Store
from monarch.telemetry._tables.catalog import TABLES
from monarch.telemetry.errors import TelemetryError

CLIENT, OTHER, PROC, MESH = (1 << 63) + 5, 12, 21, 31
HERE = Host(CLIENT, "host0", "", CLIENT, 500)
THERE = Host(OTHER, "host1", "tcp://10.0.0.1:1", CLIENT, None)
NOTHING = Known({}, {}, {}, {}, {})
NOW = 9_000_000


def actor(mesh: int = MESH, rank: int = 0, **more: Any) -> dict[str, Any]:
    display = f"<root>.<train.Trainer trainer{{'gpus': {rank}/16}}>"
    return {"mesh": f"{mesh:016x}", "display": display, "doing": None, "doing_for": None, "queued": 0, "taken": 7, **more}


def proc(uid: int, *actors: dict[str, Any], name: str = "<root>.<workers{'gpus': 3/16}>", **more: Any) -> dict[str, Any]:
    answer = {"actors": list(actors), "links": []}
    return {"uid": f"{uid:016x}", "pid": 4711, "name": name, "state": "running", "answer": answer, **more}


def look(*procs: dict[str, Any], hosts: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"procs": list(procs), "hosts": [{"state": state} for state in hosts]}


def rows(found: dict[str, Any], table: str, *columns: str) -> list[tuple[Any, ...]]:
    if table not in found:
        return []
    found[table].validate(full=True)
    assert found[table].schema.equals(TABLES[table].schema())
    for field, column in zip(found[table].schema, found[table].columns, strict=True):
        assert field.nullable or not column.null_count, field
    return [tuple(row[name] for name in columns) for row in found[table].to_pylist()]


def test_only_the_clients_host_has_the_root() -> None:
    client = proc(CLIENT, name="client")
    here = snapshot(look(client, hosts=("joined", "lost", "joined", "joining")), HERE, NOTHING, 30, NOW)
    assert rows(here, "snapshots", "snapshot_id", "snapshot_ts") == [(30, NOW)]
    assert rows(here, "root_nodes", "node_id", "num_hosts", "started_at") == [(root_id(CLIENT), 3, 500)]
    assert rows(here, "children", "parent_id", "child_id") == [(root_id(CLIENT), CLIENT), (CLIENT, actor_id(CLIENT, 0))]
    assert rows(here, "actor_nodes", "actor_status", "created_at", "is_system") == [("Client", 500, False)]
    there = snapshot(look(proc(PROC)), THERE, NOTHING, 30, NOW)
    assert "snapshots" not in there and "root_nodes" not in there
    assert rows(there, "host_nodes", "node_id", "addr", "host_num_procs") == [(OTHER, "tcp://10.0.0.1:1", 1)]
    assert rows(there, "children", "parent_id", "child_id", "child_sort_key") == [
        (root_id(CLIENT), OTHER, "host1"),
        (OTHER, PROC, "workers 00000003"),
    ]


def test_living_actors_combine_the_look_and_events() -> None:
    known = NOTHING._replace(
        work={PROC: {MESH: Work(5, 1234, "step"), MESH + 1: Work(1, 9, "load")}}, living={PROC: {MESH: Living("", 777)}}
    )
    running = actor(MESH + 1, 9, doing="fit", doing_for=2.5, queued=4)
    starting = actor(MESH + 2, 10, doing="__init__", doing_for=0.5)
    found = snapshot(look(proc(PROC, actor(), running, starting)), THERE, known, 30, NOW)
    names = (
        "node_id",
        "actor_status",
        "created_at",
        "last_message_handler",
        "total_processing_time_us",
        "queue_depth",
        "messages_processed",
    )
    assert rows(found, "actor_nodes", *names) == [
        (actor_id(PROC, MESH), "Idle", 777, "step", 1234, 0, 7),
        (actor_id(PROC, MESH + 1), "Processing", None, "fit", 9, 4, 7),
        (actor_id(PROC, MESH + 2), "Initializing", None, "__init__", 0, 0, 7),
    ]
    assert rows(found, "active_handlers", "name", "active_count", "oldest_since") == [("fit", 1, 6_500_000), ("__init__", 1, 8_500_000)]
    assert rows(found, "actor_executions", "active_count", "complete") == [(0, True), (1, False), (1, False)]
    # Rank 10 follows rank 9.
    keys = [key for (key,) in rows(found, "children", "child_sort_key")][2:]
    assert keys == sorted(keys) and len(set(keys)) == 3
    assert rows(found, "proc_nodes", "proc_name", "num_actors", "is_poisoned") == [("workers[3]", 3, False)]
    assert "actor_inbound_orderings" not in found and "ordering_sessions" not in found


def test_actors_of_the_runtime_are_marked() -> None:
    services = actor(display="<root>.<monarch.x.Services services>")
    telemetry = proc(PROC, services, name="<root>.<monarch.x.Services services>.<service telemetry>")
    found = snapshot(look(telemetry, proc(PROC + 1, actor())), THERE, NOTHING, 30, NOW)
    assert rows(found, "actor_nodes", "is_system") == [(True,), (False,)]
    assert rows(found, "children", "child_id", "is_system")[1:] == [
        (PROC, True),
        (actor_id(PROC, MESH), True),
        (PROC + 1, False),
        (actor_id(PROC + 1, MESH), False),
    ]
    assert rows(found, "host_nodes", "host_num_procs") == [(1,)]


def test_failed_actors_have_their_first_cause() -> None:
    first, owner = "<root>.<W worker{'gpus': 1/2}>", "<root>.<Boss boss>"
    ended = {
        MESH: Ended(owner, 10, 20, True, "raised", "a child has failed"),
        MESH + 1: Ended(first, 11, 19, True, "raised", "ValueError: x"),
        MESH + 2: Ended("<root>.<W stopped>", 12, 21, False, "stopped", "stop"),
    }
    known = NOTHING._replace(ended={PROC: ended}, failed={PROC: 2}, causes={owner: first}, work={PROC: {MESH: Work(3, 40, "run")}})
    found = snapshot(look(proc(PROC)), THERE, known, 30, NOW)
    columns = (
        "failure_error_message",
        "failure_root_cause_actor",
        "failure_root_cause_name",
        "failure_occurred_at",
        "failure_is_propagated",
    )
    assert rows(found, "actor_failures", *columns) == [
        ("a child has failed", first, "worker{'gpus': 1/2}", 20, True),
        ("ValueError: x", first, "worker{'gpus': 1/2}", 19, False),
    ]
    assert rows(found, "actor_nodes", "actor_status", "messages_processed", "last_message_handler", "created_at") == [
        ("Failed", 3, "run", 10),
        ("Failed", 0, None, 11),
        ("Stopped", 0, None, 12),
    ]
    assert [stopped for (stopped,) in rows(found, "children", "is_stopped")] == [False, False, True, True, True]
    assert rows(found, "proc_nodes", "num_actors", "is_poisoned", "failed_actor_count", "stopped_retention_cap") == [
        (0, True, 2, MOST_ENDED)
    ]


def test_causes_that_name_each_other_end() -> None:
    ended = {MESH: Ended("a", 1, 2, True, "raised", "x")}
    found = snapshot(look(proc(PROC)), THERE, NOTHING._replace(ended={PROC: ended}, causes={"a": "b", "b": "a"}), 30, NOW)
    assert rows(found, "actor_failures", "failure_root_cause_actor") == [("a",)]


def test_silent_hosts_and_procs_are_errors() -> None:
    silent = snapshot(TelemetryError("the agent of this host does not answer: late"), HERE, NOTHING, 30, NOW)
    assert rows(silent, "resolution_errors", "node_id", "error_code", "error_message") == [
        (CLIENT, "gateway_timeout", "the agent of this host does not answer: late")
    ]
    assert rows(silent, "nodes", "node_id", "node_kind") == [(root_id(CLIENT), "root"), (CLIENT, "error")]
    assert "host_nodes" not in silent and len(rows(silent, "snapshots", "snapshot_ts")) == 1
    known = NOTHING._replace(living={PROC: {MESH: Living("", 1), MESH + 1: Living("", 2)}})
    states = [
        proc(PROC, state="unresponsive", answer=None),
        proc(PROC + 1, state="starting", answer=None),
        proc(PROC + 2, state="stopping", answer=None),
    ]
    partly = snapshot(look(*states), THERE, known, 30, NOW)
    assert rows(partly, "resolution_errors", "node_id", "error_message") == [(PROC, "the process 4711 does not answer")]
    assert rows(partly, "proc_nodes", "num_actors") == [(2,), (0,), (0,)]
    assert "actor_nodes" not in partly


@given(st.lists(st.tuples(st.floats(0.2, 60), st.floats(0.001, 100)), min_size=1, max_size=40))
def test_snapshot_numbers_grow_and_agree_across_hosts(steps: list[tuple[float, float]]) -> None:
    one, other = Schedule(), Schedule()
    now, last = 1.7e9, 0
    for interval, passed in steps:
        now += passed
        one.every(interval)
        other.every(interval)
        # The other host looks once more in between, at the time for which the first one waits.
        number, same = one.due(now), other.due(now)
        assert number == same
        if number is not None:
            assert last < number <= now * 1000 + 1
            last = number
        assert one.due(now) is None
        assert 0 <= one.wait(now, 0.2) <= 0.2


def test_snapshots_follow_the_interval_until_they_are_ended() -> None:
    schedule = Schedule()
    assert schedule.due(1000.0) is None and schedule.wait(1000.0, 0.2) == 0.2
    schedule.every(30.0)
    # The first one at once, others at multiples of the interval.
    assert [schedule.due(now) for now in (1000.0, 1010.0, 1019.9, 1020.0, 1049.0, 1050.1)] == [
        990_000,
        None,
        None,
        1_020_000,
        None,
        1_050_000,
    ]
    assert schedule.wait(1079.95, 0.2) == pytest.approx(0.05)
    schedule.every(None)
    assert schedule.due(2000.0) is None


@given(st.lists(st.integers(1, 5), max_size=4), st.data())
def test_points_are_those_of_ranks(sizes: list[int], data: st.DataObject) -> None:
    ranks = 1
    for size in sizes:
        ranks *= size
    rank = data.draw(st.integers(0, ranks - 1))
    assert rank_of(point_of({f"d{at}": size for at, size in enumerate(sizes)}, rank)) == rank


def events(*found: dict[str, Any]) -> Rows:
    kinds = {int: pa.uint64(), str: pa.string()}
    filled = [{"number": 1, "offset": 0, "dims": "", **one} for one in found]
    columns = {name: pa.array([one[name] for one in filled], kinds[type(filled[0][name])]) for name in filled[0]}
    return Rows(len(filled), columns)


def store() -> Store:
    history = {name: table.schema() for name, table in TABLES.items() if table.retention == "history"}
    entities = {name: table.schema() for name, table in TABLES.items() if table.retention == "entities"}
    return Store(history, entities, clock=lambda: 1000.0)


def test_owner_that_ignores_a_failure_has_its_cause() -> None:
    kept = store()
    facts = Facts(kept, Places(), OTHER, "host1", CLIENT)
    made = {
        "mesh": MESH,
        "name": "worker",
        "class": "W",
        "shape": '{"a": 2, "b": 3}',
        "creator": "<root>",
        "age": 0,
        "us": 5,
        "parent": PROC,
    }
    owners = [
        {"proc": PROC, "mesh": mesh, "actor": f"<root>.<Boss {name}>", "us": 5, "age": 0} for mesh, name in ((41, "one"), (42, "two"))
    ]
    facts.begun({"mesh.made": events(made), "actor.start": events(*owners)})
    delivered = [{"mesh": MESH, "rank": 4, "owner": one["actor"], "kind": "raised", "us": 6} for one in owners]
    handled = [{**one, "handled": 1} for one in delivered[1:]]
    ends = [{"proc": PROC, "mesh": one["mesh"], "actor": "", "us": 9, "kind": "raised", "detail": "ValueError: x"} for one in owners]
    # All of it in one look; the second owner has handled the failure, and fails for another reason.
    new = {"supervision.delivered": events(*delivered), "supervision.handled": events(*handled), "actor.end": events(*ends)}
    facts.ended(new, Running())
    _, _, causes = facts.known_actors()
    assert causes == {"<root>.<Boss one>": "<root>.<W worker{'a': 1/2, 'b': 1/3}>"}
    (one,), (two,) = (batch.to_pylist() for batch in kept.snapshot(["failures"])["failures"])
    assert (one["mesh_name"], one["first_cause"], one["cause_id"]) == ("one", False, mixed(FAILURE, MESH, 4))
    assert (two["mesh_name"], two["first_cause"], two["cause_id"]) == ("two", True, None)


def test_ended_actors_of_a_proc_are_bounded() -> None:
    facts = Facts(store(), Places(), OTHER, "host1", CLIENT)
    for mesh in range(1, MOST_ENDED + 6):
        start = {"proc": PROC, "mesh": mesh, "actor": f"<root>.<W w{mesh}>", "us": 5, "age": 2000}
        facts.begun({"actor.start": events(start)})
        end = {"proc": PROC, "mesh": mesh, "actor": "", "us": 9, "kind": "raised", "detail": "ValueError: x\nTraceback"}
        facts.ended({"actor.end": events(end)}, Running())
    living, ended, _ = facts.known_actors()
    assert living == {PROC: {}} and list(ended[PROC]) == list(range(6, MOST_ENDED + 6))
    assert ended[PROC][6] == Ended("<root>.<W w6>", 3, 9, True, "raised", "ValueError: x")


def test_work_of_actors_is_summed_until_they_end() -> None:
    ingest = Ingest(store(), OTHER, "host1", CLIENT, clock=lambda: 1000.0)
    start = {"proc": PROC, "mesh": MESH, "actor": "<root>.<W w>", "us": 5, "age": 2000}
    ingest.facts.begun({"actor.start": events(start)})
    calls = [(MESH, "step", 2_000_000), (MESH + 1, "gone", 1_000), (MESH, "load", 3_000_000)]
    handled = events(*({"proc": PROC, "mesh": mesh, "method": method, "duration": spent} for mesh, method, spent in calls))
    ingest._add_work(handled)  # pyright: ignore[reportPrivateUsage]
    ingest._add_work(handled)  # pyright: ignore[reportPrivateUsage]
    assert ingest.work_of(PROC, MESH) == Work(4, 10_000, "load")
    assert ingest.known().work == {PROC: {MESH: Work(4, 10_000, "load")}}
    assert ingest.work_of(PROC, MESH + 1) == Work()


def program(folder: Path, text: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return tmp_path


def test_gpus_are_those_of_the_program(on_path: Path) -> None:
    program(
        on_path, 'echo "$@" > "$0.arguments"; echo "0, NVIDIA H100 80GB HBM3, 81559, 1024, 97"; echo "1, \\"A, B\\", [N/A], [N/A], [N/A]"'
    )
    assert Gpus().sample() == [
        Gpu(0, "NVIDIA H100 80GB HBM3", 81559 << 20, 1 << 30, 97.0),
        Gpu(1, "A, B", None, None, None),
    ]
    asked = (on_path / "nvidia-smi.arguments").read_text().split()
    assert asked == ["--query-gpu=index,name,memory.total,memory.used,utilization.gpu", "--format=csv,noheader,nounits"]


def test_host_without_gpus_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Gpus().sample() == []


@pytest.mark.parametrize("text", ["echo 'No devices were found'", "echo '0, A, 1, 2, 3'; exit 9", "exec tail -f /dev/null"])
def test_program_that_fails_is_left_out(on_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    program(on_path, text)
    found = Gpus()
    with monkeypatch.context() as patched:
        if "tail" in text:
            patched.setattr(gpus, "_MOST_SECONDS", 0.1)
        assert [found.sample() for _ in range(3)] == [[]] * 3
    program(on_path, "echo '0, A, 1, 2, 3'")
    assert found.sample() == [] and len(Gpus().sample()) == 1


def test_one_failure_leaves_nothing_out(on_path: Path) -> None:
    program(on_path, "exit 1")
    found = Gpus()
    assert (found.sample(), found.sample()) == ([], [])
    program(on_path, "echo '0, A, 1, 2, 3'")
    assert len(found.sample()) == 1
    program(on_path, "exit 1")
    assert (found.sample(), found.sample()) == ([], [])
    program(on_path, "echo '0, A, 1, 2, 3'")
    assert len(found.sample()) == 1


@pytest.mark.parametrize("text", ["0, A, 1, 2", "x, A, 1, 2, 3", "0, A, much, 2, 3"])
def test_lines_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parsed(text)


def test_idle_gpu_is_found(on_path: Path) -> None:
    clock = [1.8e9]
    program(on_path, f"cat {on_path}/now")
    keeping = Keeping(JobId(CLIENT), HostId(CLIENT), "host0", ProcId(99), dict, clock=lambda: clock[0])
    for minute in range(8):
        busy = 95 if minute < 3 else 0
        (on_path / "now").write_text(f"0, NVIDIA Z9, 81559, 2048, {busy}\n1, NVIDIA Z9, 81559, 2048, 93\n")
        keeping.sample()
        clock[0] += 60
    wanted = {name: batches for name, (_, batches) in keeping.tables(["resources", "hosts"]).items()}
    found = OneHost(wanted).ask(load().query("gpu_idle").sql).table.to_pylist()
    assert [(row["host"], row["gpu"], row["memory_mib"], row["others_pct"]) for row in found] == [("host0", 0, 2048.0, 93.0)]
    models = json.loads(wanted["hosts"][0].column("gpus_json")[0].as_py())
    assert [one["index"] for one in models] == [0, 1] and models[0] == {"index": 0, "name": "NVIDIA Z9", "memory_bytes": 81559 << 20}
