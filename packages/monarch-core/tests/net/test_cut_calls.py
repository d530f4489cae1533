"""Calls with a value for each rank, and with a deadline, while a host of three is cut off."""

from __future__ import annotations

import re

import pytest
from disturbances import pause

from tools.netns.cluster import Cluster


@pytest.mark.parametrize("mib", [0, 8])
def test_values_of_ranks_arrive_after_a_cut(cluster: Cluster, mib: int) -> None:
    cluster.env["MONARCH_HOST_LOSS_TIMEOUT"] = "12s"
    client = cluster.client()
    cluster.hosts[1].cut()
    assert client.say("distribute", mib) == "on"
    pause(1.0)
    cluster.hosts[1].heal()
    assert client.say("distributed") == "True"
    assert client.say("untold") == "0"
    assert client.end() == 0


def test_silent_host_is_named_at_the_deadline(cluster: Cluster) -> None:
    cluster.env["MONARCH_HOST_LOSS_TIMEOUT"] = "20s"
    client = cluster.client()
    cluster.hosts[1].cut()
    found = client.say("until", 2000)
    assert re.fullmatch(rf"\[2, 3\]  ranks 2-3: host {cluster.hosts[1].name}: no heartbeat for [\d.]+ s", found), found
    cluster.hosts[1].heal()
    assert client.say("until", 25_000) == "None"
    assert client.say("untold") == "0"
    assert client.end() == 0
