"""Requests in threads: the event loop of the screen never waits for a server, and neither does the end of the program."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Requests:
    """Runs what blocks, each in a thread that the end of the program does not wait for. One event loop."""

    def __init__(self) -> None:
        self.running = 0

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """What the function returns or raises. A caller that is cancelled leaves the thread to its time limit."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(found: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(found)  # pyright: ignore[reportArgumentType] there is a result where there is no error
            else:
                future.set_exception(error)

        def work() -> None:
            found, error = None, None
            try:
                found = function(*arguments)
            except BaseException as raised:
                error = raised
            # The loop may have ended in the meantime.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, found, error)

        threading.Thread(target=work, daemon=True, name="monarch-tui").start()
        self.running += 1
        try:
            return await future
        finally:
            self.running -= 1


class Beat:
    """Wakes a loop at each interval, and at once on demand. One event loop; `seconds` of 0 is on demand only."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._event = asyncio.Event()

    def wake(self) -> None:
        self._event.set()

    async def next(self) -> bool:
        """Waits; whether the interval is over, False where it was woken."""
        try:
            async with asyncio.timeout(self._seconds or None):
                await self._event.wait()
        except TimeoutError:
            return True
        self._event.clear()
        return False
