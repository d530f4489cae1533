"""The points at which the test suite of launchers interrupts an action."""

from __future__ import annotations

from monarch.job.testing.interrupt import calls


class Finalized:
    def __del__(self) -> None: ...


def test_finalizers_are_no_points_of_interrupts():
    def action() -> None:
        Finalized()

    assert calls(action) == 1
