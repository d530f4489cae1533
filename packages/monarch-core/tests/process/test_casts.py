"""Calls and broadcasts to meshes on several hosts use a cast tree: here one with few children, so that hosts forward to others."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from eventually import eventually
from worker_processes import Workers

from monarch._core.observe.inspection import STATE, look
from monarch._core.process.current import current_process
from monarch.actor import Actor, ActorError, SupervisionError, current_rank, endpoint


class Member(Actor):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    @endpoint
    def note(self, x: Any) -> Any:
        self.seen.append(x)
        return x

    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def notes(self) -> list[Any]:
        return self.seen

    @endpoint
    def large(self, size: int) -> bytes:
        return bytes([current_rank().rank]) * size

    @endpoint
    def fail_or_wait(self, rank: int) -> None:
        if current_rank().rank == rank:
            raise ValueError("this rank")
        signal.pause()

    @endpoint
    def fail(self, rank: int) -> int:
        if current_rank().rank == rank:
            raise ValueError("this rank")
        return 1


class Source(Actor):
    @endpoint
    async def call(self, members: Any, times: int) -> list[Any]:
        self.members = members  # keeps the group
        for n in range(times):
            members.note.broadcast(n)
        return [v async for v in _values(members)]

    @endpoint
    async def keep(self, members: Any) -> None:
        self.members = members

    @endpoint
    async def failure(self, broadcasts: int) -> str:
        """The failure of a call to the members, after `broadcasts` broadcasts to them."""
        for n in range(broadcasts):
            self.members.note.broadcast(n)
        try:
            await self.members.note.call(-1)
        except SupervisionError as e:
            return str(e)
        return ""

    @endpoint
    async def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    async def casts(self) -> int:
        return json.loads(current_process().native.state())["casts"]["calls"]


async def _values(members: Any) -> Any:
    for value in (await members.notes.call()).values():
        yield value


@pytest.fixture(params=[1, 16])
def children(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv("MONARCH_CAST_FAN_OUT", str(request.param))
    yield request.param


def frames() -> int:
    """The number of frames that this client has sent into trees."""
    hosts = current_process().hosts.native
    assert hosts is not None
    return hosts.sent()[0]


def kept(workers: Workers) -> list[Any]:
    """The cast state of the agents of the workers, and of this client."""
    pids = {p.pid for p in workers.processes if p.poll() is None}
    found = [one.answer["procs"][0]["answer"]["casts"] for one in look(STATE) if one.answer and one.answer["agent_pid"] in pids]
    assert len(found) == len(pids)
    return [*found, json.loads(current_process().native.state())["casts"]]


def wait_until_forgotten(workers: Workers) -> None:
    """Waits until no state of any cast is left, and nothing waits for one."""

    def nothing(found: list[Any]) -> bool:
        return not any(one["records"] or one["held"] or one["calls"] for one in found)

    eventually("nothing is kept of any cast", lambda: kept(workers), nothing)


def wait_for_groups(workers: Workers, there: int, here: int) -> None:
    """Waits until all workers know `there` groups, and this client `here`."""

    def groups() -> list[int]:
        gc.collect()
        return [one["groups"] for one in kept(workers)]

    expected = [there] * len(workers.processes) + [here]
    eventually(f"groups {expected}", groups, lambda found: found == expected)


def test_calls_go_through_a_tree(children: int):
    with Workers(3) as workers, workers.attach() as hosts:
        members = hosts.spawn_procs({"gpus": 4}).spawn("members", Member)
        assert list(members.rank.call().get().values()) == list(range(12))
        before = frames()
        assert list(members.note.call("x").get().values()) == ["x"] * 12
        # The frames go to the heads of the root's spans, at most one for each host.
        assert 1 <= frames() - before <= 3
        # The ranks are in another order than their hosts.
        flipped = members.slice(gpus=slice(0, 4, 3))
        assert list(flipped.rank.call().get().values()) == list(range(6))
        assert [v[:1] for v in members.large.call(100_000).get().values()] == [bytes([n]) for n in range(12)]
        with pytest.raises(ActorError, match="this rank"):
            members.fail.call(7).get()
        for n in range(12):
            assert members.slice(hosts=n // 4, gpus=n % 4).notes.call_one().get() == ["x"]
        wait_until_forgotten(workers)
        wait_for_groups(workers, 2, 2)
        # Handles that are gone are forgotten everywhere.
        del flipped
        wait_for_groups(workers, 1, 1)


def test_order_of_casts_and_direct_sends(children: int):
    with Workers(3) as workers, workers.attach() as hosts:
        members = hosts.spawn_procs({"gpus": 2}).spawn("members", Member)
        expected: list[list[int]] = [[] for _ in range(6)]
        slices = {(h, g): members.slice(hosts=h, gpus=g) for h in range(3) for g in range(2)}
        part, column = members.slice(hosts=slice(1, 3)), members.slice(gpus=1)
        for n in range(400):
            match n % 5:
                case 0 | 3:
                    members.note.broadcast(n)
                    ranks = list(range(6))
                case 1:
                    part.note.broadcast(n)
                    ranks = [2, 3, 4, 5]
                case 2:
                    column.note.broadcast(n)
                    ranks = [1, 3, 5]
                case _:
                    ranks = [n // 5 % 6]
                    slices[ranks[0] // 2, ranks[0] % 2].note.broadcast(n)
            for r in ranks:
                expected[r].append(n)
        assert list(members.notes.call().get().values()) == expected


def test_error_does_not_wait_for_ranks_that_hang(children: int):
    with Workers(3) as workers, workers.attach() as hosts:
        members = hosts.spawn_procs().spawn("members", Member)
        with pytest.raises(ActorError, match="this rank"):
            members.fail_or_wait.call(2).get()


def test_proc_as_the_source(children: int):
    with Workers(3) as workers, workers.attach() as hosts:
        procs = hosts.spawn_procs({"gpus": 2})
        members = procs.spawn("members", Member)
        sources = procs.spawn("sources", Source)
        for rank in range(3):
            got = sources.slice(hosts=rank, gpus=0).call.call_one(members, 50).get()
            assert got == [list(range(50)) * (rank + 1)] * 6
        assert list(sources.casts.call().get().values()) == [0] * 6


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_host_that_is_killed_in_mid_cast(monkeypatch: pytest.MonkeyPatch, victim: int):
    monkeypatch.setenv("MONARCH_CAST_FAN_OUT", "1")
    with Workers(4) as workers, workers.attach() as hosts:
        members = hosts.spawn_procs({"gpus": 2}).spawn("members", Member)
        members.note.call(-1).get()
        waiting = []
        for n in range(100):
            waiting.append(members.note.call(n))
            if n == 50:
                workers.processes[victim].kill()
        for one in waiting:
            try:
                assert len(list(one.get().values())) == 8
            except SupervisionError as e:
                assert "lost" in str(e)
        living = members.slice(hosts=slice(victim + 1, 4)) if victim < 2 else members.slice(hosts=slice(0, victim))
        for seen in living.notes.call().get().values():
            assert seen == list(range(-1, 100))


def test_proc_that_is_killed_among_many_casts(children: int):
    with Workers(3) as workers, workers.attach() as hosts:
        members = hosts.spawn_procs({"gpus": 2}).spawn("members", Member)
        members.note.call(-1).get()
        waiting = []
        for n in range(1000):
            waiting.append(members.note.call(n))
            if n in (300, 600):
                os.kill(workers.procs_of(n // 300)[0], signal.SIGKILL)
        answered = 0
        for one in waiting:
            try:
                answered += len(list(one.get().values()))
            except SupervisionError:
                pass
        assert answered % 6 == 0
        for seen in members.slice(hosts=0).notes.call().get().values():
            # A handle that knows of the failure sends nothing more.
            assert seen == list(range(-1, len(seen) - 1))
            assert len(seen) > max(300, answered // 6)
        wait_until_forgotten(workers)


def test_groups_of_a_killed_source_are_forgotten():
    with Workers(3) as workers, workers.attach() as hosts:
        members = hosts.spawn_procs({"gpus": 2}).spawn("members", Member)
        sources = hosts.slice(hosts=1).spawn_procs(name="sources").spawn("sources", Source)
        assert sources.call.call_one(members, 3).get() == [list(range(3))] * 6
        # The client has two groups: the procs under the actors, and the source.
        wait_for_groups(workers, 2, 1)
        with pytest.raises(SupervisionError):
            sources.end.call_one().get()
        wait_for_groups(workers, 1, 1)
        assert list(members.rank.call().get().values()) == list(range(6))
        wait_until_forgotten(workers)


@pytest.mark.parametrize("broadcasts", [0, 4])
def test_call_to_stopped_procs_names_their_end(broadcasts: int):
    with Workers(2, "tls") as workers, workers.attach() as hosts:
        procs = hosts.slice(hosts=1).spawn_procs({"gpus": 2}, name="members")
        members = procs.spawn("members", Member)
        sources = hosts.slice(hosts=0).spawn_procs(name="sources").spawn("sources", Source)
        members.rank.call().get()
        sources.keep.call(members).get()
        procs.stop("for the test").get()
        said = sources.failure.call_one(broadcasts).get()
        # The error has the end that the host of the members knows, and not that the host is unreachable.
        assert "for the test" in said, said
        assert "lost" not in said
