"""Hosts with a network of their own, which a test can make slow."""

from __future__ import annotations

import pytest

from tools.netns.requirement import need_namespaces


@pytest.fixture(autouse=True)
def namespaces() -> None:
    need_namespaces()
