"""Hosts and clients that die, freeze, or are cut off: which are lost, when, and what is left."""

from __future__ import annotations

import signal

import pytest
from disturbances import assert_lost, flap, is_free_again, nothing_lost, pause, reset_and_cut

from tools.frozen import freeze
from tools.netns.cluster import Cluster


def test_agent_killed(cluster: Cluster) -> None:
    client = cluster.client()
    cluster.workers[1].process.kill()
    assert_lost(cluster, "agent killed")
    cluster.ended(cluster.hosts[1], client.pids["h3"])
    assert client.end() == 0


def test_actors_on_other_hosts_are_notified(cluster: Cluster) -> None:
    client = cluster.client()
    assert client.say("ready", 0, 1) == "True"
    client.send("ask", 0, 1)
    cluster.workers[1].process.kill()
    assert client.answer() == "host_lost h3: agent killed"
    assert_lost(cluster, "agent killed")
    assert client.end() == 0


def test_terminated_agent_is_lost_and_cleans_up(cluster: Cluster) -> None:
    client = cluster.client()
    cluster.workers[1].process.terminate()
    assert_lost(cluster, "agent exited")
    cluster.ended(cluster.hosts[1], client.pids["h3"])
    assert cluster.workers[1].process.wait() == 0
    assert client.end() == 0


def test_frozen_agent_is_lost_and_refused_on_return(cluster: Cluster) -> None:
    client = cluster.client()
    freeze(cluster.workers[1].process.target)
    assert_lost(cluster, "silent for ")
    cluster.workers[1].process.send_signal(signal.SIGCONT)
    cluster.ended(cluster.hosts[1], client.pids["h3"])
    assert [client.say("alive", n) for n in (0, 2)] == ["True", "True"]
    assert client.end() == 0
    # The host is usable for the next client.
    assert cluster.client().end() == 0


@pytest.mark.parametrize(("inbound", "outbound"), [(True, True), (True, False), (False, True)], ids=["both ways", "deaf", "mute"])
def test_host_cut_off_is_lost_and_cleans_up(cluster: Cluster, inbound: bool, outbound: bool) -> None:
    client = cluster.client()
    cluster.hosts[1].cut(inbound=inbound, outbound=outbound)
    assert_lost(cluster, "silent for ")
    is_free_again(cluster, client)


def test_host_cut_off_forever_cleans_up_after_lease(cluster: Cluster) -> None:
    client = cluster.client(MONARCH_MESH_ORPHAN_TIMEOUT="4s")
    cluster.hosts[1].cut()
    cluster.ended(cluster.hosts[1], client.pids["h3"])
    assert len(cluster.cleanups(cluster.hosts[1], client.pids["h3"])) == 2
    assert_lost(cluster, "silent for ")
    assert client.end() == 0


def test_host_that_flaps_loses_nothing(cluster: Cluster) -> None:
    with nothing_lost(cluster, "stream", "streamed"):
        flap(cluster)


def test_connections_that_are_reset_lose_nothing(cluster: Cluster) -> None:
    with nothing_lost(cluster, "stream", "streamed"):
        for _ in range(5):
            cluster.hosts[1].reset()
            pause(0.3)


def test_large_parts_survive_resets_and_cuts(cluster: Cluster) -> None:
    with nothing_lost(cluster, "bulk", "bulked"):
        reset_and_cut(cluster)


@pytest.mark.usefixtures("moved")
def test_large_parts_to_one_survive_resets_and_cuts(cluster: Cluster) -> None:
    with nothing_lost(cluster, "heavy", "weighed", 0, 1):
        reset_and_cut(cluster)


@pytest.mark.usefixtures("moved")
def test_agent_killed_with_large_parts_on_the_way(cluster: Cluster) -> None:
    client = cluster.client()
    assert client.say("heavy", 0, 1) == "on"
    pause(0.5)
    cluster.workers[1].process.kill()
    assert_lost(cluster, "agent killed")
    cluster.ended(cluster.hosts[1], client.pids["h3"])
    client.kill()


@pytest.mark.parametrize("back", [True, False], ids=["both ways", "one way"])
def test_link_that_third_hosts_see_around_loses_nothing(cluster: Cluster, back: bool) -> None:
    client = cluster.client()
    # The link exists before it breaks.
    assert client.say("ready", 0, 1) == "True"
    cluster.network.cut_link(cluster.hosts[0], cluster.hosts[1], back=back)
    assert client.say("relay", 0, 1, 100) == "on"
    pause(4.5)
    cluster.hosts[0].heal()
    assert client.say("relayed") == "True"
    assert client.say("untold") == "0"
    assert client.end() == 0


def test_link_that_does_not_come_back_is_lost(cluster: Cluster) -> None:
    client = cluster.client(MONARCH_CHANNEL_RECONNECT_TIMEOUT="2s")
    assert client.say("ready", 0, 1) == "True"
    cluster.network.cut_link(cluster.hosts[0], cluster.hosts[1])
    said = client.say("ask", 0, 1)
    assert said.startswith("link_lost "), said
    assert [client.say("alive", n) for n in (0, 1, 2)] == ["True"] * 3
    assert client.end() == 0


def test_firewall_before_a_host_loses_the_link(cluster: Cluster) -> None:
    # No worker has a connection to another one: they open it when the client asks about the host.
    client = cluster.client(MONARCH_CHANNEL_RECONNECT_TIMEOUT="2s")
    cluster.network.cut_link(cluster.client_host, cluster.hosts[1])
    said = client.say("lost", 1)
    assert said.startswith(f"link_lost {cluster.hosts[1].name}: "), said
    assert [client.say("alive", n) for n in (0, 2)] == ["True", "True"]
    assert client.end() == 0


def test_cast_reaches_ranks_behind_a_cut_link(cluster: Cluster) -> None:
    # The tree is a chain: each host forwards to the next one.
    cluster.env["MONARCH_CAST_FAN_OUT"] = "1"
    client = cluster.client(MONARCH_CHANNEL_RECONNECT_TIMEOUT="2s")
    assert client.say("ready", 0, 1) == "True"
    assert client.say("stream") == "on"
    cluster.network.cut_link(cluster.hosts[0], cluster.hosts[1])
    said = client.say("ask", 0, 1)
    assert said.startswith("link_lost "), said
    assert client.say("cast", 20) == "True"
    assert client.say("streamed") == "True"
    assert client.say("untold") == "0"
    assert client.end() == 0


def test_client_killed_leaves_nothing(cluster: Cluster) -> None:
    client = cluster.client(MONARCH_MESH_ORPHAN_TIMEOUT="3s")
    client.kill()
    for host in cluster.hosts:
        cluster.ended(host, client.pids[host.name])
        assert len(cluster.cleanups(host, client.pids[host.name])) == 2
    # The agents wait for the next client.
    assert cluster.client().end() == 0


def test_client_frozen_for_a_while_loses_nothing(cluster: Cluster) -> None:
    client = cluster.client()
    assert client.say("stream") == "on"
    freeze(client.process.target)
    pause(4)
    client.process.send_signal(signal.SIGCONT)
    assert client.say("streamed") == "True"
    assert client.say("untold") == "0"
    assert client.end() == 0


@pytest.mark.parametrize("seconds", [2.0, 4.0])
def test_client_cut_off_within_its_lease_loses_nothing(cluster: Cluster, seconds: float) -> None:
    client = cluster.client()
    assert client.say("stream") == "on"
    cluster.client_host.cut()
    pause(seconds)
    cluster.client_host.heal()
    assert client.say("streamed") == "True"
    assert client.say("untold") == "0"
    assert client.end() == 0


def test_client_cut_off_for_longer_than_the_lease(cluster: Cluster) -> None:
    client = cluster.client(MONARCH_MESH_ORPHAN_TIMEOUT="4s")
    cluster.client_host.cut()
    for host in cluster.hosts:
        cluster.ended(host, client.pids[host.name])
        said = cluster.cleanups(host, client.pids[host.name])
        assert len(said) == 2 and "None" not in said
    cluster.client_host.heal()
    assert client.say("lost", 1).startswith("host_lost h3: ")
    ranks = [f"h{2 + rank // 2}:{name}:{rank}" for rank in range(6) for name in ("waiter", "worker")]
    assert client.say("told", 12).split() == sorted(ranks)
    assert client.end() == 0
    assert cluster.client().end() == 0
