"""Actors of the programs: ordinary code with one mistake each."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from monarch.actor import Actor, Channel, Port, current_rank, endpoint


class Partner(Actor):
    """Calls another actor from an endpoint, and is called by others."""

    @endpoint
    def meet(self, other: Any) -> None:
        self.other = other

    @endpoint
    def exchange(self, begun: Port[Any]) -> None:
        mine, gate = Channel[None].open()
        begun.send(mine)
        gate.recv().get()
        self.other.answer.call_one().get()

    @endpoint
    def answer(self) -> int:
        return 1


class AsyncPartner(Actor):
    """The same with coroutines."""

    @endpoint
    async def meet(self, other: Any) -> None:
        self.other = other

    @endpoint
    async def exchange(self, begun: Port[Any]) -> None:
        mine, gate = Channel[None].open()
        begun.send(mine)
        await gate.recv()
        await self.other.answer.call_one()

    @endpoint
    async def answer(self) -> int:
        return 1


class Uploader(Actor):
    """Has a lock that its steps and a thread of it need."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent = threading.Event()

    @endpoint
    def begin(self, stuck: int) -> None:
        if current_rank().rank == stuck:
            taken = threading.Event()
            threading.Thread(target=self._upload, args=(taken,), name="upload", daemon=True).start()
            taken.wait()

    def _upload(self, taken: threading.Event) -> None:
        with self.lock:
            taken.set()
            self.sent.wait()

    @endpoint
    def step(self) -> int:
        with self.lock:
            return 1


class Cache(Actor):
    """Has a thread that calls a store while it holds the lock that an endpoint needs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stepped = threading.Event()

    @endpoint
    def begin(self, store: Any) -> None:
        taken = threading.Event()
        threading.Thread(target=self._refresh, args=(store, taken), name="refresh", daemon=True).start()
        taken.wait()

    def _refresh(self, store: Any, taken: threading.Event) -> None:
        with self.lock:
            taken.set()
            self.stepped.wait()
            store.fetch.call_one().get()

    @endpoint
    def step(self) -> int:
        self.stepped.set()
        with self.lock:
            return 1

    @endpoint
    def version(self) -> int:
        return 1


class Store(Actor):
    """Asks its cache for a version before it answers."""

    @endpoint
    def meet(self, cache: Any) -> None:
        self.cache = cache

    @endpoint
    def fetch(self) -> int:
        return self.cache.version.call_one().get()


class Trainer(Actor):
    """Steps of ranks, which may fail in several ways."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def step(self, seconds: float = 0.0) -> int:
        work(seconds)
        return current_rank().rank

    @endpoint
    def check(self, bad: int) -> None:
        if current_rank().rank == bad:
            raise ValueError(f"batch {bad} has no labels")

    @endpoint
    def crunch(self, slow: int) -> None:
        if current_rank().rank == slow:
            # One call into compiled code that does not release the GIL.
            pow(7, 1 << 34)

    @endpoint
    def load(self, slow: int) -> None:
        if current_rank().rank == slow:
            import importlib

            importlib.import_module("module_that_waits")


class Sink(Actor):
    """Takes messages slower than they come."""

    @endpoint
    def push(self, seconds: float) -> None:
        time.sleep(seconds)  # sleeps: the work of a slow actor


class Fragile(Actor):
    """Fails at each use."""

    @endpoint
    def use(self) -> None:
        raise SystemExit("no such device")


def work(seconds: float) -> None:
    """Python code that keeps a processor busy, and releases the GIL as usual."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
