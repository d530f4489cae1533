"""Failures, stops and clean-up in a universe."""

from __future__ import annotations

from functools import partial

import pytest
from universe_actors import Caller, Cleaner, Echo, Owner, Proxy, Sleeper, Stubborn

import monarch.actor
from monarch._core.process import root_fault
from monarch.actor import ActorError, Channel, SpawnError, SupervisionError, shutdown_context
from monarch.actor.testing import Universe

HOUR = 3600.0


@pytest.fixture
def default_hook(monkeypatch):
    """The hook of a script that sets none."""
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", root_fault.unhandled_fault_hook)


@pytest.fixture
def universe():
    with Universe() as u:
        yield u


# ---- failures


def test_killed_proc_fails_its_calls(universe):
    procs = universe.host.spawn_procs(per_host={"procs": 3})
    mesh = procs.spawn("sleeper", Sleeper)
    calls = mesh.nap.call(HOUR)
    universe.kill(procs.slice(procs=1))
    with pytest.raises(SupervisionError, match=r"(?s)sleeper\{'procs': 1/3\}.*Killed\(sig=9\)"):
        calls.get()
    assert universe.clock.now() == 0.0
    assert [v for _, v in mesh.slice(procs=slice(0, 1)).nap.call(1.0).get().items()] == [HOUR + 1]
    with pytest.raises(SupervisionError):
        mesh.nap.call(1.0).get()


def test_handles_of_ended_procs_keep_the_reason(universe):
    """Only the reason of their ends is kept: for the client, and for processes that have, or have not, called them before."""
    procs = universe.host.spawn_procs(per_host={"procs": 4})
    sleepers, callers = procs.spawn("sleeper", Sleeper), procs.slice(procs=slice(2, 4)).spawn("caller", Caller)
    first, fresh = (callers.slice(procs=i) for i in range(2))
    gone = sleepers.slice(procs=0)
    assert first.nap.call_one(gone, 1.0).get() == 1.0
    universe.kill(procs.slice(procs=0))
    universe.run_for(60.0)
    # The next end makes the process forget the earlier ones.
    universe.kill(procs.slice(procs=1))
    with pytest.raises(SupervisionError, match=r"Killed\(sig=9\)"):
        gone.nap.call_one(1.0).get()
    for caller in (first, fresh):
        with pytest.raises(ActorError, match=r"Killed\(sig=9\)"):
            caller.nap.call_one(gone, 1.0).get()
        assert caller.nap.call_one(sleepers.slice(procs=3), 1.0).get() == universe.clock.now()


def test_killed_while_it_waits_in_a_sync_endpoint(universe):
    procs = universe.host.spawn_procs(per_host={"procs": 2})
    sleeper, caller = procs.spawn("sleeper", Sleeper), procs.spawn("caller", Caller)
    call = caller.slice(procs=0).nap.call_one(sleeper.slice(procs=1), HOUR)
    universe.run_for(10.0)
    universe.kill(procs.slice(procs=0))
    with pytest.raises(SupervisionError, match=r"Killed\(sig=9\)"):
        call.get()
    # Ended processes are not killed again.
    universe.kill(procs)
    universe.kill(caller)


@pytest.mark.parametrize("way", ["pass it on", "return", "raise", "exit"])
def test_threads_of_killed_procs_answer_nothing(way):
    for _ in range(10):
        with Universe() as u:
            procs = u.host.spawn_procs(per_host={"procs": 8})
            mesh = procs.spawn("stubborn", Stubborn)
            calls = [mesh.slice(procs=i).nap.call_one(u, way) for i in range(8)]
            u.run_for(10.0)
            u.kill(procs)
            for call in calls:
                with pytest.raises(SupervisionError, match=r"Killed\(sig=9\)") as caught:
                    call.get()
                failure = caught.value.failure
                assert failure is not None and failure.reason.kind == "signal"


def test_proc_killed_before_its_start_fails_calls(universe):
    # The bootstrap sleeps in simulated time, which does not pass here: no proc can begin before it is killed.
    procs = universe.host.spawn_procs(per_host={"procs": 3}, bootstrap=partial(universe.sleep, HOUR))
    universe.kill(procs)
    # With a bootstrap the first end is reported at once: the call does not wait for the others.
    with pytest.raises(SpawnError, match=r"(?s)[123] of 3 procs did not start.*Killed\(sig=9\)"):
        procs.initialized.get()
    procs = universe.host.spawn_procs()
    procs.stop().get()
    universe.kill(procs)


def test_killed_proc_runs_nothing_more(universe):
    port, receiver = Channel.open()
    procs = universe.host.spawn_procs(per_host={"procs": 2})
    mesh = procs.spawn("cleaner", Cleaner, port, 1.0)
    mesh.work.broadcast(HOUR)
    mesh.slice(procs=1).work.call_one(0.0)
    universe.kill(procs.slice(procs=0))
    mesh.stop().get()
    assert receiver.recv().get() == ("clean", None)
    with pytest.raises(TimeoutError):
        receiver.recv().get(timeout=HOUR)


def test_owner_is_notified(universe):
    port, receiver = Channel.open()
    owner = universe.host.spawn_procs().spawn("owner", Owner, True, port)
    mesh = owner.spawn.call_one(2).get()
    universe.kill(mesh.slice(procs=1))
    assert receiver.recv().get() == ("owned", [1], "signal")
    assert owner.creator.call_one().get()
    mesh.slice(procs=0).fail_later.broadcast(HOUR)
    assert receiver.recv().get() == ("owned", [0], "raised")
    assert universe.clock.now() == HOUR


def test_respawned_after_each_death(universe):
    port, receiver = Channel.open()
    owner = universe.host.spawn_procs().spawn("owner", Owner, True, port)
    for _ in range(10):
        mesh = owner.spawn.call_one(3).get()
        mesh.nap.broadcast(HOUR)
        universe.kill(mesh)
        assert sorted(receiver.recv().get()[1] for _ in range(3)) == [[0], [1], [2]]
    assert universe.clock.now() == 0.0


def test_unhandled_failure_is_raised_at_the_end(default_hook):
    port = None
    with pytest.raises(SupervisionError, match=r"(?s)Owner owner.*failed because it did not handle") as caught:
        with Universe() as u:
            port, receiver = Channel.open()
            proxy = u.host.spawn_procs().spawn("proxy", Proxy)
            owner = proxy.spawn.call_one(False, port).get()
            mesh = owner.spawn.call_one(1).get()
            u.kill(mesh)
            assert receiver.recv().get() == ("owned", [0], "signal")
            u.run_until_idle()
    failure = caught.value.failure
    assert failure is not None and failure.name == "proxy" and failure.reason.signal == 9


def test_failure_raised_in_the_script_is_not_repeated(default_hook):
    with Universe() as u:
        procs = u.host.spawn_procs()
        mesh = procs.spawn("sleeper", Sleeper)
        call = mesh.nap.call_one(HOUR)
        u.kill(procs)
        with pytest.raises(SupervisionError):
            call.get()


def test_own_error_comes_first(default_hook):
    with pytest.raises(ZeroDivisionError) as caught:
        with Universe() as u:
            mesh = u.host.spawn_procs().spawn("sleeper", Sleeper)
            mesh.fail_later.broadcast(1.0)
            u.run_until_idle()
            raise ZeroDivisionError
    assert "after a while" in caught.value.__notes__[0]


def test_unhandled_failures_reach_the_scripts_hook(monkeypatch):
    failures = []
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", failures.append)
    with Universe() as u:
        u.host.spawn_procs().spawn("sleeper", Sleeper).fail_later.broadcast(HOUR)
        u.run_until_idle()
    assert [f.name for f in failures] == ["sleeper"]

    def refuses(failure):
        raise SystemExit(3)

    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", refuses)
    with pytest.raises(SupervisionError, match="after a while"):
        with Universe() as u:
            u.host.spawn_procs().spawn("sleeper", Sleeper).fail_later.broadcast(HOUR)
            u.run_until_idle()


def test_procs_of_a_killed_owner_end(universe):
    port, receiver = Channel.open()
    procs = universe.host.spawn_procs()
    owner = procs.spawn("owner", Owner, True, port)
    mesh = owner.spawn.call_one(1).get()
    universe.kill(procs)
    with pytest.raises(SupervisionError):
        mesh.nap.call(HOUR).get()
    universe.run_until_idle()
    assert universe._procs == {}


# ---- stop and clean-up


def test_stop_bounds_take_no_time(universe):
    port, receiver = Channel.open()
    procs = universe.host.spawn_procs(per_host={"procs": 2})
    mesh = procs.spawn("sleeper", Sleeper, port)
    mesh.nap.broadcast(1000 * HOUR)
    mesh.stop().get()
    assert [receiver.recv().get(), receiver.recv().get()] == ["cancelled"] * 2
    assert 0 < universe.clock.now() < HOUR


def test_clean_up_bounds_take_no_time(universe):
    port, receiver = Channel.open()
    procs = universe.host.spawn_procs()
    short, long = procs.spawn("short", Cleaner, port, 2.0), procs.spawn("long", Cleaner, port, HOUR)
    short.stop().get()
    assert receiver.recv().get() == ("clean", None) and universe.clock.now() == 2.0
    with pytest.raises(SupervisionError, match="__cleanup__ took longer"):
        long.stop().get()
    assert universe.clock.now() < HOUR


def test_stop_does_not_wait_for_a_sync_endpoint(universe, capfd):
    procs = universe.host.spawn_procs()
    mesh = procs.spawn("echo", Echo)
    call = mesh.nap.call_one(universe, 1000 * HOUR)
    mesh.stop().get()
    assert "still in nap" in capfd.readouterr().err
    with pytest.raises(SupervisionError, match="stopped"):
        call.get()
    procs.stop().get()
    assert universe.clock.now() < HOUR


def test_shutdown_ends_the_universes_procs(universe):
    universe.host.spawn_procs().spawn("echo", Echo)
    shutdown_context().get()
    with pytest.raises(RuntimeError, match="shut down"):
        universe.host.spawn_procs()
    assert universe._procs == {}
