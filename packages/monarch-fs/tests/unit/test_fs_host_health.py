"""When a host of a gather mount is lost, slow, or back: over a clock of the test."""

from __future__ import annotations

import pytest

from monarch.fs._gather.host_health import LOST_SECONDS, PROBE_SECONDS, TICK_SECONDS, Action, HostHealth


class Observed:
    """A host that is looked at each tick; `sent` is when its request without an answer was sent."""

    def __init__(self) -> None:
        self.now = 100.0
        self.health = HostHealth(self.now)
        self.sent: float | None = None

    def ask(self) -> None:
        self.sent = self.now

    def after(self, seconds: float, *, beats: bool = False) -> list[Action]:
        """What is due within this time; `beats`: heartbeats are answered."""
        found: list[Action] = []
        for _ in range(round(seconds / TICK_SECONDS)):
            self.now += TICK_SECONDS
            due = self.health.look(self.now, self.sent)
            found += due
            if beats and Action.PING in due:
                self.health.answered(self.now)
        return found


@pytest.fixture
def host() -> Observed:
    return Observed()


def test_host_without_requests_is_not_probed(host: Observed) -> None:
    assert host.after(10) == [] and host.health.is_settled


def test_host_with_a_slow_disk_is_waited_for(host: Observed) -> None:
    host.ask()
    found = host.after(60, beats=True)
    assert set(found) == {Action.PING} and not host.health.lost and host.health.is_served


def test_host_without_a_heartbeat_is_lost(host: Observed) -> None:
    host.ask()
    assert host.after(LOST_SECONDS - TICK_SECONDS) == [Action.PING]
    assert host.after(TICK_SECONDS) == [Action.LOSE, Action.SEARCH]
    assert host.health.lost == "no answer for 3 s" and not host.health.is_served
    # No further request is sent, and no host is lost twice.
    assert host.after(3 * PROBE_SECONDS) == []


def test_briefly_stopped_host_is_not_lost(host: Observed) -> None:
    host.ask()
    assert host.after(LOST_SECONDS - 2 * TICK_SECONDS) == [Action.PING]
    host.health.answered(host.now)
    host.sent = None
    assert host.after(10) == [] and not host.health.lost


def test_service_replaced_in_time_is_not_lost(host: Observed) -> None:
    host.ask()
    host.health.ended(host.now)
    assert host.after(TICK_SECONDS) == [Action.SEARCH]
    host.health.found(host.now, found=False)
    assert host.after(PROBE_SECONDS) == [Action.SEARCH]
    host.health.found(host.now, found=True)
    assert host.health.is_settled and not host.health.lost


def test_late_end_does_not_extend_the_limit(host: Observed) -> None:
    host.ask()
    host.after(LOST_SECONDS - 2 * TICK_SECONDS)
    host.health.ended(host.now)
    assert host.after(TICK_SECONDS) == [Action.SEARCH]
    assert host.after(TICK_SECONDS) == [Action.LOSE]


def test_service_that_stays_away_is_lost_and_returns(host: Observed) -> None:
    host.health.ended(host.now)
    assert host.after(LOST_SECONDS) == [Action.SEARCH, Action.LOSE]
    assert host.health.lost == "its service has ended"
    host.health.found(host.now, found=False)
    assert host.after(TICK_SECONDS) == [Action.SEARCH]
    host.health.found(host.now, found=True)
    assert host.health.is_settled


def test_pause_of_the_observer_is_not_counted(host: Observed) -> None:
    host.ask()
    assert host.after(2 * TICK_SECONDS) == [Action.PING]
    host.now += 3600
    assert host.after(LOST_SECONDS - 3 * TICK_SECONDS) == [] and not host.health.lost
    assert host.after(3 * TICK_SECONDS) == [Action.LOSE, Action.SEARCH]


def test_first_request_after_idleness_has_its_full_time(host: Observed) -> None:
    host.now += 3600
    host.ask()
    assert host.after(LOST_SECONDS - TICK_SECONDS) == [Action.PING]
