"""Actors that keep replicas alive, for the tests of recovery."""

from __future__ import annotations

import os
import signal
from typing import Any

from monarch.actor import Actor, MeshFailure, Port, ProcMesh, SupervisionError, current_rank, endpoint
from monarch.actor.recovery import Replicas


class Replica(Actor):
    """Has its rank, and a value that is lost with it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.value = 0

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def who(self) -> tuple[int, int, int]:
        return self.rank, current_rank().rank, self.value

    @endpoint
    def put(self, value: int) -> None:
        self.value = value

    @endpoint
    def say(self, text: str) -> None:
        print(text)

    @endpoint
    def fail(self) -> None:
        raise SystemExit(4)

    @endpoint(explicit_response_port=True)
    def never(self, answer: Port[None]) -> None:
        """Keeps its caller waiting until this actor ends."""
        self.answer = answer

    @endpoint
    def block(self, started: Port[int]) -> None:
        """Never returns, and cannot be cancelled."""
        started.send(os.getpid())
        signal.pause()


class Helper(Actor):
    @endpoint
    def fail(self) -> None:
        raise ValueError("no help")

    @endpoint
    def ping(self) -> str:
        return "helping"


class Keeper(Actor):
    """Owns replicas. Its endpoints with a rank wait until the failure has been seen, and then heal."""

    def __init__(self, count: int, options: dict[str, Any], helper: bool = False) -> None:
        self.helpers: dict[int, Helper] = {}
        self.started: list[int] = []
        self.told: list[str | None] = []

        def start(rank: int, procs: ProcMesh) -> Replica:
            self.started.append(rank)
            if helper:
                self.helpers[rank] = procs.spawn("helper", Helper)
            return procs.spawn("replica", Replica, rank)

        self.replicas = Replicas(count, start, **options)

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.told.append(failure.name)
        return self.replicas.handle(failure)

    @endpoint
    async def pids(self) -> list[Any]:
        return [list((await replica.pid.call()).values()) for replica in self.replicas]

    @endpoint
    async def who(self, rank: int) -> tuple[int, int, int]:
        return await self.replicas[rank].who.call_one()

    @endpoint
    async def put(self, rank: int, value: int) -> None:
        await self.replicas[rank].put.call_one(value)

    @endpoint
    async def say(self, text: str) -> None:
        for replica in self.replicas:
            await replica.say.call(text)

    @endpoint
    async def healed(self) -> dict[int, str]:
        return {rank: failure.reason.kind for rank, failure in self.replicas.heal().items()}

    @endpoint
    async def kill(self, rank: int, which: int = 0) -> None:
        """Returns when a call to the replica has failed."""
        replica = self.replicas[rank]
        pids = list((await replica.pid.call()).values())
        end = replica.never.call()
        os.kill(pids[which], signal.SIGKILL)
        try:
            await end
        except SupervisionError:
            return

    @endpoint
    async def fail(self, rank: int) -> None:
        try:
            await self.replicas[rank].fail.call_one()
        except SupervisionError:
            return

    @endpoint
    async def fail_helper(self, rank: int) -> str:
        helper = self.helpers[rank]
        helper.fail.broadcast()
        while True:
            try:
                await helper.ping.call_one()
            except SupervisionError as error:
                return str(error)

    @endpoint
    async def ask_helper(self, rank: int) -> str:
        return await self.helpers[rank].ping.call_one()

    @endpoint
    async def block(self, rank: int, started: Port[int]) -> None:
        self.replicas[rank].block.broadcast(started)

    @endpoint
    async def restart(self, rank: int) -> None:
        self.replicas.restart(rank)

    @endpoint
    async def history(self) -> tuple[list[int], list[str | None]]:
        return self.started, self.told

    @endpoint
    async def lose_another(self, procs: ProcMesh) -> None:
        """Fails an actor that is no replica."""
        self.other = procs.spawn("other", Helper)
        self.other.fail.broadcast()


class SyncKeeper(Actor):
    """Its `__supervise__` cannot run while an endpoint does, so the endpoint heals."""

    def __init__(self) -> None:
        self.told = 0
        self.replicas = Replicas(2, lambda rank, procs: procs.spawn("replica", Replica, rank))

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.told += 1
        return self.replicas.handle(failure)

    @endpoint
    def lose_and_heal(self, rank: int) -> tuple[list[int], bool]:
        before = self.replicas[rank].pid.call_one().get()
        end = self.replicas[rank].never.call_one()
        os.kill(before, signal.SIGKILL)
        try:
            end.get()
        except SupervisionError:
            pass
        healed = list(self.replicas.heal())
        return healed, self.replicas[rank].pid.call_one().get() != before

    @endpoint
    def healed(self) -> tuple[list[int], int]:
        return list(self.replicas.heal()), self.told


class Impatient(SyncKeeper):
    """Permits no restart."""

    def __init__(self) -> None:
        self.told = 0
        self.replicas = Replicas(1, lambda rank, procs: procs.spawn("replica", Replica, rank), max_restarts=0)

    @endpoint
    def lose(self) -> tuple[str, str, int | None]:
        try:
            self.lose_and_heal._method(self, 0)  # pyright: ignore
        except SupervisionError as error:
            assert error.failure is not None
            return error.code, error.failure.reason.kind, error.failure.reason.signal
        return "no error", "", None


class Endless(Keeper):
    """Calls its replicas for ever, even after failures."""

    def __init__(self) -> None:
        super().__init__(2, {})

    @endpoint
    async def work(self, started: Port[None]) -> None:
        while True:
            try:
                for replica in self.replicas:
                    await replica.who.call_one()
                started.send(None)
            except SupervisionError:
                self.replicas.heal()
