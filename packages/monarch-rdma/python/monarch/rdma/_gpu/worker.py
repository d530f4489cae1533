"""Threads for the work on memory of GPUs: one for the copies of this process, one for the copies that other processes ask for."""

from __future__ import annotations

import traceback
from _thread import allocate_lock, start_new_thread
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Worker:
    """A thread that runs tasks one after the other, from its start on."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._lock = allocate_lock()
        self._started = False

    def start(self) -> None:
        with self._lock:
            if not self._started:
                self._started = True
                start_new_thread(self._serve, ())

    def later(self, task: Callable[[], object]) -> None:
        """Queues a task, also before the start; takes no lock, so that the garbage collector may call it."""
        self._tasks.put(task)

    def _serve(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                task()
            except Exception:  # an error of closing an unused object
                traceback.print_exc()
            del task


OWN = Worker()
# A separate thread, because two processes may query each other.
ASKED = Worker()
