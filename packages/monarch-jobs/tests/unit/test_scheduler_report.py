"""The report of schedulers: one query for all looks of a moment, on a thread that no look waits for."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from eventually import eventually

from monarch.job._job import hooks, scheduler_report
from monarch.job._job.scheduler_report import SchedulerReport


class Job:
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked = 0
        self.error: Exception | None = None

    def _troubles(self) -> list[dict[str, Any]]:
        self.asked += 1
        self.gate.wait(30)
        if self.error is not None:
            raise self.error
        return [{"kind": "ended", "text": str(self.asked)}]


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def report(job: Job) -> SchedulerReport:
    made = SchedulerReport()
    # In this process there is no job to report of.
    made._jobs.add(cast(hooks.Job, job))
    return made


def answer(report: SchedulerReport) -> list[dict[str, Any]]:
    return eventually("the answer of the scheduler", report.answer, lambda found: found is not None) or []


def test_look_does_not_wait_for_the_scheduler(job: Job, report: SchedulerReport) -> None:
    assert report.answer() is None and report.answer() is None
    job.gate.set()
    assert answer(report) == [{"kind": "ended", "text": "1"}]
    assert job.asked == 1, "all looks of a moment have one query"


def test_old_answer_is_not_given(job: Job, report: SchedulerReport, monkeypatch: pytest.MonkeyPatch) -> None:
    job.gate.set()
    report.answer()
    answer(report)
    monkeypatch.setattr(scheduler_report, "FRESH_S", 0.0)
    assert report.answer() is None


def test_scheduler_without_answer_is_named(job: Job, report: SchedulerReport) -> None:
    job.error = OSError("cannot connect\nhint: none")
    job.gate.set()
    report.answer()
    assert answer(report) == [{"kind": "unknown", "text": "cannot connect"}]


def test_job_that_is_gone_is_not_asked(report: SchedulerReport) -> None:
    assert not SchedulerReport()._jobs
    made = SchedulerReport()
    made._jobs.add(cast(hooks.Job, Job()))
    made.answer()
    assert answer(made) == []
