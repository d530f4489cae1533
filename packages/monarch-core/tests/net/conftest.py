"""Hosts in network namespaces; where there can be none these tests are left out, but not in CI."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster

from tools.netns import unavailable


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A client's host and three hosts with workers."""
    if reason := unavailable():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with Cluster(3, tmp_path) as made:
        yield made
