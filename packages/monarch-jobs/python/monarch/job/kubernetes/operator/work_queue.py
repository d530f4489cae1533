"""Keys that wait for a look, each once: a key that comes again while it is in work is worked on once more, never twice at a time."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 60.0


class Key(NamedTuple):
    """A MonarchMesh."""

    namespace: str
    name: str


class WorkQueue:
    """For several threads. Keys whose work failed come again, each time after twice the pause."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Key, float] = {}
        self._in_work: set[Key] = set()
        self._pauses: dict[Key, float] = {}
        self._closed = False

    def put(self, key: Key, after: float = 0.0) -> None:
        """Due in so many seconds, or earlier where it is already."""
        at = time.monotonic() + after
        with self._changed:
            self._due[key] = min(self._due.get(key, at), at)
            self._changed.notify()

    def take(self) -> Key | None:
        """The next key, in work until `done`; waits for one. None after `close`."""
        with self._changed:
            while not self._closed:
                ready = [(at, key) for key, at in self._due.items() if key not in self._in_work]
                at, key = min(ready, default=(None, None))
                now = time.monotonic()
                if at is None or key is None or at > now:
                    self._changed.wait(None if at is None else at - now)
                    continue
                del self._due[key]
                self._in_work.add(key)
                return key
            return None

    def done(self, key: Key, *, failed: bool) -> None:
        """After the work on it."""
        with self._changed:
            self._in_work.discard(key)
            pause = min(self._pauses.get(key, FIRST_RETRY_S / 2) * 2, LONGEST_RETRY_S) if failed else 0.0
            if failed:
                self._pauses[key] = pause
            else:
                self._pauses.pop(key, None)
            self._changed.notify()
        if failed:
            self.put(key, pause)

    def close(self) -> None:
        """No key is taken any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
