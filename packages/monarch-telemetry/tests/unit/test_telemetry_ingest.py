"""Events become rows: ids that all hosts agree on, states of messages, samples with their weight, exact counts, places, failures."""

from __future__ import annotations

import json
from math import isnan, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.telemetry._arrow import pa
from monarch.telemetry._engine.one_host import OneHost
from monarch.telemetry._ingest import ingest as ingest_module
from monarch.telemetry._ingest.activity import Logs, event_batch, span_batches, trace_id
from monarch.telemetry._ingest.broadcasts import Broadcasts
from monarch.telemetry._ingest.endpoints import WINDOW_US, EndpointStats
from monarch.telemetry._ingest.entities import Facts, rank_of
from monarch.telemetry._ingest.ids import EVENT, FAILURE, actor_id, actor_ids, event_id, event_ids, mixed, mixed_columns
from monarch.telemetry._ingest.ingest import Ingest
from monarch.telemetry._ingest.messages import Messages
from monarch.telemetry._ingest.metrics import BOUNDS, Metrics
from monarch.telemetry._ingest.places import Place, Places
from monarch.telemetry._ingest.rows import Part, Rows
from monarch.telemetry._ingest.running import Running
from monarch.telemetry._ingest.sampling import Sampling
from monarch.telemetry._store.store import Store
from monarch.telemetry._tables.catalog import TABLES

HOST, CLIENT, WORKER, MESH, PROCS = 11, 21, (1 << 63) + 5, 31, 41
ID = st.integers(0, (1 << 64) - 1)
_KINDS = {int: pa.uint64(), str: pa.string(), float: pa.float64(), bytes: pa.binary()}
_numbers = iter(range(1, 1 << 40))
# The fields of events of a whole mesh.
WHOLE = {"offset": 0, "dims": ""}


def rows(*events: dict[str, Any], proc: int = WORKER, us: int = 1_000_000) -> Rows:
    """Events of one type of a process, with the columns that each type has."""
    filled = [{"proc": proc, "number": next(_numbers), "thread": 7, "trace": bytes(24), "us": us, **WHOLE, **event} for event in events]
    kinds = {"us": pa.int64(), "trace": pa.binary(24), "thread": pa.uint32()}
    columns = {name: pa.array([one[name] for one in filled], kinds.get(name) or _kind([one[name] for one in filled])) for name in filled[0]}
    return Rows(len(filled), columns)


def _kind(column: list[Any]) -> Any:
    """Of a column without any value: text."""
    return _KINDS[type(next((value for value in column if value is not None), ""))]


def message(call: int, **fields: Any) -> dict[str, Any]:
    return {"mesh": MESH, "method": "step", "rank": 0, "peer": CLIENT, "call": call, **fields}


def received(*calls: int, **more: Any) -> Rows:
    return rows(*(message(call, sender=0, bytes=100, depth=1) for call in calls), **more)


def begun(*calls: int) -> Rows:
    return rows(*(message(call, parent=0) for call in calls))


def handled(*calls: int, failed: int = 0, duration: int = 5_000_000, **more: Any) -> Rows:
    return rows(*(message(call, duration=duration, failed=failed) for call in calls), **more)


def values(batches: list[Any], *columns: str) -> list[tuple[Any, ...]]:
    return [row for batch in batches for row in zip(*(batch.column(name).to_pylist() for name in columns), strict=True)]


@settings(deadline=None)
@given(st.lists(st.tuples(ID, ID), min_size=1, max_size=20))
def test_ids_of_columns_are_those_of_rows(pairs: list[tuple[int, int]]) -> None:
    left, right = (pa.array(column, pa.uint64()) for column in zip(*pairs, strict=True))
    assert mixed_columns(3, left, right).to_pylist() == [mixed(3, *pair) for pair in pairs]
    assert actor_ids(left, right).to_pylist() == [actor_id(*pair) for pair in pairs]
    assert event_ids(EVENT, left, right).to_pylist() == [event_id(EVENT, *pair) for pair in pairs]


def test_ids_of_different_things_differ() -> None:
    parts = [(a, b) for a in range(300) for b in range(300)]
    assert len({mixed(*pair) for pair in parts}) == len(parts)
    assert mixed(1, 2) != mixed(2, 1) and mixed(0) != mixed(0, 0)


def test_ids_of_events_have_their_order() -> None:
    for proc in range(100):
        ids = [event_id(EVENT, proc, number) for number in range(1000)]
        assert ids == sorted(set(ids))
    of_procs = {event_id(EVENT, proc, block << 20) for proc in range(300) for block in range(300)}
    assert len(of_procs) == 300 * 300 and event_id(1, 2, 3) != event_id(2, 2, 3)


def test_states_of_one_microsecond_have_their_order() -> None:
    same = [dict(message(call, parent=0), us=7) for call in range(20)]
    ends = [dict(message(call, duration=1, failed=0), us=7) for call in range(20)]
    for at, pair in enumerate(zip(same, ends, strict=True)):
        for more, row in enumerate(pair):
            row["number"] = 2 * at + more
    found = Messages(Sampling()).batches({"message.begun": rows(*same), "message.handled": rows(*ends)}, {})
    states = sorted(values(found["actor_status_events"], "timestamp_us", "id", "new_status"))
    assert [state for _, _, state in states] == ["Processing", "Idle"] * 20


def test_states_of_a_message_have_its_id() -> None:
    messages = Messages(Sampling())
    one = messages.batches({"message.received": received(1, 2)}, {})
    two = messages.batches({"message.begun": begun(1), "message.handled": handled(1, failed=1)}, {})
    three = messages.batches({"message.begun": begun(2), "message.handled": handled(2)}, {})
    ids = [number for (number,) in values(one["messages"], "id")]
    states = [state for found in (one, two, three) for state in values(found["message_status_events"], "message_id", "status")]
    assert [status for number, status in states if number == ids[0]] == ["queued", "active", "failed"]
    assert [status for number, status in states if number == ids[1]] == ["queued", "active", "complete"]
    assert values(one["messages"], "to_actor_id", "endpoint")[0] == (actor_id(WORKER, MESH), "step")


def test_messages_without_a_caller_are_ordered() -> None:
    messages = Messages(Sampling())
    found = messages.batches({"message.received": received(0, 0, 9, 0)}, {})
    ids = [number for (number,) in values(found["messages"], "id")]
    assert len(set(ids)) == 4
    later = messages.batches({"message.begun": begun(0, 0), "message.handled": handled(0)}, {})
    assert values(later["message_status_events"], "message_id", "status") == [(ids[0], "active"), (ids[1], "active"), (ids[0], "complete")]


def test_call_to_several_receivers_is_one_row() -> None:
    messages = Messages(Sampling())
    fields = {"mesh": MESH, "method": "step", "sender": 0, "bytes": 1, "parent": 0}
    several = rows(*({**fields, "rank": rank, "peer": 100 + rank, "call": 5} for rank in range(3)), proc=CLIENT)
    more = rows({**fields, "rank": 3, "peer": 103, "call": 5}, {**fields, "rank": 0, "peer": 100, "call": 6}, proc=CLIENT)
    found = [*messages.batches(Broadcasts().mark({"message.sent": several}), {MESH: '{"gpus": 4}'})["sent_messages"]]
    found += messages.batches(Broadcasts().mark({"message.sent": more}), {MESH: '{"gpus": 4}'})["sent_messages"]
    assert values(found, "actor_mesh_id", "shape_json") == [(MESH, '{"gpus": 4}')] * 2
    assert len({number for (number,) in values(found, "id")}) == 2


@pytest.mark.parametrize(("number", "weight"), [(100, 1), (150, 2), (350, 4), (100_000, 1024)])
def test_message_sample_above_the_limit_has_all_states(number: int, weight: int) -> None:
    sampling = Sampling(100)
    messages = Messages(sampling)
    calls = range(1, number + 1)
    found = messages.batches({"message.received": received(*calls), "message.handled": handled(*calls)}, {})
    ids = {one for (one,) in values(found["messages"], "id")}
    assert sampling.weight == weight
    assert {one for one, _ in values(found["message_status_events"], "message_id", "status")} == ids
    assert number / weight / 2 < len(ids) < number / weight * 2 if weight > 1 else len(ids) == number
    # The next second is a quiet one.
    quiet = messages.batches({"message.received": received(*calls[:50], us=2_500_000)}, {})
    assert sampling.weight == 1 and sum(batch.num_rows for batch in quiet["messages"]) >= 50 // weight // 2


def test_no_limit_leaves_nothing_out() -> None:
    found = Messages(Sampling(None)).batches({"message.received": received(*range(1, 50_001))}, {})
    assert sum(batch.num_rows for batch in found["messages"]) == 50_000


@pytest.mark.timeout(100)
@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3 * WINDOW_US), st.integers(0, 10**9), st.integers(0, 1)), min_size=1, max_size=30))
def test_counts_of_endpoints_are_exact(events: list[tuple[int, int, int]]) -> None:
    stats = EndpointStats()
    for us, duration, failed in events:
        stats.add({"message.handled": handled(1, failed=failed, duration=duration, us=us)})
    open_ones = stats.current({MESH: "trainers"})
    closed = stats.closed(2 * WINDOW_US + 1_000_000, {MESH: "trainers"})
    later = stats.current({MESH: "trainers"})
    for batches in ([open_ones], [one for one in (closed, later) if one is not None]):
        # Not by SQL: two hundred plans, each within the time of a query, are too much for a busy machine.
        found = [row for batch in batches for row in batch.to_pylist()]
        sums = {key: sum(row[name] for row in found) for key, name in (("n", "count"), ("e", "errors"), ("s", "latency_sum_us"))}
        durations = [duration // 1000 for _, duration, _ in events]
        wanted = {"n": len(events), "e": sum(failed for *_, failed in events), "s": sum(durations), "m": max(durations)}
        assert {**sums, "m": max(row["latency_max_us"] for row in found)} == wanted
    buckets = [pair for text in open_ones.column("latency_buckets_json").to_pylist() for pair in json.loads(text)]
    assert sum(count for _, count in buckets) == len(events)


def test_meshes_of_one_name_share_their_counts() -> None:
    stats = EndpointStats()
    for mesh in (MESH, MESH + 1, MESH + 2):
        one = {**message(mesh, duration=7_000 * mesh, failed=int(mesh == MESH)), "mesh": mesh}
        stats.add({"message.handled": rows(one, {**one, "call": 0})})
    names = {MESH: "passing", MESH + 1: "passing", MESH + 2: "other"}
    columns = ("mesh_name", "adverb", "count", "errors", "latency_sum_us", "latency_max_us")
    wanted = [
        ("other", "broadcast", 1, 0, 7 * (MESH + 2), 7 * (MESH + 2)),
        ("other", "call", 1, 0, 7 * (MESH + 2), 7 * (MESH + 2)),
        ("passing", "broadcast", 2, 1, 7 * (2 * MESH + 1), 7 * (MESH + 1)),
        ("passing", "call", 2, 1, 7 * (2 * MESH + 1), 7 * (MESH + 1)),
    ]
    assert values([stats.current(names)], *columns) == wanted
    assert values([stats.current(names)], "latency_buckets_json")[-1] == (json.dumps([[256, 2]]),)
    assert values([stats.closed(3 * WINDOW_US, names)], *columns) == wanted
    assert stats.current(names).num_rows == 0


def test_caller_latency_ends_with_the_last_answer() -> None:
    stats = EndpointStats()
    fields = {"mesh": MESH, "method": "step", "sender": 0, "parent": 0, "rank": 0, "bytes": 10}
    sent = rows({**fields, "peer": 100, "call": 1 << 63}, {**fields, "peer": 101, "call": 1 << 63}, proc=CLIENT, us=1_000_000)
    stats.add(Broadcasts().mark({"message.sent": sent}))
    assert stats.current({}).num_rows == 0
    stats.add({"call.done": rows({"call": 1 << 63, "targets": 2, "stream": 0, "failed": 1}, proc=CLIENT, us=1_004_000)})
    (row,) = stats.current({MESH: "trainers"}).to_pylist()
    assert (row["side"], row["adverb"], row["count"], row["errors"]) == ("client", "call", 1, 1)
    assert (row["latency_sum_us"], row["bytes_out"], row["mesh_name"]) == (4000, 20, "trainers")


def test_first_value_without_a_number_is_a_row() -> None:
    metrics, places = Metrics(), Places()

    def update(us: int, name: str, amount: float) -> None:
        metrics.add(rows({"meter": "m", "name": name, "kind": "gauge", "amount": amount, "attributes": None, "us": us}))

    for us, step, loss in ((1, 8.0, 0.5), (3, 9.0, nan), (5, 10.0, nan)):
        update(us, "step", step)
        update(us + 1, "loss", loss)
    update(7, "never", nan)
    found = metrics.batches(2_000_000, places)["metric_gauges"][0].to_pylist()
    shown = [(row["name"], row["timestamp_us"], row["value_f64"]) for row in found]
    assert [row[:2] for row in shown] == [("step", 3), ("step", 5), ("loss", 2), ("loss", 4), ("loss", 6), ("never", 7)]
    assert shown[0][2] == 9.0 and isnan(shown[3][2])
    assert metrics.batches(4_000_000, places) == {}


def test_metrics_keep_fractions_and_are_cumulative() -> None:
    metrics, places = Metrics(), Places()
    places.put(WORKER, Place("workers[3]", 99, "workers", 3))

    def update(kind: str, *amounts: float) -> None:
        metrics.add(rows(*({"meter": "m", "name": kind, "kind": kind, "amount": amount, "attributes": None} for amount in amounts)))

    update("counter", 0.5, 0.25)
    update("gauge", 1.0, -2.5)
    update("histogram", 1.0, 7.0, 99999.0)
    found = metrics.batches(2_000_000, places)
    (total,), (last,) = found["metric_sums"][0].to_pylist(), found["metric_gauges"][0].to_pylist()
    (histogram,) = found["metric_histograms"][0].to_pylist()
    assert (total["sum_f64"], total["is_monotonic"], last["value_f64"]) == (0.75, True, -2.5)
    assert json.loads(total["resource_attributes_json"]) == {
        "service.name": "monarch", "telemetry.sdk.name": "monarch", "monarch.mesh": "workers", "monarch.rank": 3, "process.pid": 99
    }  # fmt: skip
    counts = json.loads(histogram["bucket_counts_json"])
    assert (histogram["count"], histogram["min_f64"], histogram["max_f64"], len(counts)) == (3, 1.0, 99999.0, len(BOUNDS) + 1)
    assert sum(counts) == 3 and counts[-1] == 1
    update("counter", 1.0)
    assert metrics.batches(2_000_001, places) == {}
    assert metrics.batches(2_000_002, places, now=True)["metric_sums"][0].to_pylist()[0]["sum_f64"] == 1.75


@pytest.mark.parametrize(
    ("point", "rank"), [("", 0), ("{'gpus': 3/8}", 3), ("{'hosts': 1/2, 'gpus': 3/8}", 11), ("{'a': 1/2, 'b': 0/3, 'c': 4/5}", 19)]
)
def test_ranks_of_points(point: str, rank: int) -> None:
    assert rank_of(point) == rank


def store() -> Store:
    history = {name: table.schema() for name, table in TABLES.items() if table.retention in ("history", "on demand")}
    entities = {name: table.schema() for name, table in TABLES.items() if table.retention == "entities"}
    return Store(history, entities, clock=lambda: 100.0)


def facts() -> tuple[Facts, Store, Places]:
    kept, places = store(), Places()
    found = Facts(kept, places, HOST, "here", CLIENT)
    started = {"mesh": "workers-abc", "rank": 2, "pid": 77, "id": PROCS, "age": 5_000_000}
    made = {"parent": PROCS, "class": "train.Trainer", "name": "trainer", "creator": "<root>", "shape": '{"gpus": 4}', "age": 0}
    begins = {
        "proc.start": rows(started),
        "mesh.made": rows({"mesh": MESH, **made}, proc=CLIENT),
        "actor.start": rows({"mesh": MESH, "actor": "<root>.<train.Trainer trainer{'gpus': 2/4}>", "age": 0}),
    }
    found.begun(begins)
    # Everything is introduced again to each new observer.
    found.begun(begins)
    return found, kept, places


def ask(kept: Store, sql: str) -> list[tuple[Any, ...]]:
    tables = [name for name, table in TABLES.items() if not table.function and table.retention != "live"]
    return [tuple(row.values()) for row in OneHost(kept.snapshot(tables)).ask(sql).table.to_pylist()]


def test_living_entities_are_recorded_once() -> None:
    _, kept, places = facts()
    assert ask(kept, "SELECT rank, pid, started_us, mesh_id FROM procs") == [(2, 77, 995_000, PROCS)]
    assert ask(kept, "SELECT id, rank, display_name FROM actors") == [(actor_id(WORKER, MESH), 2, "trainer{'gpus': 2/4}")]
    assert ask(kept, "SELECT class, given_name, parent_mesh_id FROM meshes") == [("train.Trainer", "trainer", PROCS)]
    # A new actor is initialized by a message; an earlier one is introduced with an age.
    assert ask(kept, "SELECT new_status FROM actor_status_events") == [("Created",)]
    (region,) = ask(kept, "SELECT shape_json FROM meshes")
    assert json.loads(region[0]) == {"labels": ["gpus"], "slice": {"offset": 0, "sizes": [4], "strides": [1]}}
    assert places.get(WORKER) == Place("workers[2]", 77, "workers", 2)


def test_client_is_the_root_and_old_actors_idle() -> None:
    kept = store()
    found = Facts(kept, Places(), HOST, "here", CLIENT)
    begins = {
        "proc.start": rows({"mesh": "client", "rank": 0, "pid": 7, "id": 5, "age": 0}, proc=CLIENT),
        "actor.start": rows({"mesh": MESH, "actor": "<root>.<train.Trainer trainer>", "age": 5_000}),
    }
    found.begun(begins)
    found.begun(begins)
    assert ask(kept, "SELECT full_name, display_name FROM actors WHERE id = " + str(actor_id(CLIENT, 0))) == [("<root>", "<root>")]
    statuses = ask(kept, "SELECT actor_id, new_status FROM actor_status_events ORDER BY new_status")
    assert statuses == [(actor_id(CLIENT, 0), "Client"), (actor_id(WORKER, MESH), "Created"), (actor_id(WORKER, MESH), "Idle")]


@pytest.mark.parametrize(
    ("part", "view"),
    [
        ({"offset": 2, "dims": "hosts=2:1"}, {"labels": ["hosts"], "slice": {"offset": 1, "sizes": [2], "strides": [1]}}),
        # An event of a process of an older version.
        (WHOLE, None),
    ],
)
def test_procs_have_the_part_of_their_hosts(part: dict[str, Any], view: Any) -> None:
    kept = store()
    made = {"parent": 77, "class": "", "name": "procs", "creator": "<root>", "shape": '{"hosts": 2, "gpus": 3}', "age": 0, **part}
    Facts(kept, Places(), HOST, "here", CLIENT).begun({"mesh.made": rows({"mesh": PROCS, **made}, proc=CLIENT)})
    ((kind, parent, found, region),) = ask(kept, "SELECT class, parent_mesh_id, parent_view_json, shape_json FROM meshes")
    assert (kind, parent, json.loads(found or "null")) == ("Proc", 77, view)
    assert json.loads(region) == {"labels": ["hosts", "gpus"], "slice": {"offset": 0, "sizes": [2, 3], "strides": [3, 1]}}


def test_message_to_a_slice_has_its_view() -> None:
    whole, mesh = '{"labels": ["gpus"]}', {"mesh": MESH, "method": "step", "sender": 0, "bytes": 1, "parent": 0, "rank": 0, "peer": WORKER}
    parts = [WHOLE, {"offset": 1, "dims": ""}, {"offset": 4, "dims": 'hosts=2:4 "a \\"b"=3:1'}, {"offset": 4, "dims": "gpus=1:1"}, WHOLE]
    sent = rows(*({**mesh, **part, "call": call} for call, part in enumerate(parts, 1)), proc=CLIENT)
    found = Messages(Sampling()).batches(Broadcasts().mark({"message.sent": sent}), {MESH: whole})["sent_messages"]
    views = [view for view, shape in values(found, "view_json", "shape_json") if view == shape]
    assert views[0] == views[4] == whole and len(views) == 5
    assert [json.loads(view) for view in views[1:4]] == [
        {"labels": [], "slice": {"offset": 0, "sizes": [], "strides": []}},
        {"labels": ["hosts", 'a "b'], "slice": {"offset": 3, "sizes": [2, 3], "strides": [4, 1]}},
        {"labels": ["gpus"], "slice": {"offset": 3, "sizes": [1], "strides": [1]}},
    ]


def test_first_and_last_message_are_actor_states() -> None:
    messages = Messages(Sampling(1))
    sent = [
        {"mesh": MESH, "method": one, "sender": 0, "bytes": 1, "parent": 0, "rank": 0, "peer": WORKER} for one in ("__init__", "step", "")
    ]
    calls = [{**one, "call": number} for number, one in enumerate(sent, 1)]
    found = messages.batches(Broadcasts().mark({"message.sent": rows(*calls, proc=CLIENT)}), {})
    assert values(found["sent_messages"], "actor_mesh_id") == [(MESH,)]
    begins = [{**message(number), "parent": 0, "method": one} for number, one in enumerate(("__init__", "step", ""), 1)]
    states = values(messages.batches({"message.begun": rows(*begins)}, {})["actor_status_events"], "new_status")
    assert states == [("Initializing",), ("Processing",), ("Stopping",)]
    # These two have their state with any number of messages.
    many = [{**message(number), "parent": 0, "method": "step"} for number in range(10, 5_000)]
    counted = rows(*({**one, "sender": 0, "bytes": 1, "depth": 1} for one in many))
    late = messages.batches({"message.received": counted, "message.begun": rows(*begins[:1], *many, *begins[2:])}, {})
    shown = values(late["actor_status_events"], "new_status")
    assert shown[0] == ("Initializing",) and shown[-1] == ("Stopping",) and len(shown) < 2_000


def test_proc_end_is_the_first_cause_of_actors() -> None:
    found, kept, places = facts()
    lines = Logs("here").batches({"output.line": rows(*({"peer": WORKER, "stream": "stdout", "line": f"{n}"} for n in range(30)))}, places)
    for batch in lines:
        kept.append("logs", batch)
    found.ended({"proc.end": rows({"peer": WORKER, "kind": "signal", "number": 9, "pid": 77, "detail": ""}, proc=HOST)}, Running())
    wanted = mixed(FAILURE, PROCS, 2)
    assert ask(kept, "SELECT id, kind, cause_id, message FROM failures ORDER BY first_cause DESC") == [
        (wanted, "infrastructure", None, "signal 9"),
        (mixed(FAILURE, MESH, 2), "infrastructure", wanted, "its proc has ended: signal 9"),
    ]
    assert ask(kept, "SELECT last_lines FROM failures WHERE first_cause") == [("\n".join(map(str, range(20, 30))),)]
    assert ask(kept, "SELECT signal, exit_code, exit_reason FROM procs") == [(9, None, "signal")]


def test_stop_and_other_jobs_are_no_failures() -> None:
    found, kept, _ = facts()
    found.ended({"actor.end": rows({"mesh": MESH, "actor": "x", "kind": "stopped", "detail": "by its owner"})}, Running())
    ends = rows(
        {"peer": WORKER, "kind": "stopped", "number": 0, "pid": 77, "detail": "stopped by client"},
        {"peer": 999, "kind": "signal", "number": 9, "pid": 78, "detail": ""},
        proc=HOST,
    )
    found.ended({"proc.end": ends}, Running())
    assert ask(kept, "SELECT count(*) FROM failures") == [(0,)]
    assert ask(kept, "SELECT exit_reason FROM procs") == [("stopped: stopped by client",)]
    assert ask(kept, "SELECT reason FROM actor_status_events WHERE new_status = 'Stopped'") == [("by its owner",)]


def test_meshes_without_living_members_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    found, kept, _ = facts()
    monkeypatch.setattr(found._meshes, "_most", 1)
    for number in range(3):
        mesh = 1000 + number
        made = {"mesh": mesh, "parent": PROCS, "class": "A", "name": "a", "creator": "<root>", "shape": "{}", "age": 0}
        found.begun({"mesh.made": rows(made, proc=CLIENT), "actor.start": rows({"mesh": mesh, "actor": "<root>.<A a>", "age": 0})})
        found.ended({"actor.end": rows({"mesh": mesh, "actor": "<root>.<A a>", "kind": "stopped", "detail": ""})}, Running())
    assert ask(kept, "SELECT id FROM meshes ORDER BY id") == [(MESH,), (1002,)]
    assert set(found.names) == {PROCS, MESH, 1002} and set(found.shapes) == {MESH, 1002}
    # The end of their proc ends all of its actors, each once.
    found.ended({"proc.end": rows({"peer": WORKER, "kind": "signal", "number": 9, "pid": 77, "detail": ""}, proc=HOST)}, Running())
    assert ask(kept, "SELECT id FROM meshes") == [] and set(found.names) == {PROCS}


def test_failed_actor_has_its_endpoint_and_text() -> None:
    found, kept, _ = facts()
    end = rows({"mesh": MESH, "actor": "x", "kind": "raised", "detail": "ValueError: no\nat line 3"})
    found.ended({"message.handled": handled(4, failed=1), "actor.end": end}, Running())
    assert ask(kept, "SELECT kind, endpoint, message, traceback, rank FROM failures") == [
        ("user", "step", "ValueError: no", "at line 3", 2)
    ]


def test_supervision_waits_for_its_outcome() -> None:
    found, kept, _ = facts()
    delivered = {"mesh": MESH, "rank": 1, "owner": "<root>", "kind": "host_lost"}
    found.ended({"supervision.delivered": rows(delivered, proc=CLIENT)}, Running())
    (waiting,) = found.delivered()
    assert waiting.to_pylist()[0]["handled"] is False
    assert ask(kept, "SELECT kind, message FROM failures") == [("infrastructure", "host lost")]
    found.ended({"supervision.handled": rows({"mesh": MESH, "rank": 1, "owner": "<root>", "handled": 1}, proc=CLIENT)}, Running())
    assert found.delivered() == []
    assert ask(kept, "SELECT handled, s.failure_id = f.id AS same FROM supervision_events s, failures f") == [(True, True)]


def test_links_count_their_connections() -> None:
    found, kept, _ = facts()
    up = {"host": 55, "received": 0, "waiting": 3, "round_trip": 9000}
    found.ended({"link.resumed": rows(up, proc=HOST)}, Running())
    found.ended({"link.broken": rows({"host": 55, "end": "reset", "sent": 10, "received": 20, "round_trip": 0}, proc=HOST)}, Running())
    found.ended({"link.resumed": rows({**up, "received": 4}, proc=HOST)}, Running())
    assert ask(kept, "SELECT state, rtt_us, bytes_out, bytes_in, reconnects, last_error FROM links") == [("up", 9, 10, 20, 1, "reset")]
    # Both in one look, as for a session that continues at once.
    broken = {"host": 55, "end": "failed", "sent": 1, "received": 2, "round_trip": 7000}
    later = rows({**up, "received": 5, "round_trip": 8000}, proc=HOST, us=3_000_001)
    found.ended({"link.resumed": later, "link.broken": rows(broken, proc=HOST, us=3_000_000)}, Running())
    assert ask(kept, "SELECT state, rtt_us, bytes_out, bytes_in, reconnects, last_error FROM links") == [("up", 8, 11, 22, 2, "failed")]


def test_lines_have_their_process_and_only_actor() -> None:
    _, _, places = facts()
    logs = Logs("here")
    printed = rows({"peer": WORKER, "stream": "stderr", "line": "oh"}, {"peer": 999, "stream": "stdout", "line": None})
    recorded = rows({"actor": MESH, "logger": "x.y", "level": 30, "line": "hm"}, {"actor": 0, "logger": "z", "level": 55, "line": "no"})
    found = logs.batches({"output.line": printed, "log.record": recorded}, places)
    assert values(found, "proc", "mesh_name", "rank", "stream", "level", "line") == [
        ("workers[2]", "trainer", 2, "stderr", None, "oh"),
        ("workers[2]", "trainer", 2, "logging", "warn", "hm"),
        ("workers[2]", "workers", 2, "logging", "error", "no"),
    ]
    assert logs.lost == 1 and values(found, "actor_id")[1] == (actor_id(WORKER, MESH),)


def test_spans_and_events() -> None:
    trace = (1).to_bytes(8, "little") + (2).to_bytes(8, "little") + (3).to_bytes(8, "little")
    entered = rows(
        {"span": 1, "parent": 0, "name": "outer", "fields": '{"n": 1}', "trace": trace},
        {"span": 2, "parent": 1, "name": "in", "fields": None},
    )
    left = rows({"span": 2, "name": "in", "duration": 5, "failed": 0})
    found = span_batches({"span.enter": entered, "span.exit": left})
    assert values(found["spans"], "id", "name", "fields_json", "parent_id") == [(1, "outer", '{"n": 1}', None), (2, "in", "{}", 1)]
    assert values(found["span_events"], "id", "event_type") == [(1, "enter"), (2, "enter"), (2, "exit"), (2, "close")]
    assert values(found["span_context"], "span_id", "trace_id") == [(1, trace_id(trace))] and trace_id(trace) == f"{1:016x}{2:016x}"
    assert values([event_batch(rows({"name": "e", "fields": None}))], "name", "fields_json") == [("e", "{}")]


class Looked:
    """A batch of a look, without events of its own."""

    proc, pid, columns = WORKER, 77, dict[str, Any]()

    def __init__(self, lost: int, *, ended: bool = False) -> None:
        self.lost, self.ended = lost, ended

    def __len__(self) -> int:
        return 0


def test_lost_events_are_counted_once() -> None:
    ingest: Any = Ingest(store(), HOST, "here", CLIENT, clock=lambda: 100.0)
    for look in (Looked(3), Looked(5), Looked(5, ended=True)):
        ingest.take(look)
    ingest.flush()
    assert ingest.counts().lost == 5


def test_error_in_a_table_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = store()
    ingest: Any = Ingest(kept, HOST, "here", CLIENT, clock=lambda: 100.0)
    printed = rows({"peer": WORKER, "stream": "stdout", "line": "still here"})
    columns = {**printed.columns, "time": pa.array([1_000_000_000], pa.int64())}
    del columns["us"]

    def parts(_: object) -> list[Part]:
        return [Part("output.line", 1, columns)]

    monkeypatch.setattr(ingest_module, "parts_of", parts)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("no rows today")

    monkeypatch.setattr(ingest._messages, "batches", broken)
    ingest.take(Looked(0))
    ingest.flush()
    assert ask(kept, "SELECT name, level FROM events") == [("telemetry.error", "error")]
    (fields,) = ask(kept, "SELECT fields_json FROM events")[0]
    assert json.loads(fields) == {"writing": "messages", "error": "ZeroDivisionError: no rows today"}
    assert ask(kept, "SELECT line FROM logs") == [("still here",)] and ingest.errors == 1
