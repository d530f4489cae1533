"""Universes: whole runtimes in this process, on a clock that jumps."""

from __future__ import annotations

import asyncio
import gc
import os
import threading

import pytest
from fresh_script import interrupt, run
from universe_actors import Caller, Concurrent, Echo, Late, Owner, Sleeper

import monarch.actor
from monarch.actor import ActorError, Channel, SupervisionError, context, current_rank, this_host, this_proc
from monarch.actor.testing import Universe

HOUR = 3600.0
PRELUDE = f"import sys; sys.path.append({os.path.dirname(__file__)!r})\n"


@pytest.fixture
def universe():
    with Universe() as u:
        yield u


# ---- a runtime like any other


def test_hosts_procs_actors(universe):
    procs = universe.hosts(2).spawn_procs(per_host={"procs": 3})
    mesh = procs.spawn("echo", Echo)
    assert dict(mesh.extent) == {"hosts": 2, "procs": 3}
    assert [v for _, v in mesh.rank.call().get().items()] == list(range(6))
    assert procs.initialized.get() and mesh.initialized.get() is None
    assert mesh.slice(hosts=1).rank.call().get().item(procs=2) == 2
    pids = {pid for _, (pid, _) in mesh.where.call().get().items()}
    assert pids == {os.getpid()}
    threads = {name for _, (_, name) in mesh.where.call().get().items()}
    assert threads == {"actor echo"}
    assert sorted(f.get() for f in mesh.echo.stream("x")) == ["x"] * 6
    mesh.stop().get()
    with pytest.raises(SupervisionError, match="stopped"):
        mesh.rank.call().get()


def test_messages_are_pickled(universe):
    mesh = universe.host.spawn_procs().spawn("echo", Echo)
    sent = [1, {"a": b"x" * (1 << 20)}]
    got = mesh.echo.call_one(sent).get()
    assert got == sent and got is not sent
    with pytest.raises(TypeError, match="pickle"):
        mesh.echo.call_one(threading.Lock())
    with pytest.raises(monarch.actor.ActorError, match="the text"):
        mesh.fail.call_one("the text").get()


def test_ports_and_controllers(universe):
    mesh = universe.host.spawn_procs(per_host={"procs": 2}).spawn("echo", Echo)
    port, receiver = Channel.open()
    mesh.into.broadcast(port, 7)
    assert [receiver.recv().get(), receiver.recv().get()] == [7, 7]
    assert sorted(v for _, v in mesh.count.call("shared").get().items()) == [1, 2]


def test_this_host_is_the_universes():
    with Universe() as u:
        assert this_host() == u.host == u.this_host()
        inside = str(context().actor_instance.actor_id)
        assert this_proc().spawn("echo", Echo).echo.call_one(1).get() == 1
        found = []
        thread = threading.Thread(target=lambda: found.append(str(context().actor_instance.actor_id)))
        thread.start()
        thread.join()
    outside = str(context().actor_instance.actor_id)
    assert found == [outside] != [inside]
    assert current_rank().rank == 0


def test_nested_spawns(universe):
    port, receiver = Channel.open()
    owner = universe.hosts(2).spawn_procs().spawn("owner", Owner, True, port).slice(hosts=1)
    mesh = owner.spawn.call_one(2).get()
    assert [v for _, v in mesh.nap.call(HOUR).get().items()] == [HOUR, HOUR]
    # The killed host is that of their owner, whose end ends all of them.
    universe.kill(universe.hosts(2).slice(hosts=1))
    with pytest.raises(SupervisionError):
        mesh.nap.call(0.0).get()


# ---- time


def test_hours_of_timeouts(universe):
    mesh = universe.host.spawn_procs(per_host={"procs": 2}).spawn("sleeper", Sleeper)
    naps = mesh.nap.call(24 * HOUR)
    with pytest.raises(TimeoutError, match="no result after 3600"):
        naps.get(timeout=HOUR)
    assert universe.clock.now() == HOUR
    assert [v for _, v in naps.get().items()] == [24 * HOUR, 24 * HOUR]
    assert universe.clock.now() == 24 * HOUR


def test_sleeping_actors_run_in_order_of_time(universe):
    mesh = universe.host.spawn_procs(per_host={"procs": 3}).spawn("sleeper", Sleeper)
    order = [mesh.slice(procs=i).nap.call_one(t) for i, t in enumerate([30.0, 10.0, 20.0])]
    assert [f.get() for f in order] == [30.0, 10.0, 20.0]
    assert universe.clock.now() == 30.0


def test_actors_that_wait_for_each_other(universe):
    procs = universe.host.spawn_procs(per_host={"procs": 2})
    mesh = procs.spawn("a", Sleeper)
    first, second = mesh.slice(procs=0), mesh.slice(procs=1)
    assert first.call.call_one(second, HOUR).get(timeout=HOUR + 1) == HOUR
    # Work in an executor counts: time waits for it, and runs on while it waits.
    assert first.in_thread.call_one(second, HOUR).get() == 2 * HOUR


def test_sync_endpoints_sleep_too(universe):
    mesh = universe.host.spawn_procs().spawn("echo", Echo)
    assert mesh.nap.call_one(universe, HOUR).get() == HOUR
    universe.sleep(1.0)  # sleeps: simulated time
    assert universe.clock.now() == HOUR + 1


def test_postponed_function_runs_between_the_actors(universe):
    mesh = universe.host.spawn_procs().spawn("sleeper", Sleeper)
    nap = mesh.nap.call_one(100.0)
    seen = []
    universe.later(50.0, lambda: seen.append(nap._done()))
    universe.later(150.0, lambda: seen.append(nap._done()))
    universe.run_for(60.0)
    assert seen == [False] and universe.clock.now() == 60.0
    universe.run_until_idle()
    assert seen == [False, True] and universe.clock.now() == 150.0


def test_busy_holds_time(universe):
    nap = universe.host.spawn_procs().spawn("sleeper", Sleeper).nap.call_one(HOUR)
    told, done = threading.Event(), []

    def outside(hold):
        told.wait()
        done.append(universe.clock.now())
        hold.__exit__(None, None, None)

    hold = universe.busy()
    hold.__enter__()
    thread = threading.Thread(target=outside, args=(hold,))
    thread.start()
    told.set()
    assert nap.get() == HOUR
    thread.join()
    assert done == [0.0]


def test_waiting_for_ever_is_an_error(universe):
    _port, receiver = Channel.open()
    with pytest.raises(RuntimeError, match="would wait for ever"):
        receiver.recv().get()
    assert universe.host.spawn_procs().spawn("echo", Echo).echo.call_one(1).get() == 1


def test_futures_of_async_functions(universe):
    hosts = universe.hosts(2)
    hosts.spawn_procs(per_host={"procs": 2}).spawn("sleeper", Sleeper).nap.broadcast(24 * HOUR)
    assert hosts.stop().get() is None
    assert universe.clock.now() < 24 * HOUR


def test_concurrent_endpoints(universe):
    mesh = universe.host.spawn_procs(per_host={"procs": 2}).spawn("concurrent", Concurrent)
    first, second = mesh.slice(procs=0), mesh.slice(procs=1)
    naps = [first.nap.call_one(float(i)) for i in range(50, 0, -1)]
    assert [nap.get() for nap in naps] == [float(i) for i in range(50, 0, -1)]
    assert universe.clock.now() == 50.0
    with pytest.raises(ActorError, match="TimeoutError"):
        first.call.call_one(second, 20.0, 10.0).get()
    assert universe.clock.now() == 60.0


def test_sync_endpoint_stops_its_own_meshes(universe):
    mesh = universe.host.spawn_procs(per_host={"procs": 2}).spawn("caller", Caller)
    mesh.spawn_and_stop.call().get()
    assert 3.0 <= universe.clock.now() < 1000.0


def test_bootstrap(universe):
    def fails():
        raise ValueError("the text")

    procs = universe.host.spawn_procs(bootstrap=fails)
    with pytest.raises(ActorError, match="the text"):
        procs.initialized.get()
    ran = universe.host.spawn_procs(bootstrap=lambda: os.environ.__setitem__("UNIVERSE_TEST", "1"))
    assert ran.initialized.get()
    assert os.environ.pop("UNIVERSE_TEST") == "1"


def test_back_pressure(universe):
    mesh = universe.host.spawn_procs().spawn("echo", Echo)
    mesh.nap.broadcast(universe, HOUR)
    for _ in range(300):
        mesh.echo.broadcast(b"x" * 60_000)
    assert mesh.echo.call_one(1).get() == 1
    assert universe.clock.now() == HOUR


def test_async_with():
    async def main():
        loop = asyncio.get_running_loop()
        before = loop.time()
        async with Universe() as u:
            mesh = u.hosts(2).spawn_procs().spawn("sleeper", Sleeper)
            nap = asyncio.ensure_future(mesh.nap.call(2 * HOUR).as_asyncio())
            await asyncio.sleep(HOUR)  # sleeps: simulated time
            assert u.clock.now() == HOUR and not nap.done()
            assert [v for _, v in (await nap).items()] == [2 * HOUR] * 2
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(mesh.nap.call(24 * HOUR).as_asyncio(), HOUR)
            assert this_host() == u.host
        assert loop.time() - before < HOUR

    asyncio.run(main())


def test_coroutine_runs_on_its_own_loop(universe):
    mesh = universe.host.spawn_procs().spawn("sleeper", Sleeper)

    async def main():
        await asyncio.sleep(HOUR)  # sleeps: simulated time
        return await mesh.nap.call_one(HOUR)

    assert universe.run(main()) == 2 * HOUR


def test_seed_decides_among_equals():
    def order(seed):
        with Universe(seed) as u:
            port, receiver = Channel.open()
            mesh = u.host.spawn_procs(per_host={"procs": 6}).spawn("echo", Echo)
            naps = []
            for i in range(6):
                one = mesh.slice(procs=i)
                naps.append(one.nap.call_one(u, 10.0))
                # The first actor sleeps before the next one begins to sleep.
                u.run_for(1.0)
                u.run_for(0.0)
            for nap in naps:
                nap.get()
            assert u.clock.now() == 15.0
            del port, receiver

    order(0)
    order(1)


# ---- separate worlds


def test_nested_universes_have_their_own_clocks():
    with Universe() as a:
        one = a.host.spawn_procs().spawn("sleeper", Sleeper)
        with Universe() as b:
            other = b.host.spawn_procs().spawn("sleeper", Sleeper)
            assert other.nap.call_one(HOUR).get() == HOUR
            assert this_host() == b.host != a.host
            assert one.nap.call_one(10.0).get() == 10.0
        assert this_host() == a.host
        assert (a.clock.now(), b.clock.now()) == (10.0, HOUR)


def test_threads_have_their_own_universes():
    found = {}

    def work(name, seconds):
        with Universe() as u:
            mesh = u.hosts(2).spawn_procs().spawn("sleeper", Sleeper)
            for _ in range(20):
                mesh.nap.call(seconds).get()
            found[name] = u.clock.now()

    threads = [threading.Thread(target=work, args=(i, HOUR * (i + 1))) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: 20 * HOUR, 1: 40 * HOUR}


def test_misuse_of_a_universe_is_refused():
    u = Universe()
    with pytest.raises(RuntimeError, match="not entered"):
        u.hosts(1)
    with u, pytest.raises(ValueError, match="at least 1"):
        u.hosts(0)
    with pytest.raises(RuntimeError, match="once"), u:
        pass

    async def sync_in_a_loop():
        with pytest.raises(RuntimeError, match="async with"), Universe():
            pass

    asyncio.run(sync_in_a_loop())


def test_results_outlive_their_universe():
    with Universe() as u:
        mesh = u.host.spawn_procs().spawn("sleeper", Sleeper)
        done, late = mesh.nap.call_one(1.0), mesh.nap.call_one(HOUR)
        u.run_for(2.0)
    assert done.get() == 1.0
    with pytest.raises((SupervisionError, RuntimeError)):
        late.get()
    with pytest.raises((SupervisionError, RuntimeError)):
        mesh.nap.call_one(1.0).get()
    with pytest.raises(RuntimeError, match="not entered"):
        u.hosts(1)


def test_thread_that_ends_late_holds_nothing():
    """The interpreter has freed the object of a thread, and not yet the objects that the thread's own state refers to."""
    try:
        with Universe() as u:
            mesh = u.host.spawn_procs().spawn("late", Late)
            mesh.begin.call_one().get()
            mesh.stop().get()
            assert Late.ends.wait(10.0)
        del u, mesh
        gc.collect()
        assert [process() for process in Late.processes] == [None]
    finally:
        Late.may_end.set()


def test_two_hundred_universes_leave_nothing():
    run(
        """
        import gc, os, threading, time
        from universe_actors import Echo, Sleeper, Owner
        from monarch.actor import Channel
        from monarch.actor.testing import Universe, assert_clean

        def memory():
            with open("/proc/self/statm") as f:
                return int(f.read().split()[1]) * 4096

        def look():
            gc.collect()
            return len(os.listdir("/proc/self/fd")), threading.active_count(), memory()

        def one(i):
            with Universe() as u:
                procs = u.hosts(2).spawn_procs(per_host={"procs": 2})
                port, receiver = Channel.open()
                echo, sleeper = procs.spawn("echo", Echo), procs.spawn("sleeper", Sleeper)
                assert [v for _, v in echo.rank.call().get().items()] == [0, 1, 2, 3]
                assert len(sleeper.nap.call(3600.0).get()) == 4
                owner = procs.slice(hosts=0, procs=0).spawn("owner", Owner, True, port)
                mesh = owner.spawn.call_one(1).get()
                u.kill(mesh if i % 2 else procs.slice(hosts=1, procs=1))
                if i % 2:
                    assert receiver.recv().get()[0] == "owned"

        import monarch.actor
        monarch.actor.unhandled_fault_hook = lambda failure: None
        for i in range(20):
            one(i)
        fds, threads, before = look()
        for i in range(200):
            one(i)
        now = look()
        assert now[:2] == (fds, threads), (now, fds, threads)
        assert now[2] < before + (16 << 20), (now, before)
        assert_clean()
        names = set(os.listdir("/proc/self/task"))
        assert len(names) <= 2, names
        """,
        prelude=PRELUDE,
    ).assert_clean()


def test_open_universe_at_exit_keeps_the_exit_code():
    result = run(
        """
        from universe_actors import Sleeper
        from monarch.actor.testing import Universe
        u = Universe().__enter__()
        u.host.spawn_procs().spawn("sleeper", Sleeper).nap.call(3600.0).get()
        sys.exit(7)
        """,
        prelude=PRELUDE,
    )
    assert result.code == 7


def test_ctrl_c_in_a_wait():
    done = interrupt(
        PRELUDE
        + """
from monarch.actor import Actor, endpoint
from monarch.actor.testing import Universe
import os, time

class Busy(Actor):
    @endpoint
    def work(self):
        os.write(1, b"ready\\n")
        while os.getppid() != 0:
            time.sleep(0.01)  # sleeps: until the test says that it is enough
            if os.environ.get("ENOUGH"):
                return

try:
    with Universe() as u:
        busy = this_host().spawn_procs().spawn("busy", Busy)
        try:
            busy.work.call_one().get()
        finally:
            os.environ["ENOUGH"] = "1"
except KeyboardInterrupt:
    os.write(1, b"interrupted\\n")
    raise
""",
        "ready",
    )
    done.assert_interrupted()
    assert "interrupted" in done.out


def test_universe_beside_a_client_leaves_nothing():
    run(
        """
        from monarch.actor import this_host
        from monarch.actor.testing import Universe, assert_clean
        from universe_actors import Echo
        with this_host().spawn_procs() as procs:
            real = procs.spawn("echo", Echo)
            assert real.echo.call_one(1).get() == 1
            with Universe() as u:
                u.hosts(2).spawn_procs().spawn("echo", Echo).echo.call(1).get()
                assert real.echo.call_one(2).get() == 2
            assert real.echo.call_one(3).get() == 3
        assert_clean()
        """,
        prelude=PRELUDE,
    ).assert_clean()
