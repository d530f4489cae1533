"""Connections between processes of which one end is gone and the other end does not learn it: transfers go on over others."""

from __future__ import annotations

import pytest

from tools.netns.cluster import Client, Cluster

MIB = 1 << 20
ENDS = ["owner's end", "asker's end", "flow"]


def disturb(cluster: Cluster, how: str) -> None:
    found = cluster.streams(0)
    if how == "flow":
        cluster.hosts[0].lose(found)
    else:
        cluster.half_open(0, found, from_client=how == "asker's end")


def sharing(cluster: Cluster) -> Client:
    client = cluster.client()
    client.say("share", 0, 0, 48 * MIB, 1)
    assert client.say("read", 1) == "tcp"
    return client


@pytest.mark.parametrize("how", ENDS)
def test_read_goes_on_when_its_stream_dies_silently(cluster: Cluster, how: str) -> None:
    client = sharing(cluster)
    client.say("begin", 6, 25)
    disturb(cluster, how)
    assert client.say("outcome") == "tcp"
    assert client.end() == 0


@pytest.mark.parametrize("how", ENDS)
def test_write_goes_on_when_its_stream_dies_silently(cluster: Cluster, how: str) -> None:
    client = sharing(cluster)
    client.say("begin_writing", 6, 25)
    disturb(cluster, how)
    assert client.say("outcome") == "True"
    assert client.end() == 0


def test_dead_streams_leave_nothing_at_their_owner(cluster: Cluster) -> None:
    client = sharing(cluster)
    client.say("begin", 6, 25)
    found = cluster.streams(0)
    cluster.hosts[0].lose(found)
    assert client.say("outcome") == "tcp"
    # The network has not carried the end of the connections.
    assert not set(found) & set(cluster.streams(0))
    assert client.end() == 0
