"""Actors that fail, and their owners, for the tests of supervision."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import warnings
from typing import Any

from monarch.actor import Actor, Channel, MeshFailure, Port, SupervisionError, context, current_rank, endpoint, this_proc


class Child(Actor):
    def __init__(self, report: Port[Any] | None = None) -> None:
        self.report = report

    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def fail(self) -> None:
        raise SystemExit(3)

    @endpoint
    def error(self, text: str = "boo") -> None:
        raise ValueError(text)

    @endpoint
    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def __cleanup__(self, exc: Exception | None) -> None:
        if self.report is not None:
            self.report.send(None if exc is None else str(exc))


class Owner(Actor):
    """Owns children on other procs and keeps the failures that it receives. Its hook returns `answer`."""

    def __init__(self, procs: Any, answer: Any = True, report: Port[Any] | None = None) -> None:
        self.children = procs.spawn("child", Child, report)
        self.other = procs.spawn("other", Child, report)
        self.answer = answer
        self.seen: list[tuple[str | None, list[int]]] = []
        self.failures: list[MeshFailure] = []
        self.where: list[Any] = []
        self.threads = {threading.get_ident()}

    @endpoint
    def ping(self) -> str:
        return "alive"

    @endpoint
    def told(self) -> Any:
        return self.seen

    @endpoint
    def told_in_full(self) -> Any:
        return self.failures

    @endpoint
    def told_where(self) -> Any:
        return self.where, len(self.threads)

    @endpoint
    def handles(self) -> Any:
        return self.children, self.other

    @endpoint
    def call_child(self, method: str, rank: int) -> str:
        try:
            getattr(self.children.slice(gpus=rank), method).call_one().get()
        except SupervisionError as e:
            return str(e)
        return "no error"

    @endpoint
    def call_child_and_raise(self, method: str, rank: int) -> None:
        getattr(self.children.slice(gpus=rank), method).call_one().get()

    @endpoint
    def fail_all(self) -> None:
        self.children.error.broadcast("all of them")

    @endpoint
    def stop_other(self) -> None:
        self.other.stop("not needed").get()

    @endpoint
    def respawn(self, procs: Any) -> list[int]:
        self.children = procs.spawn("child", Child)
        return self.children.rank.call().get().values()

    @endpoint
    def hold(self, port: Port[Any]) -> list[Any]:
        """Stays busy until a message arrives at the port."""
        mine, inbox = Channel.open()
        port.send(mine)
        before = list(self.seen)
        inbox.recv().get()
        return [before, list(self.seen)]

    @endpoint
    def own_error(self) -> None:
        raise ValueError("my own")

    def __supervise__(self, failure: MeshFailure) -> Any:
        self.seen.append((failure.name, failure.crashed_ranks))
        self.failures.append(failure)
        self.where.append((str(context().actor_instance), asyncio._get_running_loop() is not None))
        self.threads.add(threading.get_ident())
        if isinstance(self.answer, str):
            raise RuntimeError(self.answer)
        return self.answer


class AsyncOwner(Actor):
    def __init__(self, procs: Any, answer: Any = True, report: Port[Any] | None = None) -> None:
        Owner.__init__(self, procs, answer, report)  # pyright: ignore
        self.noticed = asyncio.Event()
        self.gate = asyncio.Event()

    @endpoint
    async def ping(self) -> str:
        return "alive"

    @endpoint
    async def told(self) -> Any:
        return self.seen

    @endpoint
    async def told_in_full(self) -> Any:
        return self.failures

    @endpoint
    async def told_where(self) -> Any:
        return self.where, len(self.threads)

    @endpoint
    async def handles(self) -> Any:
        return self.children, self.other

    @endpoint
    async def call_child(self, method: str, rank: int) -> str:
        try:
            await getattr(self.children.slice(gpus=rank), method).call_one()
        except SupervisionError as e:
            return str(e)
        return "no error"

    @endpoint
    async def call_child_and_raise(self, method: str, rank: int) -> None:
        await getattr(self.children.slice(gpus=rank), method).call_one()

    @endpoint
    async def fail_all(self) -> None:
        self.children.error.broadcast("all of them")

    @endpoint
    async def stop_other(self) -> None:
        await self.other.stop("not needed")

    @endpoint
    async def respawn(self, procs: Any) -> list[int]:
        self.children = procs.spawn("child", Child)
        return (await self.children.rank.call()).values()

    @endpoint
    async def persist(self) -> None:
        while True:
            try:
                await self.children.rank.call()
            except SupervisionError:
                continue

    @endpoint
    async def hold(self, port: Port[Any]) -> list[Any]:
        mine, inbox = Channel.open()
        port.send(mine)
        before = list(self.seen)
        await inbox.recv()
        return [before, list(self.seen)]

    @endpoint
    async def wait_until_told(self, port: Port[Any]) -> Any:
        port.send("waiting")
        await self.noticed.wait()
        return self.seen

    @endpoint
    async def own_error(self) -> None:
        raise ValueError("my own")

    @endpoint
    async def open(self) -> list[Any]:
        self.gate.set()
        return self.seen

    async def __supervise__(self, failure: MeshFailure) -> Any:
        self.noticed.set()
        answer = Owner.__supervise__(self, failure)  # pyright: ignore
        if answer == ["gate"]:
            await self.gate.wait()
            self.seen.append(("answered", failure.crashed_ranks))
        return answer


class MixedOwner(AsyncOwner):
    """Async endpoints with a sync hook, which may block without a warning."""

    def __supervise__(self, failure: MeshFailure) -> Any:
        self.noticed.set()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.other.rank.call().get()
        return Owner.__supervise__(self, failure)  # pyright: ignore


class Careless(Owner):
    """Sync, without a hook."""

    __supervise__ = Actor.__supervise__


class AsyncCareless(AsyncOwner):
    __supervise__ = Actor.__supervise__


class Level(Actor):
    """One level of a tree: owns the next one."""

    def __init__(self, depth: int, handle_at: int) -> None:
        self.depth = depth
        self.handle_at = handle_at
        self.seen: list[str] = []
        self.below: Any = this_proc().spawn(f"level{depth - 1}", Level, depth - 1, handle_at) if depth else None

    @endpoint
    def bottom(self) -> Any:
        me = None
        return me if self.below is None else (self.below.bottom.call_one().get() or self.below)

    @endpoint
    def told(self) -> list[str]:
        return self.seen

    @endpoint
    def fail(self) -> None:
        raise SystemExit("at the bottom")

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.seen.append(failure.report())
        return self.depth == self.handle_at
