"""Each test works in a directory of its own, with credentials of its own; failures that reach the root later do not end pytest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import monarch.actor

HERE = Path(__file__).parent
# The shared modules of the categories; the second folder has the module that runs scripts.
sys.path += [str(HERE), str(HERE.parents[1] / "monarch-core" / "tests" / "process")]


@pytest.fixture(scope="session", autouse=True)
def failures_do_not_end_pytest() -> None:
    """A failure may reach the root after the test that wanted it is over."""
    # The hook is never restored: the last test's failure may come when pytest is done.
    monarch.actor.unhandled_fault_hook = lambda failure: None


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
    for name in ("MONARCH_JOB", "MONARCH_JOB_SHRINK", "MONARCH_BATCH_JOB", "MONARCH_BATCH_JOB_FILE"):
        monkeypatch.delenv(name, raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work
