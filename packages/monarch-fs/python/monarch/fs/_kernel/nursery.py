"""The part of the library trio that a server of requests uses, over the poll loop: a module to put in trio's place.

A nursery there starts workers, and workers take turns to wait for a descriptor. The nursery ends when the descriptor's connection has
ended, and does not wait for workers that wait for something else: what they would answer is of no use any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import ModuleType
from typing import Any

from monarch.fs._kernel import connection, poll_loop


class Closed(Exception):
    """What `trio.ClosedResourceError` is to pyfuse3."""


class Lock:
    """`trio.Lock`: the tasks of pyfuse3 take turns to wait for a request.

    All are on the thread of the loop, so a turn costs no system call.
    """

    def __init__(self) -> None:
        self._held, self._queue = False, deque[poll_loop.Task]()

    async def __aenter__(self) -> None:
        while self._held:
            task = poll_loop.current_loop().task
            assert task is not None
            self._queue.append(task)
            try:
                await poll_loop.PAUSE
            except BaseException:
                with suppress(ValueError):
                    self._queue.remove(task)
                raise
        self._held = True

    async def __aexit__(self, *_: object) -> None:
        self._held = False
        # A waiter that continues with an exception does not wait any more.
        while self._queue and not self._queue.popleft().resume():
            pass


class Nursery(ModuleType):
    """What pyfuse3 uses of trio, over the poll loop."""

    ClosedResourceError, Lock = Closed, Lock

    def __init__(self) -> None:
        super().__init__("trio")
        self.lowlevel = self
        self.name = "poll"
        # A request that was received before the loop started.
        self.stashed = False
        self._workers, self._closing, self._fd = 0, False, -1
        self._ended = poll_loop.Waiter[None]()

    def current_trio_token(self) -> str:
        return self.name

    def current_task(self) -> Nursery:
        return self

    def open_nursery(self) -> Nursery:
        return self

    async def __aenter__(self) -> Nursery:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ended

    def start_soon(self, worker: Callable[..., Coroutine[Any, Any, None]], *args: object, name: str = "") -> None:
        async def work() -> None:
            await worker(*args)
            self._workers -= 1
            if self._workers == 0 or self.exited():
                self._ended.set_result(None)

        self._workers += 1
        poll_loop.current_loop().spawn(work())

    def exited(self) -> bool:
        return self._closing or (self._fd >= 0 and connection.descriptor_failed(self._fd))

    def notify_closing(self, fd: int) -> None:
        self._closing = True
        self._ended.set_result(None)

    async def wait_readable(self, fd: int) -> None:
        self._fd = fd
        if self._closing:
            raise Closed
        if self.stashed:
            self.stashed = False
        else:
            await poll_loop.current_loop().wait_readable(fd)
