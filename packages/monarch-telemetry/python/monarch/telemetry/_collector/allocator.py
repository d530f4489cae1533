"""Where the memory of a collector comes from: what a flood of events needed goes back to the system when the flood is over.

The default pool of pyarrow keeps for each thread what that thread has freed, a third of the memory of a collector after a flood. glibc's
allocator is as fast here, and gives back the free pages between columns that are kept when it is asked to, which takes some milliseconds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from monarch.telemetry._arrow import pa

# Of malloc.h, glibc. Threads that answer queries share the arenas.
_ARENA_MAX, _ARENAS = -8, 2


def _function(name: str) -> Callable[..., Any]:
    """Of the C library; elsewhere than on glibc one that does nothing."""
    return getattr(ctypes.CDLL(None), name, lambda *_: 0)


def prepare() -> None:
    """For this process, from now on."""
    pa.set_memory_pool(pa.system_memory_pool())
    _function("mallopt")(_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """What is free. Other threads go on."""
    _function("malloc_trim")(0)
