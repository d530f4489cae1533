"""Memory for undelivered messages is bounded, and the bound causes no deadlock."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest
from eventually import eventually
from fresh import lines, run

from monarch._core.process.current import current_process
from monarch.actor import Actor, Channel, endpoint, this_host

MIB = 1 << 20


class Slow(Actor):
    """Takes no message until `open` is called."""

    def __init__(self, port):
        mine, self.gate = Channel.open()
        port.send(mine)
        self.count = 0

    @endpoint
    def wait(self):
        self.gate.recv().get()

    @endpoint
    def take(self, data):
        self.count += 1

    @endpoint
    def taken(self):
        return self.count

    @endpoint
    def memory(self):
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Flooding(Actor):
    def __init__(self):
        self.got = 0

    @endpoint
    def flood(self, other, count, size):
        data = bytes(size)
        for _ in range(count):
            other.take.broadcast(data)

    @endpoint
    def take(self, data):
        self.got += 1

    @endpoint
    def taken(self):
        return self.got


class AsyncFlooding(Actor):
    def __init__(self):
        self.got = 0

    @endpoint
    async def flood(self, other, count, size):
        data = bytes(size)
        for _ in range(count):
            other.take.broadcast(data)

    @endpoint
    async def take(self, data):
        self.got += 1

    @endpoint
    async def taken(self):
        return self.got


@pytest.fixture(scope="module")
def procs():
    with this_host().spawn_procs({"gpus": 2}) as mesh:
        yield mesh


def slow_one(procs):
    port, receiver = Channel.open()
    slow = procs.slice(gpus=0).spawn("slow", Slow, port)
    gate = receiver.recv().get()
    slow.wait.broadcast()
    return slow, gate


def test_thread_without_credit_waits_inside_the_adverb(procs):
    slow, gate = slow_one(procs)
    sent = []
    done = threading.Event()

    def send():
        for i in range(400):
            slow.take.broadcast(bytes(60_000))
            sent.append(i)
        done.set()

    thread = threading.Thread(target=send)
    thread.start()
    # 24 MB do not fit: the thread is blocked in an adverb, which its stack shows while the message is not sent.
    import sys

    def is_in_adverb():
        frame = sys._current_frames().get(thread.ident)
        return frame is not None and frame.f_code.co_name == "begin"

    eventually("the thread is stuck in an adverb", lambda: (len(sent), is_in_adverb()), lambda seen: seen[0] >= 100 and seen[1])
    assert not done.is_set()
    gate.send("go")
    thread.join()
    assert slow.taken.call_one().get() == 400
    assert len(sent) == 400


def test_full_receiver_does_not_disturb_others(procs):
    slow, gate = slow_one(procs)
    thread = threading.Thread(target=lambda: [slow.take.broadcast(bytes(60_000)) for _ in range(400)])
    thread.start()
    other = procs.spawn("other", Flooding)
    other.take.call(b"").get()
    assert list(other.taken.call().get().values()) == [1, 1]
    gate.send("go")
    thread.join()
    assert slow.taken.call_one().get() == 400


def test_adverb_on_an_event_loop_does_not_wait(procs):
    slow, gate = slow_one(procs)

    async def main():
        for _ in range(400):
            slow.take.broadcast(bytes(60_000))
        gate.send("go")
        return await slow.taken.call_one()

    assert asyncio.run(main()) == 400


@pytest.mark.parametrize("kind", [Flooding, AsyncFlooding])
@pytest.mark.parametrize(("count", "size"), [(20_000, 0), (400, 100_000)])
def test_actors_that_flood_each_other(procs, kind, count, size):
    actors = procs.spawn("flooding", kind)
    one, two = actors.slice(gpus=0), actors.slice(gpus=1)
    futures = [one.flood.call_one(two, count, size), two.flood.call_one(one, count, size)]
    # The next message of each actor is behind the flood that it sent, and only in its own order. The test asks until all have arrived.
    [f.get() for f in futures]
    eventually("both have all messages", lambda: list(actors.taken.call().get().values()), lambda taken: taken == [count, count])


def test_actor_that_floods_itself_gets_all_messages(procs):
    one = procs.slice(gpus=0).spawn("flooding", Flooding)
    one.flood.call_one(one, 50_000, 200).get()
    eventually("all messages came", lambda: one.taken.call_one().get(), lambda taken: taken == 50_000)


def test_memory_of_the_receiver_is_bounded(procs):
    slow, gate = slow_one(procs)
    done = threading.Event()
    thread = threading.Thread(target=lambda: ([slow.take.broadcast(bytes(60_000)) for _ in range(4000)], done.set()))
    before = procs.slice(gpus=0).spawn("probe", Flooding).taken.call_one().get()
    assert before == 0
    thread.start()
    gate.send("go")
    thread.join()
    assert slow.taken.call_one().get() == 4000
    # 240 MB have passed a window of a few.
    assert slow.memory.call_one().get() < 200 * MIB
    assert current_process().native.stats()[1] < 700 * MIB


def test_waiting_is_interruptible():
    done = run(
        """
        import os, signal, sys, threading
        sys.path.insert(0, sys.argv[1])
        from test_back_pressure import Slow
        from monarch.actor import Channel, this_host
        port, receiver = Channel.open()
        slow = this_host().spawn_procs().spawn("slow", Slow, port)
        gate = receiver.recv().get()
        slow.wait.broadcast()
        main, status = threading.get_ident(), f"/proc/self/task/{threading.get_native_id()}/syscall"
        # How many have gone out, and where in the kernel the main thread is. To look lets it run.
        def look():
            with open(status) as f:
                where = f.read()
            return len(sent), where, sys._current_frames()[main].f_code.co_name
        def interrupt():
            before, same = look(), 0
            while same < 20:
                now = look()
                waits = now == before and now[0] > 100 and now[1] != "running\\n" and now[2] == "begin"
                before, same = now, same + 1 if waits else 0
            os.kill(os.getpid(), signal.SIGINT)
        sent = []
        threading.Thread(target=interrupt, daemon=True).start()
        try:
            while True:
                slow.take.broadcast(bytes(60_000))
                sent.append(1)
        except KeyboardInterrupt:
            print("interrupted")
        gate.send("go")
        # The message in the adverb that was interrupted may or may not have gone out.
        print(slow.taken.call_one().get() - len(sent) in (0, 1))
    """,
        os.path.dirname(__file__),
    )
    assert lines(done.stdout) == ["interrupted", "True"]


def test_sender_that_waits_for_a_receiver_that_dies(procs):
    done = run(
        """
        import os, signal, sys, threading
        sys.path.insert(0, sys.argv[1])
        from test_back_pressure import Slow, Flooding
        import monarch.actor
        from monarch.actor import Channel, SupervisionError, this_host
        monarch.actor.unhandled_fault_hook = lambda failure: None
        port, receiver = Channel.open()
        mesh = this_host().spawn_procs()
        from mesh_actors import Probe
        pid = mesh.spawn("probe", Probe).pid.call_one().get()
        slow = mesh.spawn("slow", Slow, port)
        receiver.recv().get()
        slow.wait.broadcast()
        ended = []
        def send():
            try:
                while True:
                    slow.take.broadcast(bytes(60_000))
                    ended.append(1)
            except SupervisionError as e:
                print("Killed(sig=9)" in str(e))
        thread = threading.Thread(target=send)
        thread.start()
        from eventually import eventually
        eventually("a hundred messages were sent", lambda: len(ended), lambda count: count >= 100)
        os.kill(pid, signal.SIGKILL)
        thread.join()
    """,
        os.path.dirname(__file__),
    )
    assert lines(done.stdout) == ["True"]
    assert signal.SIGKILL == 9
