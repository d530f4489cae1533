"""Faults of hosts that have joined through relays: here a chain, the client with the first host, that with the second, and that with the
third.
"""

from __future__ import annotations

import signal

import pytest
from disturbances import assert_lost, flap, is_free_again, nothing_lost, pause

from tools.frozen import freeze
from tools.netns.cluster import Cluster

# The lease in tests that wait for its end: longer than the silence after which a host is lost.
SHORT_LEASE = "4s"


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_ATTACH_FAN_OUT", "1")


def test_host_in_the_middle_is_cut_off(cluster: Cluster) -> None:
    client = cluster.client(MONARCH_MESH_ORPHAN_TIMEOUT=SHORT_LEASE)
    cluster.hosts[1].cut()
    assert_lost(cluster, "silent for ")
    is_free_again(cluster, client)


def test_host_in_the_middle_is_killed(cluster: Cluster) -> None:
    client = cluster.client()
    assert client.say("stream") == "on"
    cluster.workers[1].process.kill()
    assert_lost(cluster, "agent killed")


def test_host_in_the_middle_flaps(cluster: Cluster) -> None:
    with nothing_lost(cluster, "stream", "streamed"):
        flap(cluster)


def test_link_between_two_of_the_row_is_cut(cluster: Cluster) -> None:
    with nothing_lost(cluster, "stream", "streamed"):
        cluster.network.cut_link(cluster.hosts[0], cluster.hosts[1])
        pause(4.5)
        cluster.hosts[0].heal()


def test_client_is_killed(cluster: Cluster) -> None:
    client = cluster.client(MONARCH_MESH_ORPHAN_TIMEOUT=SHORT_LEASE)
    client.kill()
    for host in cluster.hosts:
        cluster.ended(host, client.pids[host.name])
    assert cluster.client().end() == 0


def test_client_cut_off_beyond_its_lease_loses_procs(cluster: Cluster) -> None:
    client = cluster.client(MONARCH_MESH_ORPHAN_TIMEOUT=SHORT_LEASE)
    cluster.client_host.cut()
    for host in cluster.hosts:
        cluster.ended(host, client.pids[host.name])


def test_client_is_frozen_for_a_while(cluster: Cluster) -> None:
    client = cluster.client()
    freeze(client.process.target)
    pause(4)
    client.process.send_signal(signal.SIGCONT)
    assert [client.say("alive", n) for n in range(3)] == ["True"] * 3
    assert client.say("untold") == "0"
    assert client.end() == 0
