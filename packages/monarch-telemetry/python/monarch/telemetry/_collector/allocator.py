"""Where the memory of a collector comes from: what a flood of events needed goes back to the system when the flood is over.

A client gives back what answers, plans and stacks needed: each of its threads that makes one leaves free memory in an arena of its own.

The default pool of pyarrow keeps for each thread what that thread has freed, a third of the memory of a collector after a flood. glibc's
allocator is as fast here, and gives back the free pages between columns that are kept when it is asked to, which takes some milliseconds.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Callable
from typing import Any

from monarch.telemetry._arrow import pa

# Constants of malloc.h of glibc. Threads that answer queries share the arenas.
_ARENA_MAX, _ARENAS = -8, 2
# Bytes of answers after which memory is returned, and the seconds between two returns: a return locks the arenas for other threads.
LONG, _EVERY = 4 << 20, 10.0
# Bytes that a question takes in addition to its rows, for its plan and its parts. The next question reuses most of them.
QUESTION = 256 << 10
# Threads that give back the ends of arenas, and what each of them takes of an end: blocks of so many bytes. Answers had in use what two or
# three statements of a page need, each a few MiB.
_ENDS, _BLOCKS, _BLOCK = 4, 16, 1 << 20
# Seconds from an answer to the return of memory: the client already has the answer, and does not wait for the arenas.
_SOON = 0.5


def _function(name: str, result: Any = ctypes.c_int, *arguments: Any) -> Callable[..., Any]:
    """Of the C library; elsewhere than on glibc one that does nothing."""
    found = getattr(ctypes.CDLL(None), name, None)
    if found is None:
        return lambda *_: 0
    if arguments:
        found.argtypes, found.restype = arguments, result
    return found


def prepare() -> None:
    """For this process, from now on."""
    pa.set_memory_pool(pa.system_memory_pool())
    _function("mallopt")(_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """What is free. Other threads go on."""
    # In a client this is a separate pool, which keeps the memory of ended threads.
    pa.default_memory_pool().release_unused()
    _function("malloc_trim")(0)


def give_back_ends() -> None:
    """What is free at the ends of the arenas of threads that have ended.

    `malloc_trim` gives back whole pages between blocks, and the end of the first arena only; the end of another one shrinks when it has
    twice the size of the largest block that was ever freed, up to 64 MiB (mallopt(3), M_TRIM_THRESHOLD; glibc, malloc/arena.c). An arena
    without a thread goes to the next thread that starts. So threads that are there at the same time take these arenas, and of each the end
    in blocks, whose pages they give back before they free them.
    """
    here = threading.Barrier(_ENDS)
    threads = [threading.Thread(target=_give_back_end, args=(here,), name="monarch telemetry memory", daemon=True) for _ in range(_ENDS)]
    started: list[threading.Thread] = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
    except RuntimeError:  # no thread can be started: the existing ones wait for no others
        here.abort()
    for thread in started:
        thread.join()


def _give_back_end(here: threading.Barrier) -> None:
    allocate = _function("malloc", ctypes.c_void_p, ctypes.c_size_t)
    free = _function("free", None, ctypes.c_void_p)
    advise = _function("madvise", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    try:
        here.wait()
    except threading.BrokenBarrierError:
        return
    blocks: list[int] = []
    while len(blocks) < _BLOCKS and (at := allocate(_BLOCK)):
        blocks.append(at)
        first, end = -(-at // mmap.PAGESIZE) * mmap.PAGESIZE, (at + _BLOCK) // mmap.PAGESIZE * mmap.PAGESIZE
        advise(first, end - first, mmap.MADV_DONTNEED)
    for at in reversed(blocks):
        free(at)
    # Until each thread has its arena: a released arena would be given to another one of these threads.
    try:
        here.wait()
    except threading.BrokenBarrierError:
        return


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
            # Answers that follow each other are one: the memory of the last one is returned as well.
            self._waits = threading.Timer(max(left, _SOON), self._give)
            self._waits.name, self._waits.daemon = "monarch telemetry memory", True
            self._waits.start()

    def _give(self) -> None:
        with self._lock:
            self._bytes, self._given, self._waits = 0, self._clock(), None
        give_back_ends()
        give_back()


ANSWERS = Answers()
