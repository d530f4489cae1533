"""Actors of the tests of deadlines."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

from monarch.actor import Actor, Port, concurrent_endpoint, current_rank, deadline, deadline_left, endpoint, this_host


def agent_of(zygote: int) -> int:
    """The parent of a zygote."""
    with open(f"/proc/{zygote}/stat") as f:
        return int(f.read().rpartition(")")[2].split()[1])


class Sync(Actor):
    def __init__(self) -> None:
        self.done: list[Any] = []
        self.gate = threading.Event()

    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def left(self) -> float | None:
        return deadline_left()

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def parent(self) -> int:
        return agent_of(os.getppid())

    @endpoint
    def note(self, item: Any) -> list[Any]:
        self.done.append(item)
        return self.done

    @endpoint
    def train(self, seconds: float, *ranks: int) -> int:
        """Takes this long on the given ranks, or on all without any."""
        if not ranks or current_rank().rank in ranks:
            time.sleep(seconds)  # sleeps: the call exceeds its deadline
        return current_rank().rank

    @endpoint
    def later(self, seconds: float) -> Any:
        time.sleep(seconds)  # sleeps: the call exceeds its deadline
        return threading.Lock()

    @endpoint(timeout=0.3)
    def limited(self, seconds: float) -> float | None:
        left = deadline_left()
        time.sleep(seconds)  # sleeps: the call exceeds its deadline
        return left

    @endpoint(explicit_response_port=True)
    def owed(self, port: Port[int]) -> None:
        self.port = port

    @endpoint
    def nested(self, others: list[Any], seconds: float) -> Any:
        """Calls the first of the others, which calls the rest."""
        if not others:
            time.sleep(seconds)  # sleeps: the call exceeds its deadline
            return deadline_left()
        return others[0].nested.call_one(others[1:], seconds).get()

    @endpoint
    def shielded(self, other: Any) -> float | None:
        with deadline(None):
            return other.left.call_one().get()

    @endpoint
    def spawns(self) -> float | None:
        with this_host().spawn_procs() as procs:
            return procs.spawn("inner", Sync).left.call_one().get()


class Async(Actor):
    def __init__(self) -> None:
        self.ended: list[str] = []

    @endpoint
    async def wait(self, name: str = "wait") -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ended.append(f"{name} cancelled")
            raise
        finally:
            self.ended.append(f"{name} finally")

    @endpoint
    async def stubborn(self) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "went on"
        return "not cancelled"

    @concurrent_endpoint
    async def beside(self) -> None:
        await self.waits("beside")

    async def waits(self, name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append(name)

    @endpoint
    async def task_left(self) -> list[Any]:
        async def left() -> float | None:
            return deadline_left()

        return [deadline_left(), await asyncio.create_task(left()), await asyncio.to_thread(deadline_left)]

    @endpoint
    async def endings(self) -> list[str]:
        return self.ended

    @endpoint
    async def left(self) -> float | None:
        return deadline_left()


class Slow(Actor):
    """Takes long to be made and to be cleaned up."""

    def __init__(self, init: float, cleanup: float, note: Any = None) -> None:
        time.sleep(init)  # sleeps: the spawn exceeds its deadline
        self.cleanup = cleanup
        self.made_with = deadline_left()
        self.note = note

    @endpoint
    def left(self) -> tuple[float | None, float | None]:
        return self.made_with, deadline_left()

    def __cleanup__(self, exc: Exception | None) -> None:
        if self.note is not None:
            self.note.send(deadline_left())
        time.sleep(self.cleanup)  # sleeps: the stop exceeds its deadline
