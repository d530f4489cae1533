"""The extension thread of a process. It runs the code of other wheels that core calls, one task after another; a task may take long.

A task that hangs delays other extensions, but no part of core.
"""

from __future__ import annotations

import os
import select
from _thread import allocate_lock, start_new_thread
from collections import deque
from contextlib import suppress
from itertools import count

from monarch._core._native import LoopWatcher, begin_trace, set_runtime_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from monarch._core._native import PendingCall
    from monarch._core.call.future import Future


class ExtensionThread:
    """Runs tasks in order, on a thread that starts with the first one."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._tasks: deque[Callable[[], object]] = deque()
        self._watcher = LoopWatcher()
        self._numbers = count()
        # The tasks to run when a watched call has its answer.
        self._waiting: dict[int, Callable[[], object]] = {}
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            start_new_thread(self._run, ())
        except BaseException:
            os.close(self._wake)
            raise

    def run(self, task: Callable[[], object]) -> None:
        """Runs the task after all earlier ones. From any thread."""
        self._tasks.append(task)
        os.eventfd_write(self._wake, 1)

    def when_done(self, future: Future[Any], then: Callable[[Future[Any]], object]) -> None:
        """Runs `then(future)` when the future is done. From any thread."""
        wait = future.__core__
        if wait.call is None:  # the future is done, or has a body that its first reader runs
            if not wait.done():
                raise TypeError(f"when_done({future!r}): an async function that nothing has awaited yet is run by its reader: await it")
            self.run(lambda: then(future))
            return
        self.when_arrived(wait.call, wait.index, lambda: then(future))

    def when_arrived(self, call: PendingCall, index: int, task: Callable[[], object]) -> None:
        """Runs the task when the call has its answer, or for a stream its answer with this index. From any thread."""
        number = next(self._numbers)
        self._waiting[number] = task
        call.watch(index, self._watcher, number)

    def _run(self) -> None:
        set_runtime_thread()
        poll = select.poll()
        for descriptor in (self._wake, self._watcher.fileno()):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if self._watcher.fileno() in ready:
                for number in self._watcher.drain():
                    self._guarded(self._waiting.pop(number))
            while self._tasks:
                self._guarded(self._tasks.popleft())

    def _guarded(self, task: Callable[[], object]) -> None:
        # The previous task may have left a trace entered.
        begin_trace(None)
        try:
            task()
        except BaseException as e:  # an exception of another wheel: the next task belongs to another one
            report_raised("a task of an extension", e)


def report_raised(what: str, error: BaseException) -> None:
    """Logs an exception of another wheel's code. Never raises, even if the log can be neither imported nor written."""
    try:
        import logging

        from monarch._core.pickle.remote_exception import format_exception

        # The text is formatted here, with a bounded length: the log would write a text of any length.
        logging.getLogger("monarch.extension").warning("%s raised\n%s", what, format_exception(error))
    except BaseException:  # most likely too few descriptors for an import: the caller continues
        with suppress(OSError):
            os.write(2, f"monarch: {what} raised {type(error).__name__}, which cannot be logged\n".encode(errors="replace"))


_lock = allocate_lock()
_thread: ExtensionThread | None = None


def extension_thread() -> ExtensionThread:
    """The extension thread of this process."""
    global _thread
    with _lock:
        if _thread is None or _thread.pid != os.getpid():
            _thread = ExtensionThread()
        return _thread


def when_done(future: Future[Any], then: Callable[[Future[Any]], object]) -> None:
    """Runs `then(future)` on the extension thread when the future is done, at once if it is done already."""
    from monarch._core.call.future import Future as AnyFuture

    if not isinstance(future, AnyFuture):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"when_done({future!r}): expected a Future of monarch, not {type(future).__name__}")
    if not callable(then):
        raise TypeError(f"when_done({future!r}): expected a function that takes the future, not {then!r}")
    extension_thread().when_done(future, then)
