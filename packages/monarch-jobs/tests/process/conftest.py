"""Failures that reach the root after a test do not end pytest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import monarch.actor


@pytest.fixture(scope="session", autouse=True)
def failures_do_not_end_pytest() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)
        yield
