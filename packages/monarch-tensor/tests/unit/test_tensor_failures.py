"""When failures of workers are logged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from monarch.tensor._protocol import failures
from monarch.tensor._protocol.failures import LOG_SECONDS, Failure, Failures


class Clock:
    """The time, and the timers that wait for it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def timer(self, seconds: float, body: Callable[[], None]) -> SimpleNamespace:
        return SimpleNamespace(daemon=False, start=lambda: self.timers.append((self.now + seconds, body)))

    def fire(self) -> None:
        """Goes on to the next timer."""
        self.timers.sort(key=lambda timer: timer[0])
        self.now, body = self.timers.pop(0)
        body()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(failures, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(failures.threading, "Timer", made.timer)
    return made


def failure(number: int, rank: int = 0) -> Failure:
    return Failure(rank, number, "host", f"operation {number}", ValueError(str(number)), (), "session")


def test_each_failure_is_logged_at_its_own_time(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    of = Failures(lambda number: ())
    of.report(failure(1))
    clock.now += 0.75 * LOG_SECONDS
    of.report(failure(2))
    of.report(failure(2, rank=1))
    clock.fire()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "operation 1" in caplog.text and "operation 2" not in caplog.text
    assert clock.timers == [(pytest.approx(clock.now + 0.75 * LOG_SECONDS), of._log)]
    clock.fire()
    assert len(caplog.records) == 2 and "operation 2" in caplog.records[1].getMessage()
    assert clock.timers == []


def test_failures_of_one_time_are_one_record(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    of = Failures(lambda number: ())
    for number in (3, 1, 2):
        of.report(failure(number))
    clock.fire()
    (record,) = caplog.records
    assert "operation 1" in record.getMessage() and record.getMessage().endswith("(2 more failed operations)")


def test_long_wait_before_a_raise_logs_nothing(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    of = Failures(lambda number: ())
    of.report(failure(1))
    with pytest.raises(failures.RemoteException, match="operation 1"), of.before_raise():
        clock.fire()
        clock.fire()
        of.raise_first()
    of.report(failure(2))
    clock.fire()
    assert "operation 2" in caplog.text and "operation 1" not in caplog.text


def test_raised_failure_is_not_logged(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    of = Failures(lambda number: ())
    of.report(failure(1))
    with pytest.raises(failures.RemoteException, match="operation 1"):
        of.raise_first()
    of.report(failure(1, rank=1))
    clock.fire()
    assert caplog.records == [] and clock.timers == []
    of.raise_first()
