"""Where the memory of a collector comes from: what a flood of events needed goes back to the system when the flood is over.

A client gives back what answers, plans and stacks needed: each of its threads that makes one leaves free memory in an arena of its own.

The default pool of pyarrow keeps for each thread what that thread has freed, a third of the memory of a collector after a flood. glibc's
allocator is as fast here, and gives back the free pages between columns that are kept when it is asked to, which takes some milliseconds.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from monarch.telemetry._arrow import pa

# Of malloc.h, glibc. Threads that answer queries share the arenas.
_ARENA_MAX, _ARENAS = -8, 2
# Bytes that answers have to have had before memory is given back, and seconds between two times: it takes the arenas from other threads.
LONG, _EVERY = 4 << 20, 10.0
# Bytes that a question takes beside its rows: its plan, and what it is made of. Most of it is had again by the next one.
QUESTION = 256 << 10
# Seconds after an answer: who asked has what it needs of it, and does not wait for the arenas.
_SOON = 0.5


def _function(name: str) -> Callable[..., Any]:
    """Of the C library; elsewhere than on glibc one that does nothing."""
    return getattr(ctypes.CDLL(None), name, lambda *_: 0)


def prepare() -> None:
    """For this process, from now on."""
    pa.set_memory_pool(pa.system_memory_pool())
    _function("mallopt")(_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """What is free. Other threads go on."""
    # Of a client this is a pool of its own, which keeps what threads had that have ended.
    pa.default_memory_pool().release_unused()
    _function("malloc_trim")(0)


class Answers:
    """Gives back what answers had in use, some time after they had much. Any thread. `clock` is in seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, every: float = _EVERY) -> None:
        self._clock, self._every = clock, every
        self._lock = threading.Lock()
        self._bytes = 0
        self._given = -every
        self._waits: threading.Timer | None = None

    def had(self, size: int) -> None:
        """An answer has had this many bytes in use, and has them no more."""
        with self._lock:
            self._bytes += size
            left = self._given + self._every - self._clock()
            if self._bytes < LONG or self._waits is not None:
                return
            # Answers that follow each other are one: what the last one leaves goes back as well.
            self._waits = threading.Timer(max(left, _SOON), self._give)
            self._waits.name, self._waits.daemon = "monarch telemetry memory", True
            self._waits.start()

    def _give(self) -> None:
        with self._lock:
            self._bytes, self._given, self._waits = 0, self._clock(), None
        give_back()


ANSWERS = Answers()
