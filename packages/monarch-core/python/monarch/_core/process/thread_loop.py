"""The event loop that a thread keeps for the bodies that its `get()` runs.

Making a loop for each `get()` costs a selector, two sockets and four system calls, and objects that a body keeps on its loop (a client of
some service, a lock) would be of no use to the next body. The loop is closed when its thread ends; that of the main thread, at exit.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from weakref import WeakSet

from monarch._core.process.loop_end import end_loop

# The attribute of the loops of this module, for a `get()` inside of a coroutine.
DRIVEN = "_monarch_driven_by_get"

_local = threading.local()
_all: WeakSet[ThreadLoop] = WeakSet()


class ThreadLoop:
    """The loop of one thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        # This loop is separate from the current loop of the thread, which is the user's.
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = self.runner.get_loop()
        setattr(self.loop, DRIVEN, True)

    def cancel_left(self) -> None:
        """Ends the tasks that a body has left on the loop."""
        left = asyncio.all_tasks(self.loop)
        if not left:
            return
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        for task in left:
            if not task.cancelled() and (error := task.exception()) is not None:
                text = "a task that a get() has left raised when it was cancelled"
                self.loop.call_exception_handler({"message": text, "exception": error, "task": task})

    def close(self) -> None:
        # A forked child shares the selector of its parent.
        if os.getpid() != self.pid or self.loop.is_running() or self.loop.is_closed():
            return
        if asyncio._get_running_loop() is None:
            end_loop(self.loop)
        else:  # the collector runs the finalizer on a thread that runs another loop
            self.loop.close()

    __del__ = close


def thread_loop() -> ThreadLoop:
    """The loop of this thread."""
    found: ThreadLoop | None = getattr(_local, "loop", None)
    if found is None or found.pid != os.getpid() or found.loop.is_closed():
        found = _local.loop = ThreadLoop()
        _all.add(found)
    return found


@atexit.register
def _close_all() -> None:
    """Closes the loop of the main thread, and those of threads that do not end."""
    for loop in list(_all):
        loop.close()
