"""Perfetto traces, read by a reader of the wire format: tracks, nesting, arrows, windows, clocks."""

from __future__ import annotations

import io
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import made_up_job
from support.perfetto_reader import Event, Trace

from monarch.telemetry import TelemetryError
from monarch.telemetry._export import perfetto
from monarch.telemetry._tables.catalog import TABLES

pytest.importorskip("perfetto")

Row = dict[str, Any]
# Two hosts; the trainers are on procs 1 and 2 of a mesh of 3 procs, and the client is of no proc.
CLIENT, TRAINER_0, TRAINER_1 = 30, 31, 32
BASE: dict[str, list[Row]] = {
    "hosts": [
        {"host_id": n, "name": f"h{n}", "address": "", "state": "ready", "joined_us": 0, "cpus": 1, "memory_bytes": 1}
        | {"gpus_json": "[]", "version": "1"}
        for n in (1, 2)
    ],
    "procs": [
        {"proc_id": 10 + rank, "host_id": host, "mesh_id": 20, "rank": rank, "pid": 100 + rank, "started_us": 0}
        for rank, host in enumerate((1, 1, 2))
    ],
    "meshes": [
        {"id": 20, "timestamp_us": 0, "class": "Proc", "given_name": "procs", "full_name": "procs", "shape_json": "{}"},
        {"id": 21, "timestamp_us": 0, "class": "Trainer", "given_name": "trainers", "full_name": "trainers", "shape_json": "{}"}
        | {"parent_mesh_id": 20, "parent_view_json": '{"offset": 1, "sizes": [2], "strides": [1]}'},
        {"id": 22, "timestamp_us": 0, "class": "Client", "given_name": "client", "full_name": "client", "shape_json": "{}"}
        | {"parent_mesh_id": 20},
    ],
    "actors": [
        {"id": TRAINER_0, "timestamp_us": 0, "mesh_id": 21, "rank": 0, "full_name": "t0", "display_name": "trainers[0]"},
        {"id": TRAINER_1, "timestamp_us": 0, "mesh_id": 21, "rank": 1, "full_name": "t1", "display_name": "trainers[1]"},
        {"id": CLIENT, "timestamp_us": 0, "mesh_id": 22, "rank": 0, "full_name": "client"},
    ],
}
T0, T1, C = "host h1/procs[1] (pid 101)/trainers[0]", "host h2/procs[2] (pid 102)/trainers[1]", "host h1/procs[0] (pid 100)/client"


def rows(**tables: list[Row]) -> dict[str, list[Any]]:
    return {name: [pa.RecordBatch.from_pylist(found, schema=TABLES[name].schema())] for name, found in {**BASE, **tables}.items()}


def sent(number: int, us: int, mesh: int = 21, sender: int = CLIENT) -> Row:
    return {"id": number, "timestamp_us": us, "sender_actor_id": sender, "actor_mesh_id": mesh, "view_json": "{}", "shape_json": "{}"}


def message(number: int, us: int, to: int = TRAINER_0, sender: int = CLIENT, endpoint: str | None = "step") -> Row:
    return {"id": number, "timestamp_us": us, "from_actor_id": sender, "to_actor_id": to, "endpoint": endpoint}


def states(number: int, queued: int, active: int | None = None, end: int | None = None, status: str = "complete") -> list[Row]:
    found = [("queued", queued), ("active", active), (status, end)]
    return [{"id": 0, "timestamp_us": us, "message_id": number, "status": what} for what, us in found if us is not None]


def span(number: int, us: int, parent: int | None = None, thread: str = "main", proc: int = 11, **more: Any) -> Row:
    found = {"process_id": proc, "id": number, "name": f"s{number}", "target": "", "level": "info", "fields_json": "{}"}
    return {**found, "timestamp_us": us, "parent_id": parent, "thread_name": thread, **more}


def span_events(number: int, proc: int = 11, **times: int) -> list[Row]:
    return [{"process_id": proc, "id": number, "timestamp_us": us, "event_type": kind} for kind, us in times.items()]


def read(found: dict[str, list[Any]], **options: Any) -> Trace:
    return Trace(perfetto.trace(found, **options))


def only(trace: Trace, kind: str, category: str) -> list[Event]:
    return [event for event in trace.events if event.kind == kind and category in event.categories]


def test_messages_are_slices_with_arrows_from_their_sender() -> None:
    trace = read(
        rows(
            sent_messages=[sent(1, 100), sent(2, 200)],
            messages=[message(51, 110), message(52, 115, TRAINER_1), message(53, 210, TRAINER_1)],
            message_status_events=[*states(51, 110, 120, 150), *states(52, 115, 130, 190), *states(53, 210, 220, 300, "failed")],
        ),
        since_us=0,
        until_us=1000,
    )
    assert trace.slices() == [(T0, "step", 120, 150, None), (T1, "step", 130, 190, None), (T1, "step", 220, 300, None)]
    assert trace.arrows() == [(C, "send step", T0, "step"), (C, "send step", T1, "step"), (C, "send step", T1, "step")]
    # A cast is one instant with an arrow to each receiver.
    assert [(event.us, len(event.flows_out)) for event in trace.events if event.kind == "instant"] == [(100, 2), (200, 1)]
    begun = only(trace, "begin", "message")
    assert [event.categories for event in begun] == [["message"], ["message"], ["message", "failed"]]
    assert begun[0].notes == {"from": "client", "message": "51", "queue_us": 10}
    assert begun[2].notes["failed"] is True
    assert trace.clocks == [{6: 0, 1: 0}]


def test_overlapping_messages_have_merged_tracks() -> None:
    trace = read(
        rows(
            messages=[message(n, 10) for n in (51, 52, 53)],
            message_status_events=[*states(51, 10, 20, 50), *states(52, 10, 30, 40), *states(53, 10, 50, 60)],
        ),
        since_us=0,
        until_us=100,
    )
    assert trace.slices() == [(T0, "step", 20, 50, None), (T0, "step", 30, 40, None), (T0, "step", 50, 60, None)]
    tracks = {event.us: trace.tracks[event.track] for event in only(trace, "begin", "message")}
    assert tracks[20] == tracks[50] != tracks[30]
    assert tracks[20].merge_key == tracks[30].merge_key and tracks[20].parent == tracks[30].parent


def test_open_slices_end_with_the_window() -> None:
    trace = read(
        rows(
            messages=[message(51, 110), message(52, 120), message(53, 130)],
            message_status_events=[*states(51, 110, 120), *states(52, 120, 130, 5000), *states(53, 130)],
            spans=[span(1, 100), span(2, 110, 1), span(3, 120, 1)],
            span_events=[*span_events(1, enter=101), *span_events(2, enter=111, exit=115, close=116), *span_events(3, enter=121)],
        ),
        since_us=0,
        until_us=1000,
    )
    t = "host h1/procs[1] (pid 101)/main"
    assert trace.slices() == [
        (t, "s1", 101, 1000, None),
        (t, "s2", 111, 116, "s1"),
        (T0, "step", 120, 1000, None),
        (t, "s3", 121, 1000, "s1"),
        (T0, "step", 130, 1000, None),
    ]
    incomplete = {event.name for event in trace.events if "incomplete" in event.categories}
    assert incomplete == {"s1", "s3", "step"} and all(event.notes["incomplete"] is True for event in only(trace, "begin", "incomplete"))
    # A waiting one is an instant, to which its arrow leads.
    assert ("received step", T0) in {(event.name, trace.path(event.track)) for event in trace.events if event.kind == "instant"}
    assert [arrow[3] for arrow in trace.arrows()] == ["step", "step", "received step"]


def test_window_cuts_slices_and_arrows() -> None:
    found = rows(
        sent_messages=[sent(1, 100), sent(2, 450)],
        messages=[message(51, 110), message(52, 120), message(53, 460), message(54, 900)],
        message_status_events=[
            *states(51, 110, 120, 399),
            *states(52, 120, 130, 410),
            *states(53, 460, 470, 900),
            *states(54, 900, 910, 920),
        ],
        spans=[span(1, 100), span(2, 110, 1), span(3, 120, 2)],
        span_events=[
            *span_events(1, enter=100, close=900),
            *span_events(2, enter=110, close=450),
            *span_events(3, enter=120, close=300),
        ],
        events=[
            {"name": f"e{us}", "target": "", "level": "info", "fields_json": "{}", "timestamp_us": us, "thread_id": 1, "thread_name": "x"}
            for us in (399, 400, 500, 501)
        ],
    )
    trace = read(found, since_us=400, until_us=500)
    t = "host h1/procs[1] (pid 101)/main"
    assert trace.slices() == [
        (t, "s1", 400, 500, None),
        (t, "s2", 400, 450, "s1"),
        (T0, "step", 400, 410, None),
        (T0, "step", 470, 500, None),
    ]
    assert trace.arrows() == [(C, "send step", T0, "step")]
    assert [event.name for event in only(trace, "instant", "event")] == ["e400", "e500"]
    assert all(400 <= event.us <= 500 for event in trace.events)


def test_clocks_of_hosts_are_shifted() -> None:
    found = rows(
        sent_messages=[sent(1, 100)],
        messages=[message(51, 1110, TRAINER_1)],
        message_status_events=states(51, 1110, 1120, 1150),
        spans=[span(1, 100), span(2, 1100, proc=12)],
        span_events=[*span_events(1, close=150), *span_events(2, 12, close=1160)],
        logs=[
            {
                "timestamp_us": 1130,
                "seq": 1,
                "host": "h2",
                "proc": "procs[2]",
                "pid": 102,
                "stream": "logging",
                "level": "error",
                "line": "x",
            }
        ],
        resources=[{"timestamp_us": 1140, "host": "h2", "cpu_pct": 1.5, "rss_bytes": 7, "threads": 1, "fds": 2}],
    )
    trace = read(found, since_us=0, until_us=1000, offsets_us={"h2": -1000, "h1": 5, "other": 7})
    assert [(one[0], one[2], one[3]) for one in trace.slices()] == [
        ("host h2/procs[2] (pid 102)/main", 100, 160),
        ("host h1/procs[1] (pid 101)/main", 105, 155),
        (T1, 120, 150),
    ]
    assert [event.us for event in trace.events if event.flows_out] == [105] and len(trace.arrows()) == 1
    assert [event.us for event in only(trace, "instant", "log")] == [130]
    assert {event.us for event in trace.events if event.kind == "counter"} == {140}


def test_arrows_never_lead_back_in_time() -> None:
    """Clocks that are off, and a message without a row of sends."""
    trace = read(
        rows(
            sent_messages=[sent(1, 500)],
            messages=[message(51, 110), message(52, 600, sender=TRAINER_1, endpoint=None)],
            message_status_events=[*states(51, 110, 90, 150), *states(52, 600, 610, 620)],
        ),
        since_us=0,
        until_us=1000,
    )
    assert trace.arrows() == [(T1, "send message", T0, "message")]
    assert [event.name for event in trace.events if event.us == 500] == ["send trainers"]


def test_message_follows_its_senders_last_send() -> None:
    trace = read(
        rows(
            sent_messages=[
                sent(1, 100),
                sent(2, 130),
                sent(3, 120, mesh=20),
                sent(4, 125, sender=TRAINER_1),
                sent(5, 90, sender=TRAINER_1),
            ],
            messages=[message(51, 129), message(52, 130), message(53, 95, sender=TRAINER_1)],
            message_status_events=[*states(51, 129, 140, 150), *states(52, 130, 150, 160), *states(53, 95, 96, 97)],
        ),
        since_us=0,
        until_us=1000,
    )
    begins = {flow: event.us for event in trace.events for flow in event.flows_out}
    assert begins == {51: 100, 52: 130, 53: 90}


def test_instants_are_on_their_entitys_track() -> None:
    failure = {"first_cause": True, "mesh_name": "trainers", "exit_reason": "raised", "kind": "user"}
    log = {"host": "h1", "stream": "logging", "seq": 1, "pid": 9}
    event = {
        "target": "app",
        "level": "info",
        "thread_id": 1,
        "thread_name": "main",
        "fields_json": '{"a": 1, "b": "x", "c": [1], "d": 0.5}',
    }
    trace = read(
        rows(
            failures=[
                {"id": 1, "timestamp_us": 10, "message": "boom", "rank": 1, "host": "h2", "pid": 102, **failure},
                {"id": 2, "timestamp_us": 11, "message": "lost", "host": "h2", **failure},
                {"id": 3, "timestamp_us": 12, "message": "gone", **failure},
            ],
            logs=[
                {"timestamp_us": 20, "level": "ERROR", "line": "bad\nmore", "proc": "procs[1]", "actor_id": TRAINER_0, **log},
                {"timestamp_us": 21, "level": "critical", "line": "worse", "proc": "procs[1]", **log},
                {"timestamp_us": 22, "level": "error", "line": "", "proc": "", **log},
                {"timestamp_us": 23, "level": "warn", "line": "hidden", "proc": "", **log},
            ],
            spans=[span(1, 5), span(2, 5), span(2, 5, proc=12)],
            events=[
                {"name": "in span", "timestamp_us": 30, "parent_span": 1, **event},
                {"name": "two spans", "timestamp_us": 31, "parent_span": 2, **event},
                {"name": "alone", "timestamp_us": 32, **event},
            ],
        ),
        since_us=0,
        until_us=100,
    )
    found = {event.us: (trace.path(event.track), event.name) for event in trace.events if event.kind == "instant"}
    assert found == {
        10: ("host h2/procs[2] (pid 102)", "failure of trainers[1]"),
        11: ("host h2", "failure of trainers"),
        12: ("job", "failure of trainers"),
        20: (T0, "bad"),
        21: ("host h1/procs[1] (pid 101)", "worse"),
        22: ("host h1/pid 9", "log"),
        30: ("host h1/procs[1] (pid 101)/main", "in span"),
        31: ("job", "two spans"),
        32: ("job", "alone"),
    }
    (shown,) = (event for event in trace.events if event.name == "in span")
    assert shown.notes == {"a": 1, "b": "x", "c": "[1]", "d": 0.5, "level": "info", "target": "app"}


def test_resources_are_counters() -> None:
    one = {"host": "h1", "cpu_pct": 12.5, "rss_bytes": 4096, "threads": 3, "fds": 7}
    gpu = {"gpu": 1, "gpu_util_pct": 99.0, "gpu_memory_bytes": 1 << 63}
    trace = read(
        rows(
            resources=[
                {"timestamp_us": 10, **one},
                {"timestamp_us": 20, **one, **gpu},
                {"timestamp_us": 30, **one, "proc": "procs[1]"},
                {"timestamp_us": 40, **one, "proc": "helper"},
            ]
        ),
        since_us=0,
        until_us=100,
    )
    found = {(event.us, trace.path(event.track)): event.value for event in trace.events}
    assert all(trace.tracks[event.track].is_counter for event in trace.events)
    names = {"processor": 12.5, "memory": 4096, "threads": 3, "open files": 7}
    assert found == {
        **{(10, f"host h1/{name}"): value for name, value in names.items()},
        (20, "host h1/GPU 1 busy"): 99.0,
        (20, "host h1/GPU 1 memory"): float(1 << 63),
        **{(30, f"host h1/procs[1] (pid 101)/{name}"): value for name, value in names.items()},
        **{(40, f"host h1/helper/{name}"): value for name, value in names.items()},
    }


def test_unknown_process_is_below_an_unknown_host() -> None:
    found = rows(
        messages=[message(51, 110, 77)],
        message_status_events=states(51, 110, 120, 150),
        spans=[span(1, 100, proc=99, thread="17", fields_json='{"half": "\\ud800"}'), span(2, 100, proc=99, thread="17", fields_json="[")],
        span_events=[*span_events(1, 99, enter=100, exit=140), *span_events(2, 99, enter=150, exit=160)],
    )
    for name in BASE:
        found.pop(name)
    trace = read(found)
    assert [one[:2] for one in trace.slices()] == [
        ("unknown host/proc 99/thread 17", "s1"),
        ("unknown host/actor 77", "step"),
        ("unknown host/proc 99/thread 17", "s2"),
    ]
    notes = {event.name: event.notes for event in only(trace, "begin", "span")}
    assert notes == {"s1": {"half": "?"}, "s2": {"fields": "["}}


def test_simulated_job_is_shown_whole() -> None:
    """Without a window: all rows."""
    trace = read(made_up_job.rows())
    assert trace.slices() and trace.arrows()
    names = {track.name for track in trace.tracks.values()}
    assert {"host host0", "host host1"} <= names
    shown = {one[1] for one in trace.slices()}
    assert "step" in shown
    assert {event.kind for event in trace.events} == {"begin", "end", "instant", "counter"}


def test_columns_that_a_capture_lacks_are_no_obstacle() -> None:
    """All of one column after the other is null."""
    whole = rows(
        sent_messages=[sent(1, 100)],
        messages=[message(51, 110)],
        message_status_events=states(51, 110, 120, 150),
        spans=[span(1, 100)],
        span_events=span_events(1, enter=101, close=110),
    )
    for name, batches in whole.items():
        (batch,) = batches
        for at, field in enumerate(batch.schema):
            columns = [
                pa.nulls(batch.num_rows, one.type) if number == at else batch.column(number) for number, one in enumerate(batch.schema)
            ]
            schema = batch.schema.set(at, field.with_nullable(True))
            trace = read({**whole, name: [pa.RecordBatch.from_arrays(columns, schema=schema)]}, since_us=0, until_us=1000)
            trace.slices()
            trace.arrows()


@pytest.mark.parametrize("window", [(5, 4), (-1, 4), (0, 1 << 63)])
def test_malformed_windows_are_refused(window: tuple[int, int]) -> None:
    with pytest.raises(TelemetryError, match="the time window .* is malformed"):
        perfetto.trace({}, since_us=window[0], until_us=window[1])


def test_no_rows_are_an_empty_trace() -> None:
    trace = read({})
    assert (trace.tracks, trace.events, trace.clocks) == ({}, [], [{6: 0, 1: 0}])


def test_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace.perfetto_trace_pb2", None)
    with pytest.raises(TelemetryError, match=r"needs the library perfetto(.|\n)*pip install 'monarch-telemetry\[perfetto\]'"):
        perfetto.trace({})


def test_trace_is_written_in_pieces() -> None:
    class Pieces(io.BytesIO):
        longest = 0

        def write(self, data: Any) -> int:
            self.longest = max(self.longest, len(data))
            return super().write(data)

    count = 5000
    file = Pieces()
    found = rows(
        messages=[message(n, n) for n in range(count)],
        message_status_events=[state for n in range(count) for state in states(n, n, n + 1, n + 2)],
    )
    perfetto.write(file, found, since_us=0, until_us=count * 2)
    trace = Trace(file.getvalue())
    assert len(trace.slices()) == len(trace.arrows()) == count
    assert file.longest < len(file.getvalue()) / 5


TIMES = st.integers(0, 60)
MAYBE = st.none() | TIMES


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Messages and spans with any times, states and parents."""
    actors = st.sampled_from([CLIENT, TRAINER_0, TRAINER_1, 99])
    count = draw(st.integers(0, 8))
    found: dict[str, list[Row]] = {"messages": [], "message_status_events": [], "spans": [], "span_events": []}
    found["sent_messages"] = [sent(n, draw(TIMES), draw(st.sampled_from([20, 21])), draw(actors)) for n in range(draw(st.integers(0, 5)))]
    for number in range(1, count + 1):
        found["messages"].append(message(number, draw(TIMES), draw(actors), draw(actors)))
        status = draw(st.sampled_from(["complete", "failed"]))
        found["message_status_events"] += states(number, draw(TIMES), draw(MAYBE), draw(MAYBE), status)
    for number in range(1, draw(st.integers(0, 10)) + 1):
        parent = draw(st.none() | st.integers(1, 10))
        found["spans"].append(span(number, draw(TIMES), parent, draw(st.sampled_from(["a", "b"])), draw(st.sampled_from([11, 12]))))
        times = {kind: draw(MAYBE) for kind in ("enter", "exit", "close")}
        proc = found["spans"][-1]["process_id"]
        found["span_events"] += span_events(number, proc, **{kind: us for kind, us in times.items() if us is not None})
    return rows(**found)


@given(jobs(), st.tuples(TIMES, TIMES), st.integers(-20, 20))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_job_is_well_nested_within_its_window(job: dict[str, list[Any]], window: tuple[int, int], offset: int) -> None:
    since, until = min(window) + 20, max(window) + 20
    trace = read(job, since_us=since, until_us=until, offsets_us={"h2": offset})
    slices = trace.slices()
    assert all(since <= event.us <= until for event in trace.events)
    assert all(begin <= end for _, _, begin, end, _ in slices)
    trace.arrows()
    parents = {f"s{row['id']}": row["parent_id"] for row in job["spans"][0].to_pylist()}
    for _, name, _, _, below in slices:
        assert below is None or below == f"s{parents[name]}"
    # Every message that was handled in the window is included once.
    shifts = {TRAINER_1: offset}
    times: dict[int, dict[str, int]] = {}
    for row in job["message_status_events"][0].to_pylist():
        times.setdefault(row["message_id"], {})[row["status"]] = row["timestamp_us"]
    handled = 0
    for row in job["messages"][0].to_pylist():
        state, shift = times[row["id"]], shifts.get(row["to_actor_id"], 0)
        end = state.get("complete", state.get("failed"))
        handled += "active" in state and state["active"] + shift <= until and (end is None or end + shift >= since)
    assert sum(name == "step" for _, name, _, _, _ in slices) == handled
