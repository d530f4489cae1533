"""Tests that need network namespaces: left out if there can be none, but not in CI."""

from __future__ import annotations

import os

import pytest

from tools.netns.namespace import unavailable


def need_namespaces() -> None:
    """Skips the current test, or fails it in CI, if there can be no namespaces."""
    if reason := unavailable():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
