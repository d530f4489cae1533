"""Without network namespaces these tests are left out, but not in CI."""

from __future__ import annotations

import pytest

from tools.netns.requirement import need_namespaces


@pytest.fixture(scope="session", autouse=True)
def namespaces() -> None:
    need_namespaces()
