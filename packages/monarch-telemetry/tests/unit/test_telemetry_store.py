"""The store of a collector: order, bounds, and that readers keep what they got."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.telemetry._store.entities import Entities
from monarch.telemetry._store.history import PARTITION_BYTES, PARTITION_SECONDS, History
from monarch.telemetry._store.store import Store

ROWS = pa.schema([("time", pa.int64()), ("text", pa.string())])
THINGS = pa.schema([pa.field("id", pa.uint64(), nullable=False), ("name", pa.string()), ("ended_us", pa.int64())])


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def rows(*numbers: int, text: str = "x") -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([text] * len(numbers))], schema=ROWS)


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch.column("time").to_pylist()]


def store(clock: Clock, budget: int = 1 << 30, retention: float = 60.0) -> Store:
    return Store({"messages": ROWS, "failures": ROWS}, {"actors": THINGS}, clock=clock, budget=budget, retention=retention)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 4, allow_nan=False)), max_size=80), st.floats(1, 60))
@settings(max_examples=60, deadline=None)
def test_history_is_what_came_within_the_time(appends: list[tuple[int, float]], retention: float) -> None:
    """A row is gone at the earliest when it is too old, and at the latest a partition later."""
    clock = Clock()
    kept = store(clock, retention=retention)
    came: list[tuple[float, int]] = []
    for count, pause in appends:
        clock.now += pause
        new = [len(came) + at for at in range(count)]
        came += [(clock.now, number) for number in new]
        kept.append("messages", rows(*new))
        found = numbers(kept.snapshot(["messages"])["messages"])
        assert found == [number for _, number in came][len(came) - len(found) :]
        assert set(found) >= {number for time, number in came if time >= clock.now - retention}
        assert not set(found) & {number for time, number in came if time < clock.now - retention - PARTITION_SECONDS}
        status = {one.table_name: one for one in kept.status()}["messages"]
        assert (status.rows, status.rows + status.dropped) == (len(found), len(came))


def test_largest_table_loses_its_oldest_rows() -> None:
    clock = Clock()
    kept = store(clock, budget=4 << 20)
    kept.append("failures", rows(1, 2, 3))
    for number in range(400):
        clock.now += 0.01
        kept.append("messages", rows(number, text="m" * 50_000))
    assert numbers(kept.snapshot(["failures"])["failures"]) == [1, 2, 3]
    found = numbers(kept.snapshot(["messages"])["messages"])
    assert found[-1] == 399 and found == list(range(found[0], 400))
    status = {one.table_name: one for one in kept.status()}
    assert status["messages"].bytes + status["failures"].bytes <= 4 << 20
    assert status["messages"].bytes >= 2 << 20 and status["messages"].dropped == found[0]
    assert status["messages"].oldest_us is not None and status["messages"].oldest_us > 1_000_000_000


def test_oversized_batch_is_dropped_and_counted() -> None:
    kept = store(Clock(), budget=1000)
    kept.append("messages", rows(1, text="m" * 5000))
    assert kept.snapshot(["messages"]) == {"messages": []}
    assert {one.table_name: one.dropped for one in kept.status()} == {"actors": 0, "failures": 0, "messages": 1}


def test_readers_keep_what_they_got() -> None:
    clock = Clock()
    kept = store(clock, retention=1.0)
    kept.append("messages", rows(1, 2))
    before = kept.snapshot(["messages"])["messages"]
    kept.append("messages", rows(3))
    clock.now += 100
    kept.expire()
    assert numbers(before) == [1, 2] and kept.snapshot(["messages"])["messages"] == []


def test_small_batches_are_joined() -> None:
    history = History(ROWS)
    for number in range(1000):
        history.append(rows(number), 1.0)
    assert len(history.batches()) < 70
    for number in range(1000, 1200):
        history.append(rows(number, text="m" * (PARTITION_BYTES // 100)), 1.0)
    assert numbers(history.batches()) == list(range(1200))
    assert history.nbytes == sum(batch.get_total_buffer_size() for batch in history.batches())


def test_batch_of_other_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="'id'"):
        store(Clock()).append("messages", pa.record_batch([pa.array([1], pa.uint64())], names=["id"]))
    with pytest.raises(KeyError):
        store(Clock()).append("no_table", rows(1))


def test_ended_entities_are_dropped_in_order() -> None:
    things = Entities(THINGS, ended=3)
    for id in range(10):
        things.put(id, {"id": id, "name": f"n{id}"})
    for id in (4, 2, 9, 7, 5):
        things.put(id, {"ended_us": id * 100}, ended=True)
    (batch,) = things.batches()
    assert batch.column("id").to_pylist() == [9, 7, 5, 0, 1, 3, 6, 8]
    assert batch.column("ended_us").to_pylist()[:4] == [900, 700, 500, None]
    assert things.dropped == 2 and things.get(4) is None and things.get(9) == {"id": 9, "name": "n9", "ended_us": 900}


def test_late_values_do_not_revive_ended_entities() -> None:
    things = Entities(THINGS)
    things.put(1, {"id": 1}, ended=True)
    things.put(1, {"name": "late"})
    (batch,) = things.batches()
    assert batch.to_pylist() == [{"id": 1, "name": "late", "ended_us": None}]
    assert things.batches()[0] is batch
    with pytest.raises(ValueError, match="'colour'"):
        things.put(2, {"colour": "red"})


def test_table_is_of_one_kind() -> None:
    with pytest.raises(ValueError, match="actors"):
        Store({"actors": ROWS}, {"actors": THINGS}, clock=Clock())
    with pytest.raises(ValueError, match="greater than 0"):
        Store({}, {}, clock=Clock(), budget=0)
