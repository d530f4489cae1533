"""Disturbances of the second of three hosts, and the conditions that must hold afterwards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from tools.netns.cluster import Client, Cluster


def pause(seconds: float) -> None:
    time.sleep(seconds)  # sleeps: so long the network is to be out of order, or in order


def assert_lost(cluster: Cluster, why: str) -> None:
    """The second of three hosts is lost, the client's owners are notified once for each mesh and rank there, and the others continue."""
    client = cluster.clients[-1]
    said = client.say("lost", 1)
    assert said.startswith(f"host_lost {cluster.hosts[1].name}: {why}"), said
    assert client.say("told", 4) == "h3:waiter:2 h3:waiter:3 h3:worker:2 h3:worker:3"
    assert [client.say("alive", n) for n in (0, 2)] == ["True", "True"]
    assert client.say("untold") == "0"


def is_free_again(cluster: Cluster, client: Client) -> None:
    """The host is back, has removed this client's processes, and is usable for the next client."""
    cluster.hosts[1].heal()
    cluster.ended(cluster.hosts[1], client.pids["h3"])
    assert client.end() == 0
    assert cluster.client().end() == 0


@contextlib.contextmanager
def nothing_lost(cluster: Cluster, begin: str, end: str, *arguments: object) -> Iterator[None]:
    """A client runs the command `begin` with these arguments during a disturbance. `end` checks that all messages have arrived, once and in
    order.
    """
    client = cluster.client()
    assert client.say(begin, *arguments) == "on"
    yield
    assert client.say(end) == "True"
    assert client.say("untold") == "0"
    assert client.end() == 0


def flap(cluster: Cluster) -> None:
    for seconds in (0.3, 1.0, 0.1, 1.8):
        cluster.hosts[1].cut()
        pause(seconds)
        cluster.hosts[1].heal()
        pause(1)


def reset_and_cut(cluster: Cluster) -> None:
    for seconds in (0.1, 0.4, 0.8):
        cluster.hosts[1].reset()
        pause(0.2)
        cluster.hosts[1].cut()
        pause(seconds)
        cluster.hosts[1].heal()
        pause(0.5)
