"""Says whether the scheduler has ended the job of hosts that are lost: the script then gets its words, not "agent exited"."""

from __future__ import annotations

import copy
import threading
import time
from typing import TYPE_CHECKING

from monarch.job import _joining

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.job._joining import Allocation
    from monarch.job._status import JobStatus
    from monarch.job.errors import JobEndedError

# A scheduler that is up answers in milliseconds, and has ended a job seconds after its workers.
ANSWER_S = 4.0
# A host may be lost while its job goes on: each call that fails for it would ask again.
AGAIN_S = 5.0
_PAUSE_S = 0.1


class EndWatch:
    """`is_ending` is True for the status of a job that is being ended and whose last state is not known yet."""

    def __init__(self, allocation: Allocation, is_ending: Callable[[JobStatus], bool]) -> None:
        self._allocation = allocation
        self._is_ending = is_ending
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        self._found: JobEndedError | None = None

    def __call__(self) -> JobEndedError | None:
        """The end of the job, or None where the job goes on, or the scheduler does not answer in time."""
        with self._lock:
            if self._found is None and (self._asked_at is None or time.monotonic() >= self._asked_at + AGAIN_S):
                # On a thread of its own: a scheduler that hangs must not keep the call from failing.
                thread = threading.Thread(target=self._ask, name="monarch-job-end", daemon=True)
                thread.start()
                thread.join(ANSWER_S)
                self._asked_at = time.monotonic()
            return copy.copy(self._found)  # its traceback is of one raise

    def _ask(self) -> None:
        end = time.monotonic() + ANSWER_S - _PAUSE_S
        status = self._allocation.launcher.poll(self._allocation.ids)
        while self._is_ending(status) and time.monotonic() < end:
            time.sleep(_PAUSE_S)
            status = self._allocation.launcher.poll(self._allocation.ids)
        if status.phase == "ended" or self._is_ending(status):
            self._found = _joining.ended(self._allocation, status)
