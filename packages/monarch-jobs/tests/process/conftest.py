"""Failures that reach the root after a test do not end pytest."""

from __future__ import annotations

import pytest

import monarch.actor


@pytest.fixture(scope="session", autouse=True)
def failures_do_not_end_pytest() -> None:
    # For good: that of the last test may come when pytest is done.
    monarch.actor.unhandled_fault_hook = lambda failure: None
