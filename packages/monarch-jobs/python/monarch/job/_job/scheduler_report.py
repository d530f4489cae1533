"""The report of what schedulers know to be wrong with the jobs of this process, for `monarch diagnose`.

A look into the process begins a query of the schedulers on a thread, and waits for none: the next look has the answer. Without a look
no scheduler is asked.
"""

from __future__ import annotations

import threading
import time
from typing import Any
from weakref import WeakSet

from monarch.job._job import hooks

REPORT = "schedulers"
# Seconds for which an answer holds: as many looks as there may be, a scheduler is asked once in this time.
FRESH_S = 4.0
# Seconds after which a query that hangs is not waited for, and another one may begin.
_LATE_S = 30.0


class SchedulerReport:
    """Of the jobs of this process that have handles of their hosts. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: WeakSet[hooks.Job] = WeakSet()
        self._began: float | None = None
        self._found: list[dict[str, Any]] | None = None

    def add(self, job: hooks.Job) -> None:
        """From now on the answer has what the scheduler of this job knows."""
        from monarch.extension.inspection import add_report

        with self._lock:
            self._jobs.add(job)
        add_report(REPORT, self.answer)

    def answer(self) -> list[dict[str, Any]] | None:
        """The answer of a query that has begun in the last seconds; None while one runs, and for the look that begins it."""
        with self._lock:
            now = time.monotonic()
            if self._began is None or now - self._began > (_LATE_S if self._found is None else FRESH_S):
                self._began, self._found = now, None
                jobs = list(self._jobs)
                threading.Thread(target=self._ask, args=(jobs, now), name="monarch-job-report", daemon=True).start()
            return self._found

    def _ask(self, jobs: list[hooks.Job], began: float) -> None:
        found: list[dict[str, Any]] = []
        for job in jobs:
            try:
                found += hooks.troubles(job)
            except Exception as e:  # a scheduler without an answer is no fault of the job
                found.append({"kind": "unknown", "text": str(e).partition("\n")[0]})
        with self._lock:
            if self._began == began:
                self._found = found


SCHEDULERS = SchedulerReport()
