"""What the handles of a job in a queue wait for beside their hosts: features that need these, such as mounts.

`state()` returns before: its handles get their addresses when the hosts have joined and the features have started on them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from contextvars import ContextVar

from monarch.job.errors import JobEndedError

# Seconds between two checks of a wait whether the allocation was killed meanwhile.
_PAUSE_S = 0.5
_wanted: ContextVar[bool] = ContextVar("monarch_job_hold", default=False)


@contextlib.contextmanager
def holding(wanted: bool) -> Generator[None]:
    """Handles that are made in this block, for hosts that are in a queue, may wait for features."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def is_wanted() -> bool:
    return _wanted.get()


class Hold:
    """One start of features, given by `state()`, run by the thread that waits for the hosts."""

    def __init__(self) -> None:
        self._given = threading.Event()
        self._start: Callable[[], None] = _nothing
        # Whether the work has ended. If it failed, handles that waited for it have the error.
        self.is_over = False
        self.has_failed = False

    @property
    def is_given(self) -> bool:
        return self._given.is_set()

    def give(self, start: Callable[[], None] | None) -> None:
        """Starts features; None where there is nothing to start."""
        self._start = start or _nothing
        self._given.set()

    def run(self, stopped: threading.Event, title: str) -> None:
        """Waits for the start, and runs it; raises what it raises, and `JobEndedError` once the allocation is killed."""
        while not self._given.wait(_PAUSE_S):
            if stopped.is_set():
                raise JobEndedError("was killed", title=title, state="killed")
        try:
            self._start()
        except BaseException:
            self.has_failed = True
            raise
        finally:
            self.is_over = True


def _nothing() -> None:
    return
