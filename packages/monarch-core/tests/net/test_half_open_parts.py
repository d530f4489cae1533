"""Large arguments and results whose connections die silently: they arrive over others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import bulk_transports
from tools.netns.cluster import Cluster


@pytest.fixture
def fetching(cluster: Cluster, tmp_path: Path) -> Cluster:
    """The receivers of large messages between hosts pull them."""
    site = tmp_path / "site"
    site.mkdir()
    bulk_transports.install(site, bulk_transports.LEAST)
    cluster.env["PYTHONPATH"] = str(site)
    return cluster


@pytest.mark.parametrize("how", ["client's end", "host's end", "flow"])
@pytest.mark.parametrize(("begin", "end"), [("give", "given"), ("fetch", "fetched")], ids=["argument", "result"])
def test_large_part_comes_when_its_stream_dies_silently(fetching: Cluster, begin: str, end: str, how: str) -> None:
    client = fetching.client()
    # The limit of this part is 52 s, after which the agents would transfer it.
    assert client.say(begin, 0, 128) == "on"
    found = fetching.streams(0)
    if how == "flow":
        fetching.hosts[0].lose(found)
    else:
        fetching.half_open(0, found, from_client=how == "client's end")
    assert client.say(end) == "True"
    assert client.say("untold") == "0"
    assert client.end() == 0
