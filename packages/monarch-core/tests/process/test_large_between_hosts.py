"""Large arguments and answers between hosts: complete, in order, once, and in bounded memory, whatever happens to connections."""

from __future__ import annotations

import os
import resource
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_processes import Workers

from monarch.actor import Actor, SupervisionError, endpoint

pytestmark = pytest.mark.usefixtures("moved")
MIB = 1 << 20


def pattern(size: int, seed: int) -> np.ndarray:
    """Test data of `size` bytes. A fragment in the wrong place is found, because the period divides no fragment size."""
    return np.resize(np.random.default_rng(seed).integers(0, 256, 65521, np.uint8), size)


class Store(Actor):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def check(self, x: np.ndarray, seed: int) -> bool:
        """Whether all data has arrived; it is writable."""
        same = np.array_equal(x, pattern(len(x), seed))
        x[:] = 0
        return same

    @endpoint
    def give(self, size: int, seed: int) -> np.ndarray:
        return pattern(size, seed)

    @endpoint
    def note(self, x: Any) -> None:
        self.seen.append(x if isinstance(x, int) else (len(x), int(x[0]), int(x[-1]), int(x.sum())))

    @endpoint
    def noted(self) -> list[Any]:
        return self.seen

    @endpoint
    def describe(self, x: Any) -> Any:
        return {key: (type(value).__name__, len(value), bytes(value[:3]), bytes(value[-3:])) for key, value in x.items()}

    @endpoint
    def aligned(self, xs: list[np.ndarray]) -> bool:
        return all(x.ctypes.data % 64 == 0 for x in xs)

    @endpoint
    def echo(self, x: Any) -> Any:
        return x

    @endpoint
    def send(self, other: Any, size: int, count: int) -> list[bool]:
        """Sends large messages to an actor of another host, with small ones in between."""
        answers: list[Any] = []
        for n in range(count):
            other.note.broadcast(n)
            answers.append(other.check.call_one(pattern(size + n, n), n))
        return [answer.get() for answer in answers]

    @endpoint
    def fetch(self, other: Any, size: int, seed: int) -> bool:
        return np.array_equal(other.give.call_one(size, seed).get(), pattern(size, seed))

    @endpoint
    def tell(self, other: Any, size: int) -> None:
        other.note.broadcast(pattern(size, 6))

    @endpoint
    def stop_here(self, other: Any, size: int) -> None:
        """Sends, and ends before the messages can have left."""
        other.note.broadcast(pattern(size, 5))
        os.kill(os.getpid(), signal.SIGKILL)


def sum_of(size: int, seed: int) -> tuple[int, int, int, int]:
    x = pattern(size, seed)
    return len(x), int(x[0]), int(x[-1]), int(x.sum())


def cut(hosts: Any) -> None:
    """Breaks the connections to all hosts."""
    from monarch._core.process.current import current_process

    client = current_process()
    assert client.hosts.native is not None
    for agent in hosts.__core__.agents:
        client.hosts.native.cut(agent)


@pytest.fixture(params=["unix", "tls", "insecure"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.filterwarnings("ignore:.*without encryption")
def test_sizes_and_kinds(kind: str):
    with Workers(2, kind) as workers, workers.attach() as hosts:
        stores = hosts.spawn_procs().spawn("store", Store)
        one, other = stores.slice(hosts=0), stores.slice(hosts=1)
        for size in (65535, 65536, 256 << 10, (256 << 10) + 1, (512 << 10) - 1, 3 * MIB + 7, 20 * MIB):
            assert one.check.call_one(pattern(size, size), size).get()
            assert np.array_equal(one.give.call_one(size, 1).get(), pattern(size, 1))
            assert one.fetch.call_one(other, size, 2).get()
        # One message has several parts, writable and not, with small ones between them.
        large = {f"{i}": pattern(i * 100_000, i) for i in range(1, 5)} | {"bytes": os.urandom(MIB), "small": b"abcdef"}
        want = {key: (type(x).__name__, len(x), bytes(x[:3]), bytes(x[-3:])) for key, x in large.items()}
        assert one.describe.call_one(large).get() == want
        back = other.echo.call_one(large).get()
        assert {key: bytes(x) for key, x in back.items()} == {key: bytes(x) for key, x in large.items()}
        back["4"][:] = 7
        assert one.aligned.call_one([pattern(i * MIB + 5, i) for i in range(1, 4)]).get()


@pytest.mark.parametrize("kind", ["unix", "tls"])
def test_order_across_broken_connections(kind: str):
    with Workers(2, kind) as workers, workers.attach() as hosts:
        stores = hosts.spawn_procs().spawn("store", Store)
        stores.pid.call().get()
        sent: list[Any] = []
        answers: list[Any] = []
        for n in range(24):
            size = (5 * MIB, 100_000, 1 * MIB)[n % 3] + n
            stores.note.broadcast(pattern(size, n))
            stores.note.broadcast(n)
            sent += [sum_of(size, n), n]
            if n % 4 == 0:
                answers.append((n, stores.give.call(5 * MIB, n)))
            if n % 3 == 2:
                # Frames in flight at that moment are sent again.
                cut(hosts)
        for n, answer in answers:
            assert all(np.array_equal(x, pattern(5 * MIB, n)) for x in answer.get().values())
        assert list(stores.noted.call().get().values()) == [sent, sent]


class Teller(Actor):
    """Sends from a proc of another host."""

    @endpoint
    def tell(self, stores: Any, rounds: int) -> bool:
        # Its own call comes behind its messages.
        return tell(stores, rounds) == list(stores.noted.call().get().values())


def tell(stores: Any, rounds: int) -> list[list[Any]]:
    """Sends large messages to one of four actors, and casts to all and to some; returns the messages that each must receive."""
    wanted: list[list[Any]] = [[], [], [], []]
    for n in range(rounds):
        size = 2 * MIB + n
        host, gpu = n % 2, n // 2 % 2
        stores.slice(hosts=host, gpus=gpu).note.broadcast(pattern(size, n))
        wanted[2 * host + gpu].append(sum_of(size, n))
        stores.note.broadcast(n)
        for seen in wanted:
            seen.append(n)
        if n % 3 == 0:
            stores.slice(gpus=1).note.broadcast(-n)
            wanted[1].append(-n)
            wanted[3].append(-n)
            assert len(stores.slice(hosts=host).pid.call().get()) == 2
    return wanted


def test_large_messages_and_casts_keep_their_order():
    with Workers(3, "tls") as workers, workers.attach() as hosts:
        stores = hosts.slice(hosts=slice(0, 2)).spawn_procs({"gpus": 2}).spawn("store", Store)
        wanted = tell(stores, 24)
        cut(hosts)
        more = tell(stores, 12)
        assert list(stores.noted.call().get().values()) == [a + b for a, b in zip(wanted, more, strict=True)]
        others = hosts.slice(hosts=slice(0, 2)).spawn_procs({"gpus": 2}).spawn("other", Store)
        teller = hosts.slice(hosts=2).spawn_procs().spawn("teller", Teller)
        assert teller.tell.call_one(others, 24).get()


def test_several_senders_at_once():
    with Workers(2, "tls") as workers, workers.attach() as hosts:
        procs = hosts.spawn_procs({"procs": 3})
        stores = procs.spawn("store", Store)
        target = stores.slice(hosts=1, procs=0)
        answers = [stores.slice(hosts=0, procs=p).send.call_one(target, 6 * MIB, 4) for p in range(3)]
        # Several threads of this process send, too, beside small calls.
        checks: list[bool] = []

        def send(seed: int) -> None:
            checks.append(target.check.call_one(pattern(9 * MIB, seed), seed).get())

        threads = [threading.Thread(target=send, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for n in range(50):
            assert stores.slice(hosts=1, procs=1).echo.call_one(n).get() == n
            if n % 20 == 10:
                cut(hosts)
        for thread in threads:
            thread.join()
        assert checks == [True] * 3
        assert [answer.get() for answer in answers] == [[True] * 4] * 3
        assert sorted(target.noted.call_one().get()) == sorted([*range(4)] * 3)


def memory_of(pid: int) -> int:
    """The peak memory of a process in bytes, including shared memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def test_memory_is_bounded():
    size, count = 16 * MIB, 12
    with Workers(2, "tls") as workers, workers.attach() as hosts:
        stores = hosts.spawn_procs().spawn("store", Store)
        one, other = stores.slice(hosts=0), stores.slice(hosts=1)
        agents = [process.pid for process in workers.processes]
        stores.pid.call().get()
        before = [memory_of(pid) for pid in agents]
        # All calls begin at once: messages that the other side has not requested stay at the sender.
        answer = one.send.call_one(other, size, count)
        assert answer.get() == [True] * count
        assert all(one.fetch.call_one(other, size, n).get() for n in range(4))
        for n in range(4):
            cut(hosts)
            assert one.check.call_one(pattern(size, n), n).get()
        # Each pair may have one message in the agent and one in flight, on either side of the agent.
        grown = [memory_of(pid) - was for pid, was in zip(agents, before, strict=True)]
        assert max(grown) < 6 * size, grown


def test_killed_sender_or_receiver_harms_no_other_transfer(faults: Any):
    with Workers(2, "tls") as workers, workers.attach() as hosts:
        procs = hosts.spawn_procs({"procs": 2})
        stores = procs.spawn("store", Store)
        sender, target = stores.slice(hosts=0, procs=0), stores.slice(hosts=1, procs=0)
        with pytest.raises(SupervisionError):
            sender.stop_here.call_one(target, 12 * MIB).get()
        # Its sent messages arrive complete, or not at all; and others continue.
        assert stores.slice(hosts=0, procs=1).send.call_one(target, 2 * MIB, 2).get() == [True] * 2
        # The messages may be between those of the other sender: two senders have no common order.
        noted = target.noted.call_one().get()
        whole = [one for one in noted if one not in (0, 1)]
        assert [one for one in noted if one in (0, 1)] == [0, 1] and whole in ([], [sum_of(12 * MIB, 5)])
        answers = [target.check.call_one(pattern(10 * MIB, n), n) for n in range(3)]
        os.kill(target.pid.call_one().get(), signal.SIGKILL)
        for answer in answers:
            try:
                assert answer.get() is True
            except SupervisionError:
                pass
        with pytest.raises(SupervisionError):
            target.pid.call_one().get()
        rest = stores.slice(hosts=1, procs=1)
        assert rest.check.call_one(pattern(10 * MIB, 9), 9).get()


def test_message_from_stopped_sender_is_atomic():
    with Workers(2, "tls") as workers, workers.attach() as hosts:
        receivers = hosts.slice(hosts=1).spawn_procs()
        target = receivers.spawn("store", Store)
        noted: list[Any] = []
        for _ in range(3):
            senders = hosts.slice(hosts=0).spawn_procs()
            senders.spawn("store", Store).tell.call_one(target, 8 * MIB).get()
            senders.stop().get()
        # Each rank is its own sender: only the last answer is behind all messages.
        noted = target.noted.call_one().get()
        assert noted == [sum_of(8 * MIB, 6)] * len(noted)


def test_host_killed_during_large_transfers_fails_its_calls(faults: Any):
    with Workers(2, "tls") as workers, workers.attach() as hosts:
        stores = hosts.spawn_procs().spawn("store", Store)
        stores.pid.call().get()
        answers = [stores.check.call(pattern(12 * MIB, n), n) for n in range(3)]
        workers.processes[1].kill()
        for answer in answers:
            try:
                assert set(answer.get().values()) == {True}
            except SupervisionError:
                pass
        with pytest.raises(SupervisionError, match="lost"):
            stores.slice(hosts=1).pid.call_one().get()
        assert stores.slice(hosts=0).check.call_one(pattern(12 * MIB, 4), 4).get()


def test_agent_without_shared_memory_relays_large_parts():
    def no_files_of_this_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 * MIB, 8 * MIB))

    with Workers(1, "tls", preexec_fn=no_files_of_this_size) as workers, workers.attach() as hosts:
        store = hosts.spawn_procs().spawn("store", Store)
        for size in (100_000, 20 * MIB):
            assert store.check.call_one(pattern(size, size), size).get()
            # Its procs have no shared memory either.
            assert np.array_equal(store.give.call_one(size, 1).get(), pattern(size, 1))
