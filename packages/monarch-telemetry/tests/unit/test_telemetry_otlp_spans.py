"""Spans of three tables: when they are finished, the trace that they are of, and what is sampled."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from monarch.telemetry._export.otlp_settings import Sampler
from monarch.telemetry._export.otlp_spans import Span, Spans
from monarch.telemetry._export.otlp_values import Attributes, made_trace_id, span_id, trace_id
from monarch.telemetry._tables.catalog import TABLES

ALL = Sampler("always_on", False, 1.0)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
WIRE = 0x00F067AA0BA902B7


def batch(table: str, *rows: dict[str, Any]) -> Any:
    return pa.RecordBatch.from_pylist(list(rows), schema=TABLES[table].schema())


def made(number: int, began: int = 100, *, process: int = 1, parent: int | None = None, fields: str = "{}", name: str = "work") -> Any:
    row = {"process_id": process, "id": number, "name": name, "target": "app", "level": "info", "fields_json": fields}
    return batch("spans", {**row, "timestamp_us": began, "parent_id": parent, "thread_name": "7", "file": None, "line": None})


def happened(number: int, *what: tuple[int, str], process: int = 1) -> Any:
    return batch("span_events", *({"process_id": process, "id": number, "timestamp_us": time, "event_type": kind} for time, kind in what))


def placed(number: int, trace: str = TRACE, *, process: int = 1, parent: tuple[int, int] | None = None, sampled: bool = True) -> Any:
    row = {"process_id": process, "span_id": number, "trace_id": trace, "sampled": sampled}
    return batch("span_context", {**row, "parent_process_id": parent and parent[0], "parent_span_id": parent and parent[1]})


def ended(number: int, time: int, *, process: int = 1) -> Any:
    return happened(number, (time, "exit"), (time, "close"), process=process)


def spans(*rows: tuple[str, Any], sampler: Sampler = ALL) -> Spans:
    found = Spans(sampler, Attributes())
    for table, one in rows:
        found.add(table, one)
    return found


def test_span_is_finished_when_it_is_closed() -> None:
    found = spans(("spans", made(5)), ("span_context", placed(5)), ("span_events", happened(5, (100, "enter"))))
    assert found.take() == [] and len(found) == 1
    found.add("span_events", ended(5, 900))
    (span,) = found.take()
    assert (span.name, span.began_us, span.ended_us, span.trace, span.parent) == ("work", 100, 900, int(TRACE, 16), 0)
    assert len(found) == 0 and found.take() == []


def test_rows_may_come_in_any_order() -> None:
    rows = [
        ("spans", made(5)),
        ("span_context", placed(5, parent=(2, WIRE))),
        ("span_events", happened(5, (100, "enter"))),
        ("span_events", happened(5, (300, "exit"))),
        ("span_events", happened(5, (300, "close"))),
    ]
    for seed in range(30):
        random.Random(seed).shuffle(rows)
        found = spans(*rows)
        taken = found.take() or found.take()
        assert [(one.began_us, one.ended_us, one.trace, one.parent) for one in taken] == [(100, 300, int(TRACE, 16), WIRE)], rows


def test_exit_without_reentry_ends_a_span() -> None:
    found = spans(("spans", made(5)), ("span_events", happened(5, (100, "enter"), (200, "exit"))))
    assert found.take() == []
    found.add("span_events", happened(5, (300, "enter"), (400, "exit")))
    assert found.take() == []
    assert [(one.began_us, one.ended_us) for one in found.take()] == [(100, 400)]
    found.add("span_events", happened(5, (401, "close")))
    assert found.take() == [] and len(found) == 0 and found.dropped == 0


def test_child_spans_have_the_parents_trace() -> None:
    found = spans(
        ("spans", made(3, 120, parent=2)),
        ("spans", made(2, 110, parent=1)),
        ("spans", made(1, 100)),
        ("span_events", ended(3, 130)),
        ("span_events", ended(2, 140)),
        ("span_events", ended(1, 150)),
    )
    first, second, third = found.take()
    assert first.trace == second.trace == third.trace == made_trace_id(1, 1, 100)
    assert (first.parent, second.parent, third.parent) == (0, span_id(1, 1), span_id(1, 2))


def test_child_that_ends_later_keeps_the_trace() -> None:
    found = spans(("spans", made(1)), ("span_context", placed(1)), ("span_events", ended(1, 150)))
    assert len(found.take()) == 1
    found.add("spans", made(2, 140, parent=1))
    found.add("span_events", ended(2, 900))
    assert [one.trace for one in found.take()] == [int(TRACE, 16)]


def test_trace_goes_over_processes() -> None:
    """A call: the caller's span, the receiver's below it, and a span of the program below that."""
    found = spans(
        ("spans", made(WIRE, 100, process=1, fields='{"otel.kind": "client"}')),
        ("span_context", placed(WIRE, process=1)),
        ("spans", made(WIRE + 1, 110, process=2, fields='{"otel.kind": "server"}')),
        ("span_context", placed(WIRE + 1, process=2, parent=(1, WIRE))),
        ("spans", made(1, 120, process=2)),
        ("span_context", placed(1, process=2, parent=(2, WIRE + 1))),
        *(("span_events", ended(number, 200, process=process)) for process, number in ((1, WIRE), (2, WIRE + 1), (2, 1))),
    )
    client, server, user = found.take()
    assert {one.trace for one in (client, server, user)} == {int(TRACE, 16)}
    assert (client.kind, server.kind, user.kind) == (3, 2, 1)
    assert server.parent == span_id(1, WIRE) == 0x00F067AA0BA902B7
    assert user.parent == span_id(2, WIRE + 1)


def test_counted_spans_of_two_processes_have_different_ids() -> None:
    assert len({span_id(process, number) for process in range(100) for number in range(1, 100)}) == 100 * 99
    assert all(0 < span_id(process, 1) < 1 << 64 for process in (0, (1 << 64) - 1))


def test_parent_based_sampler_keeps_the_callers_choice() -> None:
    rows: list[tuple[str, Any]] = []
    for number, sampled in ((1, True), (2, False)):
        rows += [("spans", made(number)), ("span_context", placed(number, sampled=sampled)), ("span_events", ended(number, 200))]
    none = Sampler("traceidratio", True, 0.0)
    assert [one.number for one in spans(*rows, sampler=none).take()] == [1]
    assert [one.number for one in spans(*rows, sampler=none._replace(parent_based=False)).take()] == []


def test_sampled_traces_are_exported_whole() -> None:
    found = Spans(Sampler("traceidratio", True, 0.25), Attributes())
    for root in range(1, 4001, 2):
        found.add("spans", made(root))
        found.add("spans", made(root + 1, 110, parent=root))
        found.add("span_events", ended(root + 1, 120))
        found.add("span_events", ended(root, 130))
    taken = found.take()
    assert 400 < len(taken) / 2 < 600
    roots = {one.number for one in taken if not one.parent}
    assert {one.number - 1 for one in taken if one.parent} == roots


def test_open_spans_are_bounded() -> None:
    found = Spans(ALL, Attributes(), most=10)
    for number in range(1, 31):
        found.add("spans", made(number))
    assert len(found) == 10 and found.dropped == 20
    found.add("span_events", ended(30, 200))
    assert [one.number for one in found.take()] == [30]


def test_end_of_an_unknown_span_is_counted() -> None:
    found = spans(("span_events", ended(5, 200)))
    assert found.take() == [] and found.take() == [] and len(found) == 0 and found.dropped == 1


def test_circle_of_parents_ends() -> None:
    found = spans(
        ("spans", made(1, parent=2)), ("spans", made(2, parent=1)), ("span_events", ended(1, 200)), ("span_events", ended(2, 200))
    )
    taken: list[Span] = found.take()
    assert len(taken) == 2 and len({one.trace for one in taken}) == 1


@pytest.mark.parametrize("text", [None, "", "0" * 31, "0" * 32, "g" * 32, "١" * 32, "0x" + "1" * 30, " " * 31 + "1", TRACE + "0"])
def test_malformed_trace_id_is_zero(text: str | None) -> None:
    assert trace_id(text) == 0
