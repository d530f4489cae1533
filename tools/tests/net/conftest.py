"""Where there can be no network namespaces these tests are left out, but not in CI."""

from __future__ import annotations

import os

import pytest

from tools.netns import unavailable


@pytest.fixture(scope="session", autouse=True)
def namespaces() -> None:
    if reason := unavailable():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
