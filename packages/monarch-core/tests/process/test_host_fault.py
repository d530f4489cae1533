"""Faults of whole hosts, and of processes on them: each host has an agent of its own, and connections are real."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from eventually import eventually
from fresh_script import wait_for_end
from mesh_actors import Probe

import monarch.actor
from monarch.actor import Actor, SupervisionError, endpoint
from monarch.actor.testing import fault, isolated, local_hosts
from monarch.config import configured

# Each test has a client of its own: the first join of a client fixes the limit of silence.


def waiting(future: Any) -> bool:
    try:
        future.get(timeout=0)
    except TimeoutError:
        return True
    return False


class Caller(Actor):
    @endpoint
    def ask(self, other: Any, x: Any) -> Any:
        return other.echo.call_one(x).get()

    @endpoint
    def cut(self, hosts: Any, other: Any) -> bool:
        with fault(hosts, "cut"):
            late = other.echo.call_one("late")
            waits = waiting(late)
        return waits and late.get() == "late"


@isolated
def test_cut_off_until_healed():
    with configured(host_loss_timeout="60s"), local_hosts(3) as hosts:
        procs = hosts.spawn_procs({"gpus": 2})
        probes, callers = procs.spawn("probe", Probe), procs.spawn("caller", Caller)
        there, here = probes.slice(hosts=1), probes.slice(hosts=slice(0, 3, 2))
        assert callers.slice(hosts=0, gpus=0).ask.call_one(probes.slice(hosts=1, gpus=0), 0).get() == 0
        for n in range(3):
            cut = fault(hosts.slice(hosts=1), "cut")
            large = bytes(3 << 20)
            late = [there.echo.call(n), probes.echo.call(n), there.echo.call(large)]
            asked = callers.slice(hosts=0, gpus=1).ask.call_one(probes.slice(hosts=1, gpus=1), n)
            # All other hosts continue, also with each other.
            assert list(here.echo.call(n).get().values()) == [n] * 4
            assert callers.slice(hosts=2, gpus=0).ask.call_one(probes.slice(hosts=0, gpus=0), n).get() == n
            assert all(waiting(f) for f in (*late, asked))
            cut.heal()
            assert [list(f.get().values()) for f in late] == [[n] * 2, [n] * 6, [large] * 2]
            assert asked.get() == n
            cut.heal()


@isolated
def test_two_cuts_of_one_host_and_a_duration():
    with configured(host_loss_timeout="60s"), local_hosts(2) as hosts:
        probes = hosts.spawn_procs().spawn("probe", Probe)
        assert list(probes.echo.call(0).get().values()) == [0, 0]
        first, _ = fault(hosts.slice(hosts=0), "cut"), fault(hosts, "cut", duration="300ms")
        late = probes.slice(hosts=1).echo.call_one(1)
        assert late.get() == 1
        # The other cut lasts.
        still = probes.slice(hosts=0).echo.call_one(2)
        assert probes.slice(hosts=1).echo.call_one(3).get() == 3
        assert waiting(still)
        first.heal()
        assert still.get() == 2


@isolated
def test_cuts_that_overlap():
    with configured(host_loss_timeout="60s"), local_hosts(3) as hosts:
        procs = hosts.spawn_procs()
        probes, callers = procs.spawn("probe", Probe), procs.spawn("caller", Caller)
        one, both = fault(hosts.slice(hosts=1), "cut"), fault(hosts.slice(hosts=slice(0, 2)), "cut")
        assert probes.slice(hosts=2).echo.call_one(0).get() == 0
        for cut in (one, both):
            late = probes.echo.call(1)
            assert waiting(late)
            cut.heal()
        assert list(late.get().values()) == [1] * 3
        # Hosts of one slice that another cut had separated reach each other, too.
        assert callers.slice(hosts=0).ask.call_one(probes.slice(hosts=1), 2).get() == 2


@isolated
def test_cut_off_for_longer_than_is_tolerated():
    monarch.actor.unhandled_fault_hook = lambda failure: None
    with local_hosts(3) as hosts:
        probes = hosts.spawn_procs().spawn("probe", Probe)
        assert list(probes.echo.call(0).get().values()) == [0] * 3
        with fault(hosts.slice(hosts=2), "cut"):
            with pytest.raises(SupervisionError, match="lost: silent for"):
                probes.slice(hosts=2).echo.call_one(1).get()
            assert list(probes.slice(hosts=slice(0, 2)).echo.call(2).get().values()) == [2, 2]
        # The host is back, but counts as lost.
        with pytest.raises(SupervisionError, match="lost: silent for"):
            probes.slice(hosts=2).echo.call_one(3).get()
        assert list(probes.slice(hosts=slice(0, 2)).echo.call(4).get().values()) == [4, 4]


@isolated
def test_actor_cuts_a_host_off():
    with configured(host_loss_timeout="60s"), local_hosts(2) as hosts:
        procs = hosts.spawn_procs()
        probe, caller = procs.spawn("probe", Probe).slice(hosts=1), procs.spawn("caller", Caller).slice(hosts=0)
        assert caller.ask.call_one(probe, 1).get() == 1
        assert caller.cut.call_one(hosts.slice(hosts=1), probe).get()


@isolated
def test_kill_and_freeze():
    monarch.actor.unhandled_fault_hook = lambda failure: None
    with configured(host_loss_timeout="60s"), local_hosts(3) as hosts:
        probes = hosts.spawn_procs({"gpus": 2}).spawn("probe", Probe)
        pids = list(probes.slice(hosts=2).pid.call().get().values())
        others = list(probes.slice(hosts=1).pid.call().get().values())
        fault(hosts.slice(hosts=2), "kill")
        assert all(wait_for_end(pid) for pid in pids)
        with pytest.raises(SupervisionError, match="lost: agent killed"):
            probes.slice(hosts=2).pid.call().get()
        fault(hosts.slice(hosts=1), "freeze", duration="2s")
        eventually("all procs are frozen", lambda: [_state(pid) for pid in others], lambda states: set(states) <= {"T", "t"})
        late = probes.slice(hosts=1).echo.call(1)
        assert list(probes.slice(hosts=0).echo.call(1).get().values()) == [1] * 2
        assert list(late.get().values()) == [1] * 2


@isolated
def test_processes_on_hosts():
    monarch.actor.unhandled_fault_hook = lambda failure: None
    with local_hosts(2) as hosts:
        procs = hosts.spawn_procs({"gpus": 2})
        probes = procs.spawn("probe", Probe)
        pids = list(probes.pid.call().get().values())
        with fault(probes.slice(gpus=1), "freeze"):
            late = probes.slice(gpus=1).pid.call()
            assert list(probes.slice(gpus=0).pid.call().get().values()) == [pids[0], pids[2]]
            assert [_state(pid) in "Tt" for pid in pids] == [False, True, False, True]
        assert list(late.get().values()) == [pids[1], pids[3]]
        with fault(procs, "delay", by="1ms"):
            assert list(probes.echo.call(1).get().values()) == [1] * 4
        fault(procs.slice(hosts=1, gpus=0), "kill")
        assert wait_for_end(pids[2])
        with pytest.raises(SupervisionError, match=rf"Killed\(sig={signal.SIGKILL}\)"):
            probes.slice(hosts=1, gpus=0).pid.call_one().get()
        assert probes.slice(hosts=1, gpus=1).pid.call_one().get() == pids[3]


def test_refusals():
    with local_hosts(1) as hosts:
        with pytest.raises(ValueError, match="needs a duration"):
            fault(hosts, "freeze")
        with pytest.raises(ValueError, match="give it those of the hosts"):
            fault(hosts, "delay")
        with pytest.raises(ValueError, match="takes no duration"):
            fault(hosts, "kill", duration="1s")


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rpartition(") ")[2].split()[0]
