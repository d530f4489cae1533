"""Faults of the test kit, in real processes and on real links."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from fresh_script import Script, run, wait_for_end
from mesh_actors import Probe, Recorder

from monarch.actor import SupervisionError, this_host, this_proc
from monarch.actor.testing import fault

pytestmark = pytest.mark.usefixtures("faults")


@pytest.fixture
def procs():
    with this_host().spawn_procs({"procs": 3}) as procs:
        yield procs


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rpartition(") ")[2].split()[0]


def pids_of(mesh):
    return list(mesh.pid.call().get().values())


class TestKill:
    def test_fault_hits_exactly_its_slice(self, procs):
        mesh = procs.spawn("probe", Probe)
        pids = pids_of(mesh)
        fault(procs.slice(procs=slice(1, 3)), "kill")
        assert all(wait_for_end(pid) for pid in pids[1:])
        with pytest.raises(SupervisionError, match=r"Killed\(sig=9\)"):
            mesh.echo.call(1).get()
        assert mesh.slice(procs=0).pid.call_one().get() == pids[0]

    def test_slice_of_actors(self, procs):
        mesh = procs.slice(procs=slice(1, 3)).spawn("probe", Probe)
        pids = pids_of(mesh)
        fault(mesh.slice(procs=1), "kill")
        assert wait_for_end(pids[1])
        assert mesh.slice(procs=0).pid.call_one().get() == pids[0]

    def test_as_soon_as_it_is_there(self, faults):
        with this_host().spawn_procs({"procs": 4}) as procs:
            fault(procs, "kill")
            mesh = procs.spawn("probe", Probe)
            with pytest.raises(SupervisionError):
                mesh.pid.call().get()

    def test_fault_on_an_ended_proc_is_ignored(self, procs):
        pid = procs.slice(procs=0).spawn("probe", Probe).pid.call_one().get()
        fault(procs.slice(procs=0), "kill")
        assert wait_for_end(pid)
        fault(procs.slice(procs=0), "kill").heal()
        with fault(procs.slice(procs=0), "freeze"):
            pass
        with fault(procs.slice(procs=0), "delay"):
            pass

    def test_kill_takes_no_duration(self, procs):
        with pytest.raises(ValueError, match="cannot be healed"):
            fault(procs, "kill", duration="1s")


class TestFreeze:
    def test_exactly_the_slice_until_healed(self, procs):
        mesh = procs.spawn("probe", Probe)
        pids = pids_of(mesh)
        frozen = fault(procs.slice(procs=1), "freeze")
        assert [state(pid) in "Tt" for pid in pids] == [False, True, False]
        call = mesh.slice(procs=1).pid.call_one()
        assert mesh.slice(procs=slice(0, 3, 2)).pid.call().get().values() == [pids[0], pids[2]]
        with pytest.raises(TimeoutError):
            call.get(timeout=0)
        frozen.heal()
        assert call.get() == pids[1]
        frozen.heal()

    def test_fault_with_a_duration_heals(self, procs):
        mesh = procs.spawn("probe", Probe)
        pids = pids_of(mesh)
        fault(procs, "freeze", duration="50ms")
        assert pids_of(mesh) == pids

    def test_freezes_of_one_proc_add_up(self, procs):
        (pid,) = pids_of(procs.slice(procs=slice(0, 1)).spawn("probe", Probe))
        with fault(procs, "freeze"):
            with fault(procs.slice(procs=0), "freeze"):
                pass
            assert state(pid) in "Tt"
        assert state(pid) not in "Tt"

    def test_async_context(self, procs):
        mesh = procs.spawn("probe", Probe)

        async def main():
            pid = await mesh.slice(procs=0).pid.call_one()
            async with fault(mesh.slice(procs=0), "freeze"):
                assert state(pid) in "Tt"
            return pid == await mesh.slice(procs=0).pid.call_one()

        assert asyncio.run(main())

    def test_killed_while_frozen(self, procs):
        pid = procs.slice(procs=0).spawn("probe", Probe).pid.call_one().get()
        with fault(procs.slice(procs=0), "freeze"):
            fault(procs.slice(procs=0), "kill")
            assert wait_for_end(pid)

    def test_actor_can_freeze_a_proc(self, procs):
        mesh = procs.spawn("probe", Probe)
        pids = pids_of(mesh)
        found = mesh.slice(procs=0).freeze_and_look.call_one(mesh.slice(procs=1), pids[1]).get()
        assert found in ("T", "t")
        assert state(pids[1]) not in "Tt"


class TestDelay:
    def test_order_and_contents_stay(self, procs):
        mesh = procs.spawn("recorder", Recorder).slice(procs=0)
        blocks = [bytes([i]) * (i * 40_000) for i in range(12)]
        with fault(procs.slice(procs=0), "delay", by="3ms"):
            for i in range(200):
                mesh.put.broadcast(i)
            for block in blocks:
                mesh.put.broadcast(block)
            assert mesh.taken.call_one().get() == [*range(200), *blocks]
        # Held frames and later frames stay in order.
        for i in range(200):
            mesh.put.broadcast(i)
        assert mesh.taken.call_one().get() == list(range(200))

    def test_takes_its_time_there_and_back(self, procs):
        mesh = procs.spawn("probe", Probe)
        pids_of(mesh)
        with fault(procs.slice(procs=0), "delay", by="1h"):
            late = mesh.slice(procs=0).pid.call_one()
            mesh.slice(procs=1).pid.call_one().get()
            with pytest.raises(TimeoutError):
                late.get(timeout=0.05)
            # Waiting answers do not keep the process alive, and a kill is not delayed.
            fault(procs.slice(procs=0), "kill")
            with pytest.raises(SupervisionError):
                late.get()

    def test_between_procs(self, procs):
        mesh = procs.spawn("probe", Probe)
        with fault(procs.slice(procs=0), "delay", by="2ms", duration="20ms"):
            assert mesh.slice(procs=1).call_on.call_one(mesh.slice(procs=slice(0, 1)), "echo", 7).get().values() == [7]
            assert mesh.slice(procs=0).call_on.call_one(mesh.slice(procs=slice(1, 2)), "echo", 7).get().values() == [7]

    def test_stop_in_the_middle(self):
        with this_host().spawn_procs() as procs:
            mesh = procs.spawn("recorder", Recorder)
            fault(procs, "delay", by="5ms")
            mesh.put.broadcast(1)


class TestRefusals:
    def test_unknown_kind(self, procs):
        with pytest.raises(ValueError, match="unknown fault 'melt': expected one of kill, freeze, cut, delay"):
            fault(procs, "melt")  # pyright: ignore

    def test_cut_needs_hosts(self, procs):
        with pytest.raises(ValueError, match="give it a mesh of hosts"):
            fault(procs, "cut")
        for kind in ("cut", "kill"):
            with pytest.raises(ValueError, match="is the client's own machine"):
                fault(this_host(), kind)

    def test_duration(self, procs):
        with pytest.raises(ValueError, match="Invalid duration format"):
            fault(procs, "freeze", duration="soon")

    def test_not_a_mesh(self):
        with pytest.raises(TypeError, match="not int"):
            fault(3, "kill")

    def test_client(self):
        with pytest.raises(ValueError, match="client's own process"):
            fault(this_proc(), "freeze")


FROZEN = """
from monarch.actor.testing import fault
class Last(Actor):
    @endpoint
    def pid(self):
        return os.getpid()
    def __cleanup__(self, exc):
        say("cleaned up")
procs = this_host().spawn_procs()
mesh = procs.spawn("last", Last)
pid = mesh.pid.call_one().get()
fault(procs, "freeze")
"""


def test_nothing_stays_frozen_after_exit():
    done = run(FROZEN)
    done.assert_clean()
    assert "cleaned up" in done.out


def test_nothing_stays_frozen_after_the_clients_death():
    script = Script(FROZEN + 'say(f"pid {pid}")\ntime.sleep(1000)')  # sleeps: until it is killed
    pid = int(script.until("pid").split()[1])
    script.send(signal.SIGKILL)
    done = script.end()
    assert done.left == []
    assert not os.path.exists(f"/proc/{pid}") or state(pid) in "ZX"
