"""Programs whose actors wait within their process: for ended threads, for a pool, in their event loop, at a breakpoint."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.faults.program import Fault, rest
from monarch.actor import Actor, current_rank, endpoint, this_host


class Loader(Actor):
    """Reads records in threads."""

    def __init__(self) -> None:
        self.records = queue.Queue[int](maxsize=2)
        self.pool = ThreadPoolExecutor(1)

    def _prefetch(self) -> None:
        for record in "1", "2", "x":
            self.records.put(int(record))

    @endpoint
    def read(self) -> int:
        threading.Thread(target=self._prefetch, name="prefetch", daemon=True).start()
        total = 0
        for _ in range(8):
            total += self.records.get()
        return total

    def _shard(self) -> int:
        return self.pool.submit(int, "1").result()

    @endpoint
    def read_shards(self) -> int:
        return self.pool.submit(self._shard).result()


class Environment(Actor):
    """Waits for a simulator without coroutines."""

    @endpoint
    async def step(self) -> None:
        time.sleep(600.0)  # sleeps: the mistake of the program

    @endpoint
    async def state(self) -> int:
        return 1


class Model(Actor):
    """Has a forgotten breakpoint."""

    @endpoint
    def inspect(self) -> None:
        if current_rank().rank == 1:
            breakpoint()


def _loaders(ranks: int = 1) -> Any:
    return this_host().spawn_procs({"gpus": ranks}, name="procs").spawn("loader", Loader)


def ended_thread() -> None:
    rest(_loaders().read.call())


def ended_threads() -> None:
    rest(_loaders(4).read.call())


def pool_of_one() -> None:
    rest(_loaders().read_shards.call())


def blocked_loop() -> None:
    environments = this_host().spawn_procs({"gpus": 3}, name="procs").spawn("environment", Environment)
    step = environments.slice(gpus=1).step.call_one()
    states = environments.state.call()
    rest(step if states else None)


def at_breakpoint() -> None:
    rest(this_host().spawn_procs({"gpus": 3}, name="procs").spawn("model", Model).inspect.call())


FAULTS = (
    Fault(
        "ended_thread",
        ended_thread,
        r"loader .*in read .*thread prefetch of the process has ended with ValueError.* in threads\.py:\d+",
        6.0,
    ),
    Fault(
        "ended_threads",
        ended_threads,
        r"loader rank 0 of 4 .*in read .*, and so do 3 more; thread prefetch of each process has ended with ValueError.* in threads\.py",
        6.0,
    ),
    Fault("pool_of_one", pool_of_one, r"thread ThreadPool\S+ of procs .*in _shard for a task of a pool that cannot begin", 6.0),
    Fault("blocked_loop", blocked_loop, r"environment rank 1 of 3 .*blocked its event loop in threads\.py:\d+ in step", 6.0),
    Fault("at_breakpoint", at_breakpoint, r"model rank 1 of 3 .*at a breakpoint in threads\.py:\d+ in inspect", 6.0),
)
