"""The time after which a keeper that serves nothing ends."""

from __future__ import annotations

from monarch.job._keeper.idle_time import IDLE_SECONDS, IdleTime


def test_time_counts_from_the_last_service() -> None:
    idle = IdleTime(10.0)
    assert not idle.is_over(10.0 + IDLE_SECONDS - 1, busy=False)
    assert not idle.is_over(10.0 + IDLE_SECONDS, busy=True)
    assert not idle.is_over(10.0 + 2 * IDLE_SECONDS - 1, busy=False)
    assert idle.is_over(10.0 + 2 * IDLE_SECONDS, busy=False)
