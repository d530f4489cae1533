"""The rows of `rdma_ops` and `rdma_buffers`, as an observer of the host gets them."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch.actor import Actor, endpoint, this_host
from monarch.extension import events, member
from monarch.rdma import RDMAAction, RDMABuffer, RDMAReleasedError

LIMIT = 20.0
SIZE = 1 << 20


class Observer:
    """Rows by table, in the order in which they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.rows: list[tuple[str, dict[str, Any]]] = []
        self._observation = events.observe(self._take)

    def _take(self, batch: events.Batch) -> None:
        with self._changed:
            for event in batch.events:
                if event.name == "user.event" and str(event.fields["name"]).startswith("rdma_"):
                    row = {**json.loads(str(event.fields["fields"])), "proc": batch.proc}
                    self.rows.append((str(event.fields["name"]), row))
            self._changed.notify_all()

    def until(self, table: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first row of a table that is wanted."""

        def found() -> dict[str, Any] | None:
            return next((row for name, row in self.rows if name == table and wanted(row)), None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() is not None, LIMIT), (table, self.rows)
            row = found()
            assert row is not None
            return row

    def stop(self) -> None:
        self._observation.stop()


class Sharer(Actor):
    def __init__(self) -> None:
        self.memory = bytearray(SIZE)

    @endpoint
    def is_recording(self) -> bool:
        return events.is_recording()

    @endpoint
    def share(self) -> tuple[int, RDMABuffer]:
        self.buffer = RDMABuffer(memoryview(self.memory), lease=500.0)
        return int(member().proc), self.buffer

    @endpoint
    def drop(self) -> None:
        self.buffer.drop().get()


@pytest.fixture
def observer() -> Iterator[Observer]:
    made = Observer()
    yield made
    made.stop()


@pytest.fixture
def sharer(observer: Observer) -> Iterator[Any]:
    procs = this_host().spawn_procs(name="sharers")
    made = procs.spawn("sharer", Sharer)
    # Recording begins with a request to the process, and with this process's next read.
    while not (made.is_recording.call_one().get() and events.is_recording()):  # polls: no event
        continue
    yield made
    procs.stop().get()


def test_operations_are_reported_with_path_and_peer(observer: Observer, sharer: Any) -> None:
    proc, buffer = sharer.share.call_one().get()
    copy = bytearray(SIZE)
    buffer.read_into(memoryview(copy)).get()
    buffer.write_from(memoryview(copy)[:8]).get()
    RDMAAction().fetch_add(buffer, memoryview(copy)[:8], 1).submit().get()
    RDMAAction().fetch_add(buffer, memoryview(copy)[:8], 1).read_remote(memoryview(copy), buffer).submit().get()
    for op, nbytes in (("read", SIZE), ("write", 8), ("fetch_add", 8), ("batch", SIZE + 8)):
        row = observer.until("rdma_ops", lambda row, op=op: row["op"] == op)
        assert (row["bytes"], row["peer_id"], row["path"], row["retries"]) == (nbytes, proc, buffer.path, 0) and "error" not in row
        assert row["latency_us"] >= 0 and f"on {member().hostname}" in row["peer"]


def test_failed_operation_has_its_reason(observer: Observer, sharer: Any) -> None:
    _, buffer = sharer.share.call_one().get()
    sharer.drop.call_one().get()
    failing = buffer.read_into(memoryview(bytearray(SIZE)))
    row = observer.until("rdma_ops", lambda row: "error" in row)
    assert row["error"].startswith("released: dropped by its owner") and row["bytes"] == 0
    with pytest.raises(RDMAReleasedError):
        failing.get()


def test_buffers_are_reported_by_number_until_they_end(observer: Observer, sharer: Any) -> None:
    proc, given = sharer.share.call_one().get()
    made = observer.until("rdma_buffers", lambda row: row["proc"] == proc and "lease_until_us" in row)
    assert (made["bytes"], made["readonly"]) == (SIZE, False)
    observer.until("rdma_buffers", lambda row: (row["proc"], row["buffer"], row.get("given_away")) == (made["proc"], made["buffer"], True))
    sharer.drop.call_one().get()
    observer.until("rdma_buffers", lambda row: (row["proc"], row["buffer"], row.get("ended")) == (made["proc"], made["buffer"], True))
    # No row has the capability.
    id = given.__core__.parts()[0]
    shown = repr(observer.rows)
    assert id.hex() not in shown and str(int.from_bytes(id, "little")) not in shown and str(int.from_bytes(id, "big")) not in shown


def test_unshared_buffer_ends_with_its_handle(observer: Observer, sharer: Any) -> None:
    kept, gone = (RDMABuffer(memoryview(bytearray(size)), readonly=True) for size in (1001, 1002))
    kept.to_bytes()
    numbers = [observer.until("rdma_buffers", lambda row, size=size: row.get("bytes") == size)["buffer"] for size in (1001, 1002)]
    del kept, gone
    gc.collect()
    observer.until("rdma_buffers", lambda row: (row["proc"], row["buffer"], row.get("ended")) == (member().proc, numbers[1], True))
    mine = [row for _, row in observer.rows if row["proc"] == member().proc]
    assert not [row for row in mine if row.get("buffer") == numbers[0] and row.get("ended")]


def test_nothing_is_made_while_nothing_records() -> None:
    with this_host().spawn_procs(name="unobserved") as procs:
        sharer = procs.spawn("sharer", Sharer)
        assert sharer.is_recording.call_one().get() is False
        _, buffer = sharer.share.call_one().get()
        buffer.read_into(memoryview(bytearray(SIZE))).get()
        assert buffer._number == 0
