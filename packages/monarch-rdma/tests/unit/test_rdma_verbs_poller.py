"""The thread that takes completions: at once, after sleeping, with deadlines, and when its device fails."""

from __future__ import annotations

import ctypes
import queue
import threading

import pytest
from stub_provider import StubRail

from monarch.rdma.verbs.acceptor import Acceptor, Export
from monarch.rdma.verbs.connection import COMPLETE, EXHAUSTED, TIMED_OUT, Connection, Piece
from monarch.rdma.verbs.memory import Range
from monarch.rdma.verbs.poller import Poller


class Near:
    """A connection with a real poller for each rail."""

    def __init__(self, rails=1, *, dial=None, idle=lambda: None):
        fabric = {}
        self.rails = [StubRail(f"near{i}", fabric) for i in range(rails)]
        self.far = [StubRail(f"far{i}", fabric) for i in range(rails)]
        self.acceptor = Acceptor(self.far)
        self.pollers = [Poller(rail, idle=idle) for rail in self.rails]
        ways = [(rail, poller, 1.0) for rail, poller in zip(self.rails, self.pollers, strict=True)]
        self.connection = Connection(ways, dial or self.dial)
        self.local, self.remote = bytearray(1 << 20), bytearray(b"r" * (1 << 20))
        self.here, self.there = (ctypes.addressof(ctypes.c_char.from_buffer(memory)) for memory in (self.local, self.remote))
        self.export = Export(self.far, Range(self.there, 1 << 20), writable=True)
        self.keys = [rail.register(self.here, 1 << 20).key for rail in self.rails]
        self.ended = queue.SimpleQueue()

    def dial(self, offers):
        return self.acceptor.answer("peer", offers)

    def submit(self, nbytes, timeout=60.0):
        piece = Piece(False, self.here, nbytes, self.keys, self.there, self.export.record.keys)
        return self.connection.submit([piece], timeout, self.ended.put)

    def close(self):
        self.connection.close()
        for poller in self.pollers:
            poller.close()
        for rail in self.rails + self.far:
            rail.close()


@pytest.fixture
def near():
    made = Near()
    made.connection.open()
    yield made
    made.close()


def test_completions_come_by_events(near):
    for _ in range(20):
        transfer = near.submit(1000)
        near.rails[0].queues[0].finish()
        assert near.ended.get() is transfer and transfer.state == COMPLETE
    assert near.local[:1000] == b"r" * 1000


def test_completions_that_come_at_once(near):
    near.rails[0].at_once = True
    for _ in range(200):
        near.submit(1 << 20)
        assert near.ended.get().state == COMPLETE


def test_deadline_wakes_a_sleeper(near):
    transfer = near.submit(1000, timeout=0.05)
    assert near.ended.get() is transfer and transfer.state == TIMED_OUT
    assert not any(near.local)


def test_deadline_counts_beside_constant_completions(near):
    rail, (poller,) = near.rails[0], near.pollers
    other = Connection([(rail, poller, 1.0)], near.dial)
    other.open()
    near.rails[0].queues[1].stuck = True
    rail.at_once = True
    piece = Piece(False, near.here, 1, near.keys, near.there, near.export.record.keys)
    over = threading.Event()
    ended = queue.SimpleQueue()

    def again(transfer):
        if over.is_set():
            ended.put(transfer)
        else:
            near.connection.submit([piece], 60.0, again)

    near.connection.submit([piece], 60.0, again)
    stuck = other.submit([piece], 0.1, near.ended.put)
    assert near.ended.get() is stuck and stuck.state == TIMED_OUT
    over.set()
    assert ended.get().state == COMPLETE
    other.close()


def test_failed_device_fails_its_transfers():
    near = Near(2)
    near.connection.open()
    transfer = near.submit(1 << 20)
    (busy,) = [rail for rail in near.rails if rail.queues[0].requests]
    other = near.rails[1 - near.rails.index(busy)]
    busy.break_down(OSError(5, "gone"))
    # The other rail sends the slice again.
    other.posts.get()
    other.queues[0].finish()
    assert near.ended.get() is transfer and transfer.state == COMPLETE
    other.break_down(OSError(5, "gone as well"))
    last = near.submit(1000)
    assert near.ended.get() is last and last.state == EXHAUSTED
    near.close()


def test_queue_is_replaced_without_other_traffic():
    answers = iter([True, False, False, True])

    def dial(offers):
        if not next(answers):
            raise OSError("not now")
        return near.acceptor.answer("peer", offers)

    near = Near(dial=dial)
    near.connection.open()
    transfer = near.submit(1000)
    near.rails[0].posts.get()
    near.rails[0].queues[0].finish(status=12)
    # After two more errors it rests, and there is no other rail.
    assert near.ended.get() is transfer and transfer.state == EXHAUSTED and near.connection.troubles == ["near0: not now"]
    near.close()
    answers = iter([True, False, True])
    near = Near(dial=dial)
    near.connection.open()
    transfer = near.submit(1000)
    near.rails[0].posts.get()
    near.rails[0].queues[0].finish(status=12)
    near.rails[0].posts.get()
    near.rails[0].queues[0].finish()
    assert near.ended.get() is transfer and transfer.state == COMPLETE and not near.connection.troubles
    near.close()


def test_idle_time_is_reported():
    told = threading.Event()
    near = Near(idle=told.set)
    told.wait()
    near.close()


def test_close_waits_for_a_question_on_its_way():
    asked, answer = threading.Event(), threading.Event()

    def dial(offers):
        asked.set()
        answer.wait()
        return near.acceptor.answer("peer", offers)

    near = Near(dial=dial)
    transfer = near.submit(1000)
    asked.wait()
    closing = threading.Thread(target=near.close)
    closing.start()
    assert near.ended.get() is transfer and transfer.state == "closed"
    assert closing.is_alive()
    answer.set()
    closing.join()
    assert not near.rails[0].queues
