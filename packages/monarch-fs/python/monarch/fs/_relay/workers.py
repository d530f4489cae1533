"""Threads that read, hash and write for a relay: urgent tasks first, then in order."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from itertools import count

_LOG = logging.getLogger("monarch.fs")


class Workers:
    """A few daemon threads; they end with `close`, after the tasks that run then."""

    def __init__(self, threads: int, name: str) -> None:
        self._tasks: queue.PriorityQueue[tuple[int, int, Callable[[], object] | None]] = queue.PriorityQueue()
        self._numbers = count()
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def run(self, task: Callable[[], object], *, urgent: bool = False) -> None:
        """From any thread. A task that raises is logged."""
        self._tasks.put((0 if urgent else 1, next(self._numbers), task))

    def close(self) -> None:
        """Tasks that have not begun are dropped."""
        for _ in self._threads:
            self._tasks.put((-1, next(self._numbers), None))
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5)

    def _run(self) -> None:
        while True:
            task = self._tasks.get()[2]
            if task is None:
                return
            try:
                task()
            except Exception:
                _LOG.exception("a task of the relay failed")
            # A task keeps its contents in memory.
            del task
