"""Spans of traced calls: which events begin and end them, what lies in what, and what a lost event costs."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from monarch.telemetry._arrow import pa
from monarch.telemetry._ingest import call_spans
from monarch.telemetry._ingest.activity import Logs, event_batch, span_batches
from monarch.telemetry._ingest.call_spans import CallSpans
from monarch.telemetry._ingest.places import Places
from monarch.telemetry._ingest.rows import Rows

CLIENT, WORKER, OTHER, MESH = 21, (1 << 63) + 5, (1 << 63) + 6, 31
REQUEST, CALL, SERVED = 0x00F067AA0BA902B7, 0xD954F78EC02F45A7, 0xD6BF236B7AA366A4
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
_KINDS = {"us": pa.int64(), "trace": pa.binary(24), "thread": pa.uint32()}
_numbers = itertools.count(1)
Batches = dict[str, list[Any]]


def trace(span: int) -> bytes:
    high, low = int(TRACE[:16], 16), int(TRACE[16:], 16)
    return b"".join(one.to_bytes(8, "little") for one in (high, low, span))


def rows(*events: dict[str, Any]) -> Rows:
    filled = [{"number": next(_numbers), "thread": 7, "trace": bytes(24), **event} for event in events]
    kinds = {name: _KINDS.get(name) or (pa.string() if isinstance(value, str) else pa.uint64()) for name, value in filled[0].items()}
    return Rows(len(filled), {name: pa.array([one[name] for one in filled], kind) for name, kind in kinds.items()})


def sent(us: int, *, span: int = CALL, call: int = 5, rank: int = 0, parent: int = REQUEST, proc: int = CLIENT) -> dict[str, Any]:
    event = {"proc": proc, "us": us, "mesh": MESH, "method": "step", "rank": rank, "peer": WORKER + rank, "sender": 0, "bytes": 9}
    return {**event, "call": call, "parent": parent, "trace": trace(span) if span else bytes(24)}


def begun(us: int, *, span: int = SERVED, call: int = 5, parent: int = CALL, proc: int = WORKER) -> dict[str, Any]:
    event = {"proc": proc, "us": us, "mesh": MESH, "method": "step", "rank": 0, "peer": CLIENT, "call": call}
    return {**event, "parent": parent, "trace": trace(span)}


def handled(us: int, *, span: int = SERVED, call: int = 5, failed: int = 0) -> dict[str, Any]:
    event = {"proc": WORKER, "us": us, "mesh": MESH, "method": "step", "rank": 0, "peer": CLIENT, "call": call}
    return {**event, "duration": 1000, "failed": failed, "trace": trace(span)}


def done(us: int, *, call: int = 5, failed: int = 0, proc: int = CLIENT) -> dict[str, Any]:
    return {"proc": proc, "us": us, "call": call, "targets": 1, "stream": 0, "failed": failed}


def values(found: Batches, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return [row for batch in found.get(table, ()) for row in zip(*(batch.column(name).to_pylist() for name in columns), strict=True)]


def fields(found: Batches) -> list[dict[str, Any]]:
    return [json.loads(text) for (text,) in values(found, "spans", "fields_json")]


def test_call_has_a_caller_and_a_receiver_span() -> None:
    spans = CallSpans({MESH: "worker"})
    events = {"message.sent": rows(sent(10)), "message.begun": rows(begun(12)), "message.handled": rows(handled(15))}
    found = spans.batches({**events, "call.done": rows(done(20, failed=1))})
    context = values(found, "span_context", "process_id", "span_id", "trace_id", "parent_process_id", "parent_span_id", "sampled")
    assert sorted(context) == [(CLIENT, CALL, TRACE, None, REQUEST, True), (WORKER, SERVED, TRACE, CLIENT, CALL, True)]
    assert sorted(values(found, "spans", "process_id", "id", "name", "timestamp_us", "parent_id", "thread_name")) == [
        (CLIENT, CALL, "worker.step", 10, None, "7"),
        (WORKER, SERVED, "worker.step", 12, None, "7"),
    ]
    assert sorted(values(found, "span_events", "process_id", "timestamp_us", "event_type")) == [
        *[(CLIENT, 10, "enter"), (CLIENT, 20, "close"), (CLIENT, 20, "exit")],
        *[(WORKER, 12, "enter"), (WORKER, 15, "close"), (WORKER, 15, "exit")],
    ]
    assert [(one["otel.kind"], one["otel.status_code"], one["rpc.service"], one["rpc.method"]) for one in fields(found)] == [
        ("server", "ok", "worker", "step"),
        ("client", "error", "worker", "step"),
    ]


def test_calls_without_a_trace_have_no_spans() -> None:
    spans = CallSpans({})
    found = spans.batches({"message.sent": rows(sent(1, span=0, parent=0)), "call.done": rows(done(2))})
    assert not found and not spans.open()


def test_nested_call_is_in_its_messages_span() -> None:
    spans = CallSpans({})
    events = {"message.begun": rows(begun(1)), "message.sent": rows(sent(2, span=77 << 32, parent=SERVED, proc=WORKER))}
    spans.batches(events)
    found = spans.batches({"call.done": rows(done(3, proc=WORKER))})
    assert values(found, "spans", "name", "parent_id") == [("step", SERVED)]
    assert values(found, "span_context", "parent_process_id", "parent_span_id") == [(WORKER, SERVED)]


def test_call_to_several_receivers_is_one_span() -> None:
    spans = CallSpans({})
    assert not spans.batches({"message.sent": rows(sent(10), sent(11, rank=1))})
    assert not spans.batches({"cast.sent": rows(sent(12, rank=2))})
    found = spans.batches({"call.done": rows(done(20))})
    assert values(found, "spans", "id", "timestamp_us") == [(CALL, 10)]
    # An error has ended the call before the last of its messages was recorded.
    assert not spans.batches({"message.sent": rows(sent(21, rank=3))}) and not spans.open()


def test_message_without_a_caller_has_producer_and_consumers() -> None:
    spans = CallSpans({})
    found = spans.batches({"message.sent": rows(sent(10, call=0), sent(12, call=0, rank=1)), "cast.sent": rows(sent(13, call=0, rank=2))})
    assert [one["otel.kind"] for one in fields(found)] == ["producer"]
    assert values(found, "span_events", "timestamp_us", "event_type") == [(10, "enter"), (13, "exit"), (13, "close")]
    assert not spans.batches({"message.sent": rows(sent(14, call=0, rank=3))})
    events = {"message.begun": rows(begun(15, call=0)), "message.handled": rows(handled(16, call=0, failed=1))}
    (consumer,) = fields(spans.batches(events))
    assert (consumer["otel.kind"], consumer["otel.status_code"]) == ("consumer", "error")


def test_end_recorded_before_the_call_counts() -> None:
    spans = CallSpans({})
    assert not spans.batches({"call.done": rows(done(9))})
    found = spans.batches({"message.sent": rows(sent(10))})
    assert values(found, "span_events", "timestamp_us") == [(10,)] * 3 and not spans.open()


def test_open_spans_have_rows_without_an_end() -> None:
    spans = CallSpans({})
    spans.batches({"message.sent": rows(sent(10)), "message.begun": rows(begun(11))})
    found = spans.open()
    assert values(found, "span_events", "process_id", "event_type") == [(WORKER, "enter"), (CLIENT, "enter")]
    assert not any("otel.status_code" in one for one in fields(found))


def test_spans_of_a_process_end_with_it() -> None:
    spans = CallSpans({})
    spans.batches({"message.sent": rows(sent(10)), "message.begun": rows(begun(11))})
    found = spans.end([WORKER], 30)
    assert values(found, "span_events", "process_id", "timestamp_us", "event_type")[-1] == (WORKER, 30, "close")
    assert [(one["otel.status_code"], one["otel.status_description"]) for one in fields(found)] == [("error", "the process has ended")]
    assert values(spans.open(), "spans", "process_id") == [(CLIENT,)]


def test_calls_without_an_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_spans, "_MOST_OPEN", 2)
    monkeypatch.setattr(call_spans, "_MOST_KNOWN", 3)
    spans = CallSpans({})
    found = spans.batches({"message.sent": rows(*(sent(us, span=CALL + us, call=us) for us in range(1, 6)))})
    assert values(found, "span_events", "timestamp_us", "event_type") == [(1, "enter"), (2, "enter"), (3, "enter")]
    assert values(spans.open(), "spans", "timestamp_us") == [(4,), (5,)]


def test_user_events_are_in_the_messages_span() -> None:
    spans = CallSpans({})
    spans.batches({"message.begun": rows(begun(1))})
    common = {"proc": WORKER, "us": 2, "name": "work", "fields": "", "trace": trace(SERVED)}
    entered = rows(
        {**common, "span": 1, "parent": 0}, {**common, "span": 2, "parent": 1}, {**common, "span": 3, "parent": 0, "trace": trace(9)}
    )
    found = span_batches({"span.enter": entered}, spans.is_receiver)
    assert values(found, "spans", "id", "parent_id") == [(1, SERVED), (2, 1), (3, None)]
    context = values(found, "span_context", "span_id", "trace_id", "parent_process_id", "parent_span_id")
    assert context == [(1, TRACE, WORKER, SERVED), (2, TRACE, WORKER, 1), (3, TRACE, None, 9)]
    recorded = {"events": [event_batch(rows(common, {**common, "trace": bytes(24)}))]}
    assert values(recorded, "events", "parent_span") == [(SERVED,), (None,)]
    line = {"proc": WORKER, "us": 2, "actor": MESH, "logger": "l", "level": 30, "line": "x"}
    lines = {"logs": Logs("here").batches({"log.record": rows({**line, "trace": trace(SERVED)}, line)}, Places())}
    assert values(lines, "logs", "trace_id", "span_id") == [(TRACE, SERVED), (None, None)]
