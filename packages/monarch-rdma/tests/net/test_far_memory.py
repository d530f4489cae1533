"""Memory of other hosts, and networks that fail in the middle."""

from __future__ import annotations

import time

from tools.netns.cluster import Cluster

MIB = 1 << 20


def pause(seconds: float) -> None:
    time.sleep(seconds)  # sleeps: so long the network is to be out of order


def test_every_pair_of_hosts(cluster: Cluster) -> None:
    client = cluster.client()
    assert client.say("share", 0, 0, 20 * MIB + 3, 1) == str(20 * MIB + 3)
    assert client.say("read", 2) == "tcp"
    assert client.say("read_by", 1, 0, 2) == "tcp"
    assert client.say("read_by", 0, 1, 2) == "cma"
    assert client.say("read_by", 0, 0, 1) == "local"
    assert client.say("write", 2) == "True"
    assert client.say("notify", 3) == "True"
    assert client.say("words") == "True"
    assert client.say("map").startswith("RDMAUnsupportedError None map of ")
    # A client does not listen: it is requested to dial.
    assert client.say("share_here", 3 * MIB + 1, 5) == str(3 * MIB + 1)
    assert client.say("read_by", 1, 1, 2) == "tcp"
    assert client.say("read_by", 0, 0, 2) == "tcp"
    assert client.end() == 0


def test_no_port_is_opened(cluster: Cluster) -> None:
    client = cluster.client()
    client.say("share", 0, 0, MIB, 1)
    assert client.say("read", 1) == client.say("read_by", 1, 0, 1) == "tcp"
    for host, ports in [(cluster.client_host, 0), (cluster.hosts[0], 1), (cluster.hosts[1], 1)]:
        listening = host.run("ss", "-Hltn", capture_output=True).stdout.splitlines()
        assert len(listening) == ports, listening
    assert client.end() == 0


def test_healed_cut_is_waited_for(cluster: Cluster) -> None:
    client = cluster.client()
    client.say("share", 0, 0, 16 * MIB, 1)
    assert client.say("read", 1) == "tcp"
    client.say("begin", 20)
    for seconds in (0.3, 1.2):
        cluster.hosts[0].cut()
        pause(seconds)
        cluster.hosts[0].heal()
        pause(0.2)
    assert client.say("outcome") == "tcp"
    assert client.end() == 0


def test_streams_that_are_reset_go_on_on_others(cluster: Cluster) -> None:
    client = cluster.client()
    client.say("share", 0, 0, 16 * MIB, 1)
    assert client.say("read", 1) == "tcp"
    client.say("begin", 20)
    for _ in range(3):
        cluster.hosts[0].reset()
        pause(0.3)
    assert client.say("outcome") == "tcp"
    assert client.end() == 0


def test_timeout_during_a_cut_reports_its_progress(cluster: Cluster) -> None:
    client = cluster.client()
    client.say("share", 0, 0, 64 * MIB, 1)
    assert client.say("read", 1) == "tcp"
    cluster.hosts[0].cut()
    said = client.say("read_within", 300)
    assert said.startswith("RDMATimeoutError None read of 67,108,864 bytes, process "), said
    assert "path tcp: time-out of 0.3 s during transfer" in said
    cluster.hosts[0].heal()
    assert client.say("read", 1) == "tcp"
    assert client.end() == 0


def test_lost_host_fails_its_reads(cluster: Cluster) -> None:
    client = cluster.client()
    client.say("share", 0, 0, 16 * MIB, 1)
    assert client.say("read", 1) == "tcp"
    client.say("begin", 1000)
    cluster.hosts[0].cut()
    said = client.say("outcome")
    assert said.startswith("RDMAPeerLostError host_lost read of 16,777,216 bytes, process "), said
    client.kill()


def test_killed_owner_fails_its_reads(cluster: Cluster) -> None:
    client = cluster.client()
    client.say("share", 0, 1, 16 * MIB, 1)
    assert client.say("read_by", 1, 0, 1) == "tcp"
    client.say("begin", 1000)
    client.say("kill", 0, 1)
    said = client.say("outcome")
    assert said.startswith("RDMAPeerLostError ") and "the owner's process is gone" in said, said
    # The error also reaches a process that has not used the buffer before.
    assert client.say("read_by", 1, 1, 1).startswith("RDMAPeerLostError ")
    client.kill()


def test_dropped_by_its_owner(cluster: Cluster) -> None:
    client = cluster.client()
    client.say("share", 0, 0, MIB, 1)
    assert client.say("read", 1) == "tcp"
    client.say("drop")
    said = client.say("read", 1)
    assert said.startswith("RDMAReleasedError None read of 1,048,576 bytes") and "dropped by its owner" in said, said
    assert client.end() == 0


def test_behind_a_gateway_bytes_go_by_messages(cluster: Cluster) -> None:
    """The client reaches the first host only, and the second through that."""
    gateway, behind = cluster.hosts
    cluster.network.cut_link(cluster.client_host, behind)
    client = cluster.client(TEST_GATEWAY=f"tcp://{gateway.name}:22222")
    client.say("share", 1, 0, 9 * MIB + 5, 1)
    assert client.say("read", 3) == "routed"
    assert client.say("words") == "True"
    assert client.say("write", 2) == "True"
    # The hosts reach each other.
    assert client.say("read_by", 0, 0, 1) == "tcp"
    client.say("share_here", 5 * MIB, 3)
    assert client.say("read_by", 1, 1, 2) == "routed"
    # The notice of an end arrives here, too.
    client.say("share", 1, 1, 9 * MIB, 4)
    client.say("begin", 1000)
    client.say("kill", 1, 1)
    assert client.say("outcome").startswith("RDMAPeerLostError ")
    assert client.end() == 0
