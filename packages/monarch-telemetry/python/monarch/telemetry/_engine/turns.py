"""Turns of questions: so many are worked on at a time, others wait within their own time."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from monarch.telemetry._asking import in_words
from monarch.telemetry.errors import QueryTimeout

# The most questions of one user, and of all users of an engine: a collector has as many threads.
OF_USER, IN_ALL = 2, 8


class Turns:
    """`most` at a time. Any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._free = threading.BoundedSemaphore(most)

    @contextmanager
    def turn(self, seconds: float) -> Generator[float]:
        """Waits for a turn, at most so long, and gives the seconds that are left then. `QueryTimeout` where none was free."""
        began = time.monotonic()
        if not self._free.acquire(timeout=max(0.0, seconds)):
            hint = "wait for their answers, or ask with a longer timeout"
            raise QueryTimeout(
                f"{self._most} queries are running already, and none has ended in {in_words(seconds)}", stage="turn", hint=hint
            )
        try:
            yield max(0.0, seconds - (time.monotonic() - began))
        finally:
            self._free.release()
