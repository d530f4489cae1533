"""An event loop of one thread that blocks in poll(): tasks are coroutines, other threads complete what they wait for.

An answer to the kernel takes a few microseconds, so the loop's own cost counts: measured for one request, asyncio takes 72 us of processor
time, trio 52, a loop that blocks in poll() 15. It has what a server of requests needs and no more: tasks, `Waiter`, readable descriptors,
timers, calls from other threads. One loop runs in a process, as pyfuse3 serves one mount in a process.
"""

from __future__ import annotations

import heapq
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_lock = threading.Lock()
_running: PollLoop | None = None


class Waiter(Generic[T]):
    """A result that any thread sets, once; tasks of the loop await it. The first setter wins, later ones get False."""

    __slots__ = ("_error", "_loop", "_set", "_tasks", "_value")

    def __init__(self) -> None:
        self._set = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._tasks: list[Task] = []
        self._loop: PollLoop | None = None

    def done(self) -> bool:
        return self._set

    def set_result(self, value: T) -> bool:
        return self._finish(value, None)

    def set_exception(self, error: BaseException) -> bool:
        return self._finish(None, error)

    def _finish(self, value: T | None, error: BaseException | None) -> bool:
        with _lock:
            if self._set:
                return False
            self._value, self._error, self._set = value, error, True
        # A task that starts to wait after this line finds it set; a task that already waits has set the loop.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._resume)
        return True

    def _resume(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.resume()

    def __await__(self) -> Generator[Any, None, T]:
        if not self._set:
            self._loop = loop = current_loop()
            if not self._set:
                task = loop.task
                assert task is not None
                self._tasks.append(task)
                try:
                    yield self
                finally:
                    if task in self._tasks:
                        self._tasks.remove(task)
        if self._error is not None:
            raise self._error
        return self._value  # pyright: ignore[reportReturnType]


class Task:
    """A coroutine that the loop runs. `limit`: seconds that it may wait at one place; `TimeoutError` is raised there then."""

    __slots__ = ("_deadline", "_timed", "coroutine", "error", "limit", "loop", "parked")

    def __init__(self, loop: PollLoop, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.loop, self.coroutine = loop, coroutine
        self.parked: object = None
        # The exception with which the task continues.
        self.error: BaseException | None = None
        self.limit: float | None = None
        self._deadline = 0.0
        # Whether a timer of this task is pending: there is at most one, which is set again for a later deadline when it fires.
        self._timed = False

    def resume(self, error: BaseException | None = None) -> bool:
        """Continues a task that waits, with this exception if there is one; False if it does not wait."""
        if self.parked is None:
            return False
        self.parked = None
        self.error = error
        self.loop.ready.append(self)
        return True

    def park(self, at: object) -> None:
        self.parked = at
        if self.limit is not None:
            self._deadline = time.monotonic() + self.limit
            if not self._timed:
                self._timed = True
                self.loop.call_later(self.limit, self._expire)

    def _expire(self) -> None:
        self._timed = False
        if self.parked is None or self.limit is None:
            return
        left = self._deadline - time.monotonic()
        if left > 0:
            self._timed = True
            self.loop.call_later(left, self._expire)
        else:
            self.resume(TimeoutError("the time for this request is over"))


class _Pause:
    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        yield self


# Awaited by a task that a callback on the thread of the loop will `resume`.
PAUSE = _Pause()


class PollLoop:
    """The loop; `run` of this module makes one."""

    def __init__(self) -> None:
        self.ready: deque[Task] = deque()
        self.task: Task | None = None
        self._tasks: set[Task] = set()
        self._calls: deque[Callable[[], object]] = deque()
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._woken = self._ended = False
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._event, select.POLLIN)
        self._readers: dict[int, Task] = {}
        self._watched: dict[int, Callable[[], object]] = {}
        self._registered: set[int] = set()
        self._failure: BaseException | None = None
        self._thread = threading.get_ident()

    def inside(self) -> bool:
        """Whether the calling thread is the one of the loop."""
        return threading.get_ident() == self._thread

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> Task:
        """Starts a task; an exception of it ends the loop and is raised by `run`."""
        task = Task(self, coroutine)
        self._tasks.add(task)
        self.ready.append(task)
        return task

    def begin(self, coroutine: Coroutine[Any, Any, Any], limit: float | None = None) -> Task:
        """As `spawn`, but the task runs to its first wait before this returns; from the loop's thread, outside of tasks."""
        task = Task(self, coroutine)
        task.limit = limit
        self._tasks.add(task)
        self._step(task)
        return task

    def watch(self, fd: int, call: Callable[[], object]) -> None:
        """Runs `call` on the loop's thread each time the descriptor can be read, or has an error; an exception of it ends the loop."""
        self._watched[fd] = call
        self._poll.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def call_soon_threadsafe(self, call: Callable[[], object]) -> None:
        """Runs `call` on the thread of the loop, in order; an exception of it ends the loop."""
        self._calls.append(call)
        if not self._woken:
            with _lock:
                # After the end of the loop its descriptor may have been reused.
                if not self._ended:
                    self._woken = True
                    os.eventfd_write(self._event, 1)

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Runs `call` on the loop's thread after this time; from the thread of the loop."""
        self._count += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._count, call))

    async def wait_readable(self, fd: int) -> None:
        """Waits until the descriptor can be read, or has an error. One task at a time a descriptor; `resume` with an exception ends it."""
        if fd in self._readers:
            raise RuntimeError(f"another task waits for descriptor {fd}")
        task = self.task
        assert task is not None
        self._readers[fd] = task
        # The descriptor remains registered, because a task usually returns soon; the first event without a task removes it.
        if fd not in self._registered:
            self._registered.add(fd)
            self._poll.register(fd, select.POLLIN)
        try:
            await PAUSE
        finally:
            self._readers.pop(fd, None)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        result: list[T] = []

        async def main() -> None:
            result.append(await coroutine)

        first = self.spawn(main())
        try:
            while first in self._tasks and self._failure is None:
                # A task that is ready when the first one has ended must not run: its resources are closed.
                while self.ready and first in self._tasks and self._failure is None:
                    self._step(self.ready.popleft())
                if first in self._tasks and self._failure is None:
                    self._wait()
        finally:
            for task in list(self._tasks):
                task.coroutine.close()
            with _lock:
                self._ended = True
                os.close(self._event)
        if self._failure is not None:
            raise self._failure
        return result[0]

    def _step(self, task: Task) -> None:
        self.task, error, task.error = task, task.error, None
        try:
            parked = task.coroutine.send(None) if error is None else task.coroutine.throw(error)
        except StopIteration:
            self._tasks.discard(task)
        except BaseException as e:
            self._tasks.discard(task)
            self._failure = self._failure or e
        else:
            task.park(parked)
        finally:
            self.task = None

    def _wait(self) -> None:
        timeout = max(0.0, self._timers[0][0] - time.monotonic()) * 1000 + 1 if self._timers else None
        for fd, _ in self._poll.poll(timeout):
            if fd == self._event:
                os.eventfd_read(self._event)
                # Calls that are appended from here on write to the descriptor again.
                self._woken = False
            elif (call := self._watched.get(fd)) is not None:
                self._call(call)
            elif (reader := self._readers.get(fd)) is not None:
                reader.resume()
            else:
                self._registered.discard(fd)
                self._poll.unregister(fd)
        while self._calls:
            self._call(self._calls.popleft())
        while self._timers and self._timers[0][0] <= time.monotonic():
            self._call(heapq.heappop(self._timers)[2])

    def _call(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as e:
            self._failure = self._failure or e


def current_loop() -> PollLoop:
    """The loop that runs in this process; `RuntimeError` where none runs."""
    if _running is None:
        raise RuntimeError("no poll loop runs in this process")
    return _running


def call_soon_threadsafe(call: Callable[[], object]) -> None:
    """Runs `call` on the thread of the loop that runs in this process; `RuntimeError` where none runs."""
    current_loop().call_soon_threadsafe(call)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine to its end and gives its result. Tasks that remain are closed; the first exception of any task is raised."""
    global _running
    with _lock:
        if _running is not None:
            coroutine.close()
            raise RuntimeError("a poll loop runs in this process already")
        _running = loop = PollLoop()
    try:
        return loop.run(coroutine)
    finally:
        _running = None
