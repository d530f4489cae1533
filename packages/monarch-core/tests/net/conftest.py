"""Hosts in network namespaces. Without permission for namespaces these tests are left out, but not in CI."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_script import PRELUDE

from tools import bulk_transports
from tools.netns.cluster import Cluster
from tools.netns.requirement import need_namespaces


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A client's host and three hosts with workers."""
    need_namespaces()
    with Cluster(3, tmp_path, PRELUDE) as made:
        yield made


@pytest.fixture(params=["sent", "fetched"])
def moved(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path) -> str:
    """Large messages between hosts go through the agents, or their receivers pull them."""
    site = tmp_path / "site"
    site.mkdir()
    bulk_transports.install(site, bulk_transports.LEAST if request.param == "fetched" else None)
    cluster.env["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, [cluster.env.get("PYTHONPATH")])])
    return request.param
