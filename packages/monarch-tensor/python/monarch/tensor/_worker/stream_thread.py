"""The thread of a stream on a worker: it executes one command after another."""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class StreamThread:
    """Runs tasks in their order, without autograd. The first stream has the device's own stream, each other one a stream of its own."""

    def __init__(self, number: int) -> None:
        self._tasks: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self.number = number
        self._closed = self._ended = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"monarch-tensor-stream-{number}", daemon=True)
        self._thread.start()

    def put(self, task: Callable[[], object]) -> None:
        with self._lock:
            if not self._ended:
                self._tasks.put(task)
                return
        # All earlier tasks are done.
        task()

    def end(self) -> None:
        """Ends the stream. A task of it: on its own thread, after the tasks before."""
        with self._lock:
            if self._tasks.empty():
                self._ended = self._closed = True
            else:
                self._tasks.put(self.end)

    def close(self) -> None:
        """Drops the tasks that have not begun."""
        self._closed = True
        self._tasks.put(lambda: None)

    def join(self, seconds: float) -> None:
        """Waits, so long at most, for the task that has begun: torch does not like to end in the middle of one."""
        self._thread.join(seconds)

    def _run(self) -> None:
        torch.set_grad_enabled(False)
        if self.number and torch.cuda.is_available():
            torch.cuda.set_stream(torch.cuda.Stream())
        while not self._closed:  # polls: no, it waits for the next task
            task = self._tasks.get()
            if self._closed:
                return
            try:
                task()
            except BaseException:
                # A task reports exceptions of its commands: this is a defect of the task itself, and the stream continues.
                logging.getLogger("monarch.tensor").exception("stream %d of a worker", self.number)
            # The queue is empty for long times: no object of the last task must stay meanwhile.
            del task
