"""The thread of an actor: a daemon thread whose creator does not wait for it to start.

`threading.Thread.start` waits until the new thread runs, which costs two switches between threads that hold the GIL, more than all the rest
of spawning an actor. Nothing here needs that wait.
"""

from __future__ import annotations

import sys
import threading


class ActorThread(threading.Thread):
    if sys.version_info < (3, 13):

        def start(self) -> None:
            with threading._active_limbo_lock:  # pyright: ignore
                threading._limbo[self] = self  # pyright: ignore
            try:
                threading._start_new_thread(self._bootstrap, ())  # pyright: ignore
            except Exception:
                with threading._active_limbo_lock:  # pyright: ignore
                    del threading._limbo[self]  # pyright: ignore
                raise
