"""Tests that need network namespaces: left out where there can be none, but not in CI."""

from __future__ import annotations

import os

import pytest

from tools.netns.namespace import unavailable


def need_namespaces() -> None:
    """Skips the test that runs, or fails it in CI, where there can be no namespaces."""
    if reason := unavailable():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
