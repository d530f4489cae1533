"""Two hosts and a client's in network namespaces; where there can be none these tests are left out, but not in CI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_script import SCRIPT

from tools.netns.cluster import Cluster
from tools.netns.requirement import need_namespaces


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    need_namespaces()
    with Cluster(2, tmp_path, SCRIPT) as made:
        yield made
