"""The thread that sends the commands of a controller which have grown old, and frees what has died."""

from __future__ import annotations

import contextvars
import threading
from queue import Empty, SimpleQueue
from typing import Protocol

from monarch.extension import is_ending

# Seconds between two checks for a batch that no longer grows, and half of the pause after growth: each check costs the issuing thread the
# interpreter's lock.
BATCH_SECONDS = 200e-6
_LONGEST_PAUSE = 10e-3
# The number of checks without work after which it waits to be stirred.
_LOOKS = 10


class Batches(Protocol):
    """What the thread needs of a controller."""

    failed: Exception | None
    awake: bool
    issued: int

    def has_old(self) -> bool: ...
    def send_old(self) -> bool: ...
    def begin_burst(self) -> None: ...
    def fail(self, error: Exception) -> None: ...


class Flusher:
    """Of one controller."""

    def __init__(self, controller: Batches) -> None:
        self._controller = controller
        # A queue instead of an event: a tensor that dies on any thread, between any two instructions of this thread, stirs it.
        self._wake: SimpleQueue[None] = SimpleQueue()
        # Its commands belong to the actor, or client, that made the controller: their order is that of one sender.
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run,), name="monarch-tensor-flusher", daemon=True).start()

    def stir(self) -> None:
        """Has it look. Takes no lock."""
        self._wake.put(None)

    def _run(self) -> None:
        controller = self._controller
        idle, pause, known = 0, BATCH_SECONDS, -1
        while controller.failed is None:  # polls: no, it waits to be stirred, but for 2 ms after the last command
            try:
                self._wake.get(timeout=pause if controller.awake else None)
                if not controller.awake:
                    idle, pause, known = 0, BATCH_SECONDS, controller.issued
                    controller.awake = True
                continue
            except Empty:
                pass
            try:
                if is_ending():
                    return
                if controller.issued != known:
                    known, idle, pause = controller.issued, 0, min(2 * pause, _LONGEST_PAUSE)
                    continue
                pause = BATCH_SECONDS
                idle = 0 if controller.send_old() else idle + 1
                if idle >= _LOOKS:
                    controller.awake = False
                    controller.begin_burst()
                    # Commands and ends in between have seen this thread awake.
                    if controller.has_old():
                        idle, controller.awake = 0, True
            except Exception as e:
                controller.fail(e)
