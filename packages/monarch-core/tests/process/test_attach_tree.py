"""Hosts that join by a join tree: relays join some of the hosts, and forward the frames between these and the client."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from eventually import eventually
from fresh_script import Script, run, wait_for_end
from hostile_peers import OURS, PYTHON, other_version, server
from worker_processes import Workers

from monarch._core._native import Hosts
from monarch._core.process.current import current_process
from monarch.actor import Actor, AttachError, AuthenticationError, HostMesh, SupervisionError, VersionMismatch, attach_to_workers, endpoint
from monarch.config import configured
from tools.frozen import freeze

pytestmark = pytest.mark.filterwarnings("ignore:.*without encryption")


class Echo(Actor):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    @endpoint
    def echo(self, x: Any) -> Any:
        self.seen.append(x)
        return x

    @endpoint
    def agent(self) -> int:
        return os.getppid()

    @endpoint
    def all_seen(self) -> list[Any]:
        return self.seen

    @endpoint
    def call(self, other: Any, x: Any) -> list[Any]:
        return list(other.echo.call(x).get().values())

    @endpoint
    def wait(self) -> None:
        signal.pause()


@pytest.fixture(autouse=True)
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every relay joins two others, so seven hosts are a tree of three levels."""
    monkeypatch.setenv("MONARCH_ATTACH_FAN_OUT", "2")


def hosts_of_client() -> Hosts:
    hosts = current_process().hosts.native
    assert hosts is not None
    return hosts


def below(mesh: HostMesh) -> list[int]:
    """The ranks of the hosts of a mesh to which this client has no direct connection."""
    found = set(hosts_of_client().relayed_hosts())
    return [rank for rank, id in enumerate(mesh.__core__.agents) if id in found]


def wait_until_adopted(mesh: HostMesh, rank: int) -> None:
    """Waits until the client has a direct connection to the host."""
    eventually(f"a connection to host {rank}", lambda: below(mesh), lambda found: rank not in found)


# Of 8 hosts the client joins the first of each half, 0 joins 1 and 2, and 2 joins 3. The other half has the same form.
TOP = {0, 4}


@pytest.mark.parametrize("kind", ["tls", "insecure", "unix"])
def test_hosts_join_by_a_tree(kind: str):
    before = Hosts.handshakes()
    with Workers(8, kind) as workers, workers.attach() as hosts:
        assert hosts.initialized.get() is True
        assert set(range(8)) - set(below(hosts)) == TOP
        # The client has three handshakes with each of two hosts.
        assert Hosts.handshakes() - before == (6 if kind == "tls" else 0)
        echoes = hosts.spawn_procs({"gpus": 1}).spawn("echo", Echo)
        assert len(set(echoes.agent.call().get().values())) == 8
        assert list(echoes.echo.call(1).get().values()) == [1] * 8
        for rank in range(8):
            assert echoes.slice(hosts=rank, gpus=0).echo.call_one(rank).get() == rank
        # Calls from a relayed host to all others and back.
        assert echoes.slice(hosts=7, gpus=0).call.call_one(echoes.slice(hosts=slice(0, 7)), 3).get() == [3] * 7
        assert len(below(hosts)) == 6
        described = hosts.__core__.attachment.described()
        assert [d["pid"] for d in described] == [p.pid for p in workers.processes]


def test_large_messages_to_relayed_hosts_use_direct_connections():
    with Workers(7, "tls") as workers, workers.attach() as hosts:
        echo = hosts.spawn_procs().spawn("echo", Echo).slice(hosts=6)
        assert echo.echo.call_one(-1).get() == -1
        assert 6 in below(hosts)
        large = [os.urandom(1 << 20) + bytes([n]) for n in range(4)]
        sent = [echo.echo.call_one(x) for x in [0, large[0], 1, large[1], 2, large[2], 3, large[3]]]
        assert [f.get() for f in sent] == [0, large[0], 1, large[1], 2, large[2], 3, large[3]]
        wait_until_adopted(hosts, 6)
        assert [x if isinstance(x, int) else x[-1] for x in echo.all_seen.call_one().get()] == [-1, 0, 0, 1, 1, 2, 2, 3, 3]


def test_hosts_of_a_killed_relay_stay_usable():
    with Workers(8, "tls") as workers, workers.attach() as hosts:
        echoes = hosts.spawn_procs().spawn("echo", Echo)
        assert list(echoes.echo.call(1).get().values()) == [1] * 8
        waiting = echoes.slice(hosts=0).wait.call_one()
        workers.processes[0].kill()
        with pytest.raises(SupervisionError, match="agent killed"):
            waiting.get()
        # All others live, the relayed hosts too.
        assert [echoes.slice(hosts=rank).all_seen.call_one().get() for rank in range(1, 8)] == [[1]] * 7
        wait_until_adopted(hosts, 1)
        spawned = hosts.slice(hosts=slice(1, 8)).spawn_procs(name="more").spawn("more", Echo)
        assert list(spawned.echo.call(2).get().values()) == [2] * 7
        assert spawned.slice(hosts=0).call.call_one(spawned.slice(hosts=slice(1, 7)), 3).get() == [3] * 6


@pytest.mark.parametrize(("number", "why"), [(signal.SIGKILL, "agent killed"), (signal.SIGSTOP, "silent")])
def test_killed_or_frozen_relayed_host_is_lost(number: signal.Signals, why: str):
    with Workers(8, "tls") as workers, workers.attach() as hosts:
        echoes = hosts.spawn_procs().spawn("echo", Echo)
        assert list(echoes.echo.call(1).get().values()) == [1] * 8
        deep = below(hosts)[-1]
        waiting = echoes.slice(hosts=deep).wait.call_one()
        workers.processes[deep].send_signal(number)
        with pytest.raises(SupervisionError, match=why):
            waiting.get()


def test_hosts_of_a_frozen_relay_stay_usable():
    with Workers(8, "tls") as workers, workers.attach() as hosts:
        echoes = hosts.spawn_procs().spawn("echo", Echo)
        assert list(echoes.echo.call(1).get().values()) == [1] * 8
        lost = echoes.slice(hosts=0).wait.call_one()
        freeze(workers.processes[0].pid)
        # The frames of its relayed hosts wait until the client has connected to them directly.
        assert echoes.slice(hosts=1).echo.call_one(2).get() == 2
        with pytest.raises(SupervisionError, match="silent"):
            lost.get()
        rest = hosts.slice(hosts=slice(1, 8)).spawn_procs(name="more").spawn("more", Echo)
        assert list(rest.echo.call(3).get().values()) == [3] * 7


def test_hosts_that_do_not_join():
    with Workers(6, "tls") as workers, Workers(2, "tls") as strangers, configured(mesh_attach_config_timeout="5s"):
        strangers.processes[1].kill()
        strangers.processes[1].wait()
        addresses = workers.addresses
        refused, missing, twice = strangers.addresses[0], strangers.addresses[1], addresses[5].replace("127.0.0.1", "localhost")
        every = [addresses[0], missing, *addresses[1:3], addresses[3], refused, addresses[4], addresses[5], twice]
        with pytest.raises(AttachError) as failed:
            attach_to_workers(workers=every, **workers.trust()).initialized.get()
        assert isinstance(failed.value, AuthenticationError)
        reasons = failed.value.hosts
        assert reasons[refused] == "refused by the other end"
        assert reasons[missing] == "connection refused"
        why = "this host is in the job already, by another address"
        assert {a: w for a, w in reasons.items() if a not in (refused, missing)} in ({twice: why}, {addresses[5]: why})
        # The hosts that had joined can be attached again without the others.
        with workers.attach() as hosts:
            assert hosts.initialized.get() is True


def test_relayed_worker_of_another_version_is_refused():
    with Workers(7, "insecure") as workers, server(other_version) as other, configured(mesh_attach_config_timeout="5s"):
        # The other host is the third that a relay joins.
        every = [*workers.addresses[:3], other, *workers.addresses[3:]]
        with pytest.raises(VersionMismatch) as failed:
            attach_to_workers(workers=every, insecure=True).initialized.get()
        assert failed.value.hosts == {other: f"version 0.1.0 (protocol 77, Python {PYTHON}) at the other end, {OURS} here"}


def test_hosts_of_an_unresponsive_relay_join_without_it():
    with Workers(8, "tls") as workers:
        freeze(workers.processes[0].pid)
        with workers.attach() as hosts:
            # Its part of the tree is joined without it.
            eventually("seven hosts joined", lambda: [name for _, name, _, _ in hosts_of_client().hosts() if name], lambda n: len(n) >= 7)
            workers.processes[0].send_signal(signal.SIGCONT)
            assert hosts.initialized.get() is True
            echoes = hosts.spawn_procs().spawn("echo", Echo)
            assert list(echoes.echo.call(1).get().values()) == [1] * 8


def test_client_exit_ends_all_procs():
    """Relayed hosts are notified too, and are free for the next client."""
    with Workers(8, "tls") as workers:
        for _ in range(2):
            run(WORK, env=_env(workers)).assert_clean()
            assert all(wait_for_end(pid) for number in range(8) for pid in workers.procs_of(number))


def test_killed_client_ends_all_procs():
    """Leases end on all hosts."""
    with Workers(8, "tls") as workers:
        script = Script(WAIT, env={**_env(workers), "MONARCH_MESH_ORPHAN_TIMEOUT": "3s"})
        try:
            script.until("working")
            pids = [pid for number in range(8) for pid in workers.procs_of(number)]
            assert len(pids) == 8
            script.send(signal.SIGKILL)
            assert all(wait_for_end(pid) for pid in pids)
            assert all(p.poll() is None for p in workers.processes)
        finally:
            script.close()


def test_hosts_are_shut_down():
    with Workers(8, "tls") as workers:
        hosts = workers.attach()
        echoes = hosts.spawn_procs().spawn("echo", Echo)
        assert list(echoes.echo.call(1).get().values()) == [1] * 8
        hosts.shutdown().get()
        assert [p.wait() for p in workers.processes] == [0] * 8


def _env(workers: Workers) -> dict[str, str]:
    return {"WORKERS": " ".join(workers.addresses), "MONARCH_JOB_SECRET_FILE": str(workers.secret), "MONARCH_ATTACH_FAN_OUT": "2"}


WORK = """
from monarch.actor import attach_to_workers

hosts = attach_to_workers(workers=os.environ["WORKERS"].split())
echoes = hosts.spawn_procs().spawn("echo", Echo)
assert list(echoes.echo.call(1).get().values()) == [1] * 8
"""

WAIT = (
    WORK
    + """
say("working")
signal.pause()
"""
)
