"""A broadcast is one row and one call at its sender, whatever the number of its receivers and however it is read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.telemetry._arrow import pa
from monarch.telemetry._ingest.broadcasts import FIRST, Broadcasts
from monarch.telemetry._ingest.endpoints import EndpointStats
from monarch.telemetry._ingest.messages import Messages
from monarch.telemetry._ingest.rows import Rows
from monarch.telemetry._ingest.sampling import Sampling

CLIENT, MESH = (1 << 63) + 21, (1 << 63) + 31
_TYPES = {"us": pa.int64(), "trace": pa.binary(24), "thread": pa.uint32(), "method": pa.string(), "dims": pa.string()}


def event(number: int, rank: int, **fields: Any) -> dict[str, Any]:
    found = {"proc": CLIENT, "thread": 7, "number": number, "us": 1_000_000 + number, "trace": bytes(24), "mesh": MESH, "method": "step"}
    return {**found, "rank": rank, "sender": 0, "call": 0, "bytes": 10, "parent": 0, "offset": 0, "dims": "", **fields}


def rows(*events: dict[str, Any]) -> Rows:
    columns = {name: pa.array([one[name] for one in events], _TYPES.get(name, pa.uint64())) for name in events[0]}
    return Rows(len(events), columns)


def broadcasts(*sizes: int, **fields: Any) -> list[dict[str, Any]]:
    ranks = [rank for size in sizes for rank in range(size)]
    return [event(number, rank, **fields) for number, rank in enumerate(ranks)]


def firsts(events: list[dict[str, Any]]) -> list[bool]:
    return Broadcasts().mark({"message.sent": rows(*events)})["message.sent"][FIRST].to_pylist()


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.lists(st.integers(1, 30), max_size=4))
def test_broadcast_has_one_first_event_across_looks(sizes: list[int], cuts: list[int]) -> None:
    events = broadcasts(*sizes)
    kept, messages, stats = Broadcasts(), Messages(Sampling(None)), EndpointStats()
    sent: list[int] = []
    for low, high in zip([0, *sorted(cuts)], [*sorted(cuts), len(events)], strict=True):
        if events[low:high]:
            marked = kept.mark({"message.sent": rows(*events[low:high])})
            sent += [number for batch in messages.batches(marked, {})["sent_messages"] for number in batch.column("id").to_pylist()]
            stats.add(marked)
    assert len(set(sent)) == len(sent) == len(sizes)
    (row,) = stats.current({}).to_pylist()
    assert (row["side"], row["adverb"], row["count"], row["bytes_out"]) == ("client", "broadcast", len(sizes), 10 * sum(sizes))


def test_threads_do_not_mix_their_broadcasts() -> None:
    one, other = broadcasts(2, 2, thread=1), broadcasts(2, 2, thread=2)
    mixed = [{**each, "number": number} for number, each in enumerate(each for pair in zip(one, other, strict=True) for each in pair)]
    assert firsts(mixed) == [True, True, False, False] * 2


@pytest.mark.parametrize(
    "fields",
    [
        {"mesh": 5},
        {"offset": 2},
        {"dims": "gpus=2:1"},
        {"method": "other"},
        {"bytes": 11},
        {"sender": 3},
        {"trace": b"\1" * 24},
        {"thread": 8},
        {"proc": 9},
    ],
)
def test_different_fields_are_another_broadcast(fields: dict[str, Any]) -> None:
    assert firsts([event(1, 0), event(2, 1)]) == [True, False]
    assert firsts([event(1, 0), event(2, 1, **fields)]) == [True, True]


def test_cast_and_its_local_messages_are_one_broadcast() -> None:
    cast = {name: value for name, value in event(1, 0, targets=6).items() if name != "rank"}
    marked = Broadcasts().mark({"message.sent": rows(event(2, 0), event(3, 1), event(4, 0)), "cast.sent": rows(cast)})
    assert marked["cast.sent"][FIRST].to_pylist() == [True]
    assert marked["message.sent"][FIRST].to_pylist() == [False, False, True]


def test_calls_with_ids_are_left_unchanged() -> None:
    assert firsts([event(1, 0, call=4), event(2, 0), event(3, 1, call=4), event(4, 1)]) == [True, True, True, False]
