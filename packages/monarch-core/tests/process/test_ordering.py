"""Messages from one sender to one receiver arrive in the order sent, exactly once; an actor handles one at a time."""

from __future__ import annotations

import asyncio
import threading

import pytest
from mesh_actors import Recorder

from monarch.actor import Actor, Channel, endpoint, this_host, this_proc


class Sender(Actor):
    @endpoint
    def send_mixed(self, recorders, tag, count):
        """Sends casts, direct messages, choices of one and calls, through different slices."""
        for i in range(count):
            kind = i % 5
            if kind == 0:
                recorders.put.broadcast((tag, i))
            elif kind == 1:
                recorders.slice(gpus=0).put.broadcast((tag, i))
            elif kind == 2:
                recorders.flatten("r").put.call((tag, i))
            elif kind == 3:
                recorders.slice(gpus=slice(0, 1)).put.choose((tag, i))
            else:
                recorders.put_sized.broadcast((tag, i), bytearray(70_000))

    @endpoint
    def forward(self, recorder, items):
        for item in items:
            recorder.put.broadcast(item)
        recorder.put.call_one("end").get()


class AsyncSender(Actor):
    @endpoint
    async def send_all(self, recorder, tag, count):
        for i in range(count):
            recorder.put.broadcast((tag, i))
            if i % 100 == 0:
                await asyncio.sleep(0)
        await recorder.put.call_one((tag, "end"))


class Overlap(Actor):
    def __init__(self):
        self.inside = 0
        self.most = 0

    @endpoint
    def step(self):
        self.inside += 1
        self.most = max(self.most, self.inside)
        for _ in range(100):
            pass
        self.inside -= 1

    @endpoint
    def highest(self):
        return self.most


class AsyncOverlap(Actor):
    def __init__(self):
        self.inside = 0
        self.most = 0

    @endpoint
    async def step(self):
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0)
        self.inside -= 1

    @endpoint
    async def highest(self):
        return self.most


class Thread(Actor):
    """Checks that it keeps one thread."""

    def __init__(self):
        self.idents = {threading.get_ident()}
        self.local = threading.local()
        self.local.value = 1

    @endpoint
    def look(self):
        self.idents.add(threading.get_ident())
        self.local.value += 1
        try:
            asyncio.get_running_loop()
            loop = True
        except RuntimeError:
            loop = False
        thread = threading.current_thread()
        return len(self.idents), self.local.value, loop, thread.daemon, thread is threading.main_thread()


class AsyncThread(Actor):
    def __init__(self):
        self.idents = {threading.get_ident()}
        self.loops = set()

    @endpoint
    async def look(self):
        self.idents.add(threading.get_ident())
        self.loops.add(id(asyncio.get_running_loop()))
        return len(self.idents), len(self.loops)


class Blocked(Actor):
    def __init__(self, port):
        self.port = port

    @endpoint
    def block(self):
        mine, receiver = Channel.open()
        self.port.send(mine)
        return receiver.recv().get()


class ConcurrentCycle(Actor):
    from monarch.actor import concurrent_endpoint as _concurrent

    @_concurrent
    async def start(self, me, other):
        return await other.turn.call_one(me)

    @_concurrent
    async def end(self):
        return "back"


class Turn(Actor):
    @endpoint
    async def turn(self, other):
        return await other.end.call_one()


class Ticking(Actor):
    """Runs a task of its own beside a backlog of messages."""

    @endpoint
    async def start(self):
        self.ticks = 0
        self.task = asyncio.create_task(self.tick())

    async def tick(self):
        while True:
            self.ticks += 1
            await asyncio.sleep(0)

    @endpoint
    async def nothing(self):
        pass

    @endpoint
    async def ticked(self):
        return self.ticks


@pytest.fixture(scope="module")
def procs():
    with this_host().spawn_procs({"gpus": 2}) as mesh:
        yield mesh


def expected(tag, count, rank):
    return [(tag, i) for i in range(count) if rank == 0 or i % 5 in (0, 2, 4)]


def taken(recorder):
    return [item[0] if isinstance(item[0], tuple) else item for item in recorder.taken.call_one().get()]


def test_casts_and_direct_sends_from_the_client(procs):
    recorders = procs.spawn("recorders", Recorder)
    Sender.send_mixed._method(None, recorders, "client", 500)
    for rank in range(2):
        assert taken(recorders.slice(gpus=rank)) == expected("client", 500, rank)


def test_casts_and_direct_sends_from_actors(procs):
    recorders = procs.spawn("recorders", Recorder)
    senders = procs.spawn("senders", Sender)
    futures = [senders.slice(gpus=i).send_mixed.call_one(recorders, i, 500) for i in range(2)]
    [f.get() for f in futures]
    # Their messages may still be in flight: a call by the same senders is behind them.
    for i in range(2):
        for rank in range(2):
            senders.slice(gpus=i).forward.call_one(recorders.slice(gpus=rank), []).get()
    for rank in range(2):
        items = [item for item in taken(recorders.slice(gpus=rank)) if item != "end"]
        for tag in range(2):
            assert [item for item in items if item[0] == tag] == expected(tag, 500, rank)


def test_order_holds_before_and_after_readiness():
    procs = this_host().spawn_procs({"gpus": 2})
    recorders = procs.spawn("recorders", Recorder)
    for i in range(200):
        recorders.put.broadcast(i)
    procs.initialized.get()
    for i in range(200, 400):
        recorders.put.broadcast(i)
    for rank in range(2):
        assert recorders.slice(gpus=rank).taken.call_one().get() == list(range(400))
    procs.stop().get()


def test_stop_takes_its_place_behind_what_was_sent(procs):
    recorders = procs.spawn("recorders", Recorder)
    futures = [recorders.put.call(i) for i in range(300)]
    recorders.stop().get()
    assert all(f.exception() is None for f in futures)


def test_async_sender(procs):
    recorder = procs.slice(gpus=0).spawn("recorder", Recorder)
    sender = procs.slice(gpus=1).spawn("sender", AsyncSender)
    sender.send_all.call_one(recorder, "a", 3000).get()
    assert recorder.taken.call_one().get() == [*(("a", i) for i in range(3000)), ("a", "end")]


def test_order_holds_in_the_clients_process():
    recorder = this_proc().spawn("recorder", Recorder)
    for i in range(1000):
        recorder.put.broadcast(i)
    assert recorder.taken.call_one().get() == list(range(1000))
    recorder.stop().get()


def test_threads_of_one_sender_lose_and_double_nothing(procs):
    recorder = procs.slice(gpus=0).spawn("recorder", Recorder)
    threads = [threading.Thread(target=lambda k=k: [recorder.put.broadcast((k, i)) for i in range(500)]) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    items = recorder.taken.call_one().get()
    for k in range(4):
        assert [i for s, i in items if s == k] == list(range(500))


@pytest.mark.parametrize("kind", [Overlap, AsyncOverlap])
def test_actor_handles_one_message_at_a_time(procs, kind):
    actor = procs.slice(gpus=0).spawn("overlap", kind)
    futures = []
    threads = [threading.Thread(target=lambda: futures.extend(actor.step.call_one() for _ in range(200))) for _ in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    [f.get() for f in futures]
    assert actor.highest.call_one().get() == 1


def test_actor_has_one_thread(procs):
    sync = procs.slice(gpus=0).spawn("sync", Thread)
    found = [sync.look.call_one().get() for _ in range(3)]
    assert found == [(1, 2 + i, False, True, False) for i in range(3)]
    other = procs.slice(gpus=0).spawn("async", AsyncThread)
    assert [other.look.call_one().get() for _ in range(3)] == [(1, 1)] * 3


def test_blocked_actor_blocks_no_other(procs):
    port, receiver = Channel.open()
    blocked = procs.slice(gpus=0).spawn("blocked", Blocked, port)
    future = blocked.block.call_one()
    release = receiver.recv().get()
    recorder = procs.slice(gpus=0).spawn("recorder", Recorder)
    recorder.put.call_one(1).get()
    assert recorder.taken.call_one().get() == [1]
    assert blocked.initialized.get() is None
    recorder.stop().get()
    release.send("released")
    assert future.get() == "released"


def test_cycle_through_a_concurrent_endpoint(procs):
    a = procs.slice(gpus=0).spawn("a", ConcurrentCycle)
    b = procs.slice(gpus=1).spawn("b", Turn)
    assert a.start.call_one(a, b).get() == "back"


def test_backlog_does_not_starve_tasks_of_the_loop(procs):
    actor = procs.slice(gpus=0).spawn("ticking", Ticking)
    actor.start.call_one().get()
    for _ in range(2000):
        actor.nothing.broadcast()
    assert actor.ticked.call_one().get() >= 2000 // 64
