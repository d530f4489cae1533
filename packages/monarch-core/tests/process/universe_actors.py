"""Actors for tests of universes; in a module of their own, so that they are pickled by reference."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from typing import Any, ClassVar

from monarch._core.process.current import simulated_process
from monarch.actor import (
    Actor,
    MeshFailure,
    Port,
    concurrent_endpoint,
    context,
    current_rank,
    endpoint,
    get_or_spawn_controller,
    returns_future,
    this_host,
    this_proc,
)


class Echo(Actor):
    @endpoint
    def echo(self, x: Any) -> Any:
        return x

    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def where(self) -> tuple[int, str]:
        return os.getpid(), threading.current_thread().name

    @endpoint
    def into(self, port: Port[int], x: int) -> None:
        port.send(x)

    @endpoint
    def fail(self, text: str) -> None:
        raise ValueError(text)

    @endpoint
    def nap(self, universe: Any, seconds: float) -> float:
        universe.sleep(seconds)  # sleeps: simulated time
        return universe.clock.now()

    @endpoint
    def count(self, name: str) -> int:
        return get_or_spawn_controller(name, Counter).get().add.call_one().get()


class Stubborn(Actor):
    """Replaces the exception that ends its thread."""

    @endpoint
    def nap(self, universe: Any, way: str) -> str:
        try:
            universe.sleep(3600.0)  # sleeps: simulated time
        except SystemExit as e:
            if way == "return":
                return "woken"
            if way == "raise":
                raise ValueError("woken") from e
            if way == "exit":
                raise SystemExit(3) from e
            raise
        return "slept"


class Counter(Actor):
    def __init__(self) -> None:
        self.n = 0

    @endpoint
    def add(self) -> int:
        self.n += 1
        return self.n


class Sleeper(Actor):
    """Async; records its calls and its cancellation."""

    def __init__(self, log: Port[Any] | None = None) -> None:
        self.log = log

    @endpoint
    async def nap(self, seconds: float) -> float:
        try:
            await asyncio.sleep(seconds)  # sleeps: simulated time
        except asyncio.CancelledError:
            if self.log is not None:
                self.log.send("cancelled")
            raise
        return asyncio.get_running_loop().time()

    @endpoint
    async def call(self, other: Any, seconds: float) -> float:
        return await other.nap.call_one(seconds)

    @endpoint
    async def in_thread(self, other: Any, seconds: float) -> float:
        return await asyncio.to_thread(lambda: other.nap.call_one(seconds).get())

    @endpoint
    async def fail_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # sleeps: simulated time
        raise ValueError("after a while")


class Cleaner(Actor):
    """Its clean-up takes a given time, and sends a message when it is over."""

    def __init__(self, log: Port[Any], seconds: float) -> None:
        self.log, self.seconds = log, seconds

    @endpoint
    async def work(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # sleeps: simulated time

    async def __cleanup__(self, exc: Exception | None) -> None:
        await asyncio.sleep(self.seconds)  # sleeps: simulated time
        self.log.send(("clean", exc))


class Owner(Actor):
    """Owns a mesh of procs with actors, and handles their failures as configured."""

    def __init__(self, handles: bool, log: Port[Any]) -> None:
        self.handles, self.log = handles, log

    @endpoint
    def spawn(self, count: int) -> Any:
        self.procs = this_host().spawn_procs(per_host={"procs": count})
        self.mesh = self.procs.spawn("owned", Sleeper)
        return self.mesh

    @endpoint
    def creator(self) -> str:
        return str(context().actor_instance.creator)

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.log.send((failure.name, sorted(failure.crashed_ranks), failure.reason.kind))
        return self.handles


async def _stop(procs: Any) -> None:
    await procs.stop()
    await asyncio.sleep(3.0)  # sleeps: simulated time


class Caller(Actor):
    """Waits for others inside sync endpoints."""

    @endpoint
    def nap(self, other: Any, seconds: float) -> float:
        return other.nap.call_one(seconds).get()

    @endpoint
    def spawn_and_stop(self) -> None:
        procs = this_host().spawn_procs(per_host={"procs": 2})
        procs.spawn("sleeper", Sleeper).nap.broadcast(1000.0)
        returns_future(_stop)(procs).get()


class Concurrent(Actor):
    @concurrent_endpoint
    async def nap(self, seconds: float) -> float:
        await asyncio.sleep(seconds)  # sleeps: simulated time
        return seconds

    @concurrent_endpoint
    async def call(self, other: Any, seconds: float, bound: float) -> None:
        await asyncio.wait_for(other.nap.call_one(seconds).as_asyncio(), bound)


class Proxy(Actor):
    """Has an `Owner` in its own proc, and no hook."""

    @endpoint
    def spawn(self, handles: bool, log: Port[Any]) -> Any:
        return this_proc().spawn("owner", Owner, handles, log)


class Late(Actor):
    """Blocks its thread at the moment at which the interpreter frees the thread's object, until it may end."""

    ends, may_end = threading.Event(), threading.Event()
    processes: ClassVar[list[weakref.ref[object]]] = []
    threads: ClassVar[list[weakref.ref[threading.Thread]]] = []

    @endpoint
    def begin(self) -> None:
        Late.processes.append(weakref.ref(simulated_process()))
        Late.threads.append(weakref.ref(threading.current_thread(), Late.last))

    @staticmethod
    def last(_: object) -> None:
        Late.ends.set()
        Late.may_end.wait(20.0)
