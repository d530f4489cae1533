"""Where the modules are that processes of tests import; and failures that reach the root after a test do not end pytest."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch.actor

HERE = Path(__file__).parent
# The second folder has the module that runs scripts.
sys.path += [str(HERE), str(HERE.parents[1] / "monarch-core" / "tests" / "process")]


@pytest.fixture(scope="session", autouse=True)
def failures_do_not_end_pytest() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)
        yield
