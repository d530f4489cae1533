"""When a keeper that serves nothing ends: so long after it was needed last. No input or output; the caller has the clock."""

from __future__ import annotations

IDLE_SECONDS = 3600.0


class IdleTime:
    """`now` is any clock that never steps back, in seconds."""

    def __init__(self, now: float, limit: float = IDLE_SECONDS) -> None:
        self._limit = limit
        self._last = now

    def is_over(self, now: float, *, busy: bool) -> bool:
        """Looks at the time: has nothing been served since `limit` seconds? `busy` is whether it serves now."""
        if busy:
            self._last = now
        return now - self._last >= self._limit
