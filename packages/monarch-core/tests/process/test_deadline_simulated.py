"""Deadlines on the clock of a universe."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from monarch.actor import Actor, Channel, DeadlineExceeded, SupervisionError, current_rank, deadline, deadline_left, endpoint, send
from monarch.actor.testing import Universe

HOUR = 3600.0


@pytest.fixture
def universe():
    with Universe() as u:
        yield u


class Sleeper(Actor):
    def __init__(self) -> None:
        self.ended: list[str] = []

    @endpoint
    async def sleep(self, seconds: float, *ranks: int) -> int:
        try:
            if not ranks or current_rank().rank in ranks:
                await asyncio.sleep(seconds)  # sleeps: simulated time
        finally:
            self.ended.append("sleep")
        return current_rank().rank

    @endpoint
    async def left(self) -> float | None:
        return deadline_left()

    @endpoint
    async def chain(self, others: list[Any], seconds: float) -> Any:
        if others:
            return await others[0].chain.call_one(others[1:], seconds)
        await asyncio.sleep(seconds)  # sleeps: simulated time
        return deadline_left()

    @endpoint
    async def endings(self) -> list[str]:
        return self.ended


class Blocking(Actor):
    def __init__(self) -> None:
        self.count = 0

    @endpoint
    def block(self, other: Any) -> Any:
        return other.sleep.call_one(2 * HOUR).get()

    @endpoint
    def add(self) -> int:
        self.count += 1
        return self.count


def test_deadline_is_of_simulated_time(universe):
    sleepers = universe.hosts(2).spawn_procs({"gpus": 2}).spawn("sleepers", Sleeper)
    begin = universe.clock.now()
    with deadline(HOUR):
        assert deadline_left() == HOUR
        error = sleepers.sleep.call(2 * HOUR, 1, 3).exception()
    assert universe.clock.now() - begin == pytest.approx(HOUR)
    assert isinstance(error, DeadlineExceeded) and (error.missing, error.values.values()) == ([1, 3], [0, 2])
    assert str(error).split("\n")[1].startswith("  ranks 1, 3: running since 3600.0 s: test_deadline_simulated.py:")
    assert sleepers.endings.call().get().values() == [["sleep"]] * 4
    assert universe.clock.now() - begin == pytest.approx(HOUR)


def test_time_of_an_answered_call_does_not_pass(universe):
    sleepers = universe.hosts(1).spawn_procs({"gpus": 2}).spawn("sleepers", Sleeper)
    with deadline(HOUR):
        assert sleepers.left.call().get().values() == [pytest.approx(HOUR)] * 2
    universe.run_until_idle()
    assert universe.clock.now() < HOUR / 2


def test_queued_call_expires_behind_a_sync_endpoint(universe):
    procs = universe.hosts(1).spawn_procs({"gpus": 2})
    sleeper = procs.slice(gpus=0).spawn("sleeper", Sleeper)
    blocking = procs.slice(gpus=1).spawn("blocking", Blocking)
    running = blocking.block.call_one(sleeper)
    with deadline(HOUR):
        error = blocking.add.call_one().exception()
    assert str(error).split("\n")[1] == "  rank 0: queued behind block since 3600.0 s"
    assert running.get() == 0
    assert universe.clock.now() == pytest.approx(2 * HOUR)
    assert blocking.add.call_one().get() == 1


def test_nested_calls_expire_together(universe):
    sleepers = universe.hosts(3).spawn_procs({"gpus": 1}).spawn("sleepers", Sleeper)
    one, two, three = (sleepers.slice(hosts=i) for i in range(3))
    with deadline(HOUR):
        assert one.chain.call_one([two, three], 60).get() == pytest.approx(HOUR - 60)
        error = one.chain.call_one([two, three], HOUR).exception()
    assert isinstance(error, DeadlineExceeded)
    assert universe.clock.now() == pytest.approx(HOUR)
    assert sleepers.left.call().get().values() == [None] * 3


def test_killed_proc_precedes_the_deadline(universe):
    sleepers = universe.hosts(2).spawn_procs({"gpus": 1}).spawn("sleepers", Sleeper)
    sleepers.left.call().get()
    with deadline(HOUR):
        future = sleepers.sleep.call(2 * HOUR)
    universe.later(60, lambda: universe.kill(sleepers.slice(hosts=1)))
    universe.run_for(120)
    with pytest.raises(SupervisionError):
        future.get()
    assert universe.clock.now() == pytest.approx(120)


def test_awaited_call_expires(universe):
    sleepers = universe.hosts(1).spawn_procs({"gpus": 2}).spawn("sleepers", Sleeper)

    async def main():
        with deadline(60):
            with pytest.raises(DeadlineExceeded):
                await sleepers.sleep.call(HOUR)
            return deadline_left()

    assert universe.run(main()) == 0
    assert universe.clock.now() == pytest.approx(60)


def test_answers_to_a_port_come_in_simulated_time(universe):
    sleepers = universe.hosts(1).spawn_procs({"gpus": 3}).spawn("sleepers", Sleeper)
    port, receiver = Channel[int].open()
    send(sleepers.sleep, (60,), {}, port)
    assert sorted(receiver.recv().get() for _ in range(3)) == [0, 1, 2]
    assert universe.clock.now() == pytest.approx(60)
    with deadline(HOUR):
        send(sleepers.sleep, (2 * HOUR, 1), {}, port)
    assert sorted(receiver.recv().get() for _ in range(2)) == [0, 2]
    assert isinstance(receiver.recv().exception(), DeadlineExceeded)
    assert universe.clock.now() == pytest.approx(60 + HOUR)


def test_port_is_left_with_its_universe(universe):
    sleepers = universe.hosts(1).spawn_procs({"gpus": 2}).spawn("sleepers", Sleeper)
    port, receiver = Channel[int].open()
    send(sleepers.sleep, (HOUR,), {}, port)
    del receiver
