"""A thread of this process for what devices need besides transfers: it answers other processes, and looks after what ends."""

from __future__ import annotations

import itertools
import os
import select
import threading
import traceback
from collections import deque
from typing import TYPE_CHECKING

from monarch import extension
from monarch.extension.bulk import LoopWatcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.extension.bulk import PendingCall


class Service:
    """Runs from its making until `close`. `looked_after` is anything with a descriptor, which is called when that is readable."""

    def __init__(self, looked_after: int, look: Callable[[], None]) -> None:
        self._watcher = LoopWatcher()
        self._descriptor = looked_after
        self._look = look
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[PendingCall, Callable[[], None]]] = {}
        self._tasks: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = False
        threading.Thread(target=self._run, name="rdma service", daemon=True).start()

    def run(self, task: Callable[[], None]) -> None:
        """When what was asked for before is done."""
        self._tasks.append(task)
        os.eventfd_write(self._wake, 1)

    def when_done(self, cell: PendingCall, then: Callable[[], None]) -> None:
        """Calls it once the cell is filled."""
        number = next(self._numbers)
        self._waiting[number] = cell, then
        cell.watch(0, self._watcher, number)

    def when_ended(self, uid: int, then: Callable[[], None]) -> None:
        """Calls it once that process has ended, maybe at once."""
        extension.when_done(extension.watch(uid), lambda _: self.run(then))

    def close(self) -> None:
        self._closing = True
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        descriptors = [self._descriptor, self._watcher.fileno(), self._wake]
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        while not self._closing:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._closing:
                break
            if self._descriptor in ready:
                self._guarded(self._look)
            if self._watcher.fileno() in ready:
                for number in self._watcher.drain():
                    self._guarded(self._waiting.pop(number)[1])
            if self._wake in ready:
                os.eventfd_read(self._wake)
            while self._tasks:
                self._guarded(self._tasks.popleft())

    def _guarded(self, task: Callable[[], None]) -> None:
        """What is a bug of ours must not keep others waiting."""
        try:
            task()
        except Exception:
            traceback.print_exc()


def in_thread(task: Callable[[], None], name: str) -> None:
    """For what waits."""
    threading.Thread(target=task, name=name, daemon=True).start()
