"""Calls that Ctrl-C does not break off in the middle: on a thread, as Python raises `KeyboardInterrupt` on the main one only."""

from __future__ import annotations

import os
import sys
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# The queue of this process: a fork has none.
_queue: tuple[int, SimpleQueue[_Call]] | None = None


def uninterrupted(function: Callable[[], T]) -> T:
    """What the function returns, or raises. The wait for it may be interrupted; the function goes on to its end.

    Torch's thread-local state is that of a new thread there.
    """
    if threading.get_ident() != threading.main_thread().ident or sys.is_finalizing():
        return function()
    call = _Call(function)
    del function
    _tasks().put(call)
    call.done.acquire()
    if call.error is not None:
        error, call.error = call.error, None
        try:
            raise error
        finally:
            # The frames of its traceback have it.
            del error
    found: T = call.result
    return found


class _Call:
    def __init__(self, function: Callable[[], Any]) -> None:
        self._function: Callable[[], Any] | None = function
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        function, self._function = self._function, None
        assert function is not None
        try:
            self.result = function()
        except BaseException as e:
            self.error = e
        # The objects of the function die with it, before the caller continues.
        del function
        self.done.release()


def _tasks() -> SimpleQueue[_Call]:
    global _queue
    if _queue is None or _queue[0] != os.getpid():
        tasks: SimpleQueue[_Call] = SimpleQueue()
        threading.Thread(target=_run, args=(tasks,), name="monarch-tensor-uninterrupted", daemon=True).start()
        _queue = os.getpid(), tasks
    return _queue[1]


def _run(tasks: SimpleQueue[_Call]) -> None:
    while True:  # polls: no, it waits for the next call
        tasks.get().run()
