"""Hosts that are silent for two thirds of `host_loss_timeout`, by a cut or frozen: nothing is lost."""

from __future__ import annotations

import signal

import pytest
from disturbances import nothing_lost, pause

from tools.frozen import freeze
from tools.netns.cluster import Cluster

# The limit, and the silence of two thirds of it.
SILENCES = [("3s", 2.0), ("12s", 8.0)]
# The time for which a host without a heartbeat of its client keeps the client's work.
LEASE = "1m"


@pytest.mark.parametrize(("limit", "silence"), SILENCES)
def test_host_cut_off_below_the_limit_stays(cluster: Cluster, limit: str, silence: float) -> None:
    cluster.env.update(MONARCH_HOST_LOSS_TIMEOUT=limit, MONARCH_MESH_ORPHAN_TIMEOUT=LEASE)
    with nothing_lost(cluster, "stream", "streamed"):
        cluster.hosts[1].cut()
        pause(silence)
        cluster.hosts[1].heal()


@pytest.mark.parametrize(("limit", "silence"), SILENCES)
def test_agent_frozen_for_two_thirds_of_the_limit(cluster: Cluster, limit: str, silence: float) -> None:
    cluster.env.update(MONARCH_HOST_LOSS_TIMEOUT=limit, MONARCH_MESH_ORPHAN_TIMEOUT=LEASE)
    with nothing_lost(cluster, "stream", "streamed"):
        agent = cluster.workers[1].process
        freeze(agent.target)
        pause(silence)
        agent.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("host", [0, 2])
def test_hosts_cut_off_in_turn_lose_nothing(cluster: Cluster, host: int) -> None:
    """The last indirect heartbeat does not shorten the limit."""
    cluster.env["MONARCH_HOST_LOSS_TIMEOUT"] = "6s"
    with nothing_lost(cluster, "stream", "streamed"):
        for cut in (1, host):
            cluster.hosts[cut].cut()
            pause(4.0)
            cluster.hosts[cut].heal()
