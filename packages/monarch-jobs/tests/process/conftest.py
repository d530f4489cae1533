"""Failures that reach the root after a test do not end pytest."""

from __future__ import annotations

import pytest

import monarch.actor


@pytest.fixture(scope="session", autouse=True)
def failures_do_not_end_pytest() -> None:
    # The hook is never restored: the last test's failure may come when pytest is done.
    monarch.actor.unhandled_fault_hook = lambda failure: None
