"""Meshes of processes: the state of a proc, the right to stop it, the course of a stop."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from weakref import WeakValueDictionary

import pytest
from fresh import lines, run
from mesh_actors import Probe

from monarch._core.process.current import current_process
from monarch.actor import (
    ProcMesh,
    SpawnError,
    get_active_proc_meshes,
    register_proc_mesh_spawn_callback,
    this_host,
    unregister_proc_mesh_spawn_callback,
)
from monarch.config import configured


@pytest.fixture(scope="module")
def quad():
    mesh = this_host().spawn_procs({"hosts": 2, "gpus": 2}, name="quad")
    yield mesh
    mesh.stop().get()


@pytest.fixture(scope="module")
def probe(quad):
    return quad.spawn("probe", Probe)


# ---- the state of a proc


def look(actor, expression):
    return actor.evaluate.call_one(expression).get()


@pytest.fixture(scope="module")
def forked_and_executed():
    os.environ["MESH_TEST_VARIABLE"] = "inherited"
    forked = this_host().spawn_procs(name="forked")
    with configured(spawn_method="exec"):
        executed = this_host().spawn_procs(name="executed")
    yield forked.spawn("probe", Probe), executed.spawn("probe", Probe)
    del os.environ["MESH_TEST_VARIABLE"]
    forked.stop().get()
    executed.stop().get()


@pytest.mark.parametrize(
    "expression",
    [
        "sys.argv",
        "sys.path",
        "sorted(vars(sys.modules['__main__']))",
        "dict(os.environ)",
        "os.getcwd()",
        "tuple(sys.flags)",
        "sys.warnoptions",
        "[str(signal.getsignal(s)) for s in (1, 2, 10, 12, 13, 15, 17)]",
        "signal.pthread_sigmask(signal.SIG_BLOCK, ())",
        "(sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdout.encoding, sys.stdin.read())",
        "sorted(os.path.basename(os.readlink(f'/proc/self/fd/{f}')).split('[')[0]"
        " for f in range(256) if os.path.islink(f'/proc/self/fd/{f}'))",
        "(os.getpgid(0) == os.getpid(), gc.isenabled(), threading.main_thread() is threading.current_thread())",
        "time.tzname",
        "__import__('resource').getrlimit(7)",
        "os.umask(os.umask(0o77))",
    ],
)
def test_fork_and_exec_look_the_same(forked_and_executed, expression):
    forked, executed = (look(actor, expression) for actor in forked_and_executed)
    assert forked == executed


def test_proc_inherits_from_the_client(forked_and_executed):
    for actor in forked_and_executed:
        assert look(actor, "os.environ['MESH_TEST_VARIABLE']") == "inherited"
        assert look(actor, "sys.path") == sys.path
        assert look(actor, "os.getcwd()") == os.getcwd()
        assert look(actor, "signal.pthread_sigmask(signal.SIG_BLOCK, ())") == set()
        assert look(actor, "os.getpgid(0) == os.getpid()")


def test_no_descriptor_of_the_client_leaks():
    done = run("""
        import os
        read, write = os.pipe()
        for fd in (read, write):
            os.set_inheritable(fd, True)
        name = os.readlink(f"/proc/self/fd/{read}")
        from monarch.actor import this_host
        from monarch.config import configured
        from mesh_actors import Probe
        seen = "[os.readlink(f'/proc/self/fd/{f}') for f in os.listdir('/proc/self/fd') if os.path.islink(f'/proc/self/fd/{f}')]"
        for method in ("auto", "exec"):
            with configured(spawn_method=method):
                found = this_host().spawn_procs().spawn("probe", Probe).evaluate.call_one(seen).get()
                print(name in found, len(found) > 3)
    """)
    assert lines(done.stdout) == ["False True", "False True"]


def test_later_procs_inherit_changed_environment_and_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MESH_TEST_LATER", "1")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with this_host().spawn_procs() as mesh:
        actor = mesh.spawn("probe", Probe)
        assert look(actor, "os.environ['MESH_TEST_LATER']") == "1"
        assert look(actor, "os.getcwd()") == str(tmp_path)
        assert look(actor, "sys.path[0]") == str(tmp_path)
        assert look(actor, "time.localtime(0).tm_hour") == 9


def test_variables_that_an_interpreter_reads_when_it_starts(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("PYTHONDEVMODE", "1")
    with this_host().spawn_procs() as mesh:
        actor = mesh.spawn("probe", Probe)
        assert look(actor, "sys.flags.dev_mode")
        assert look(actor, "sys.flags.hash_randomization") == 0


@pytest.mark.parametrize("name", ["CHOSEN", "PYTHON_CHOSEN"])
def test_variable_that_is_no_utf8_reaches_procs(name):
    # A Latin-1 text, which Python has with a surrogate. Variables of the second name make a fresh interpreter.
    done = run(
        f"""
        from mesh_actors import Probe
        from monarch.actor import this_host
        print(ascii(this_host().spawn_procs().spawn("probe", Probe).evaluate.call_one("__import__('os').environ[{name!r}]").get()))
        """,
        env={name: "caf\udce9"},
    )
    assert lines(done.stdout) == [r"'caf\udce9'"]


def test_start_variable_set_before_the_first_spawn_counts():
    done = run("""
        import os
        from monarch.actor import context, this_host
        context()
        os.environ["PYTHONDEVMODE"] = "1"
        from mesh_actors import Probe
        print(this_host().spawn_procs().spawn("probe", Probe).evaluate.call_one("sys.flags.dev_mode").get())
    """)
    assert lines(done.stdout) == ["True"]


def test_script_runs_once_and_its_classes_work():
    done = run("""
        import os
        print("script runs")
        from monarch.actor import Actor, endpoint, this_host
        class Here(Actor):
            @endpoint
            def name(self):
                import sys
                return type(self).__module__, sys.argv, "Here" in vars(sys.modules["__main__"])
        print(this_host().spawn_procs().spawn("here", Here).name.call_one().get())
    """)
    assert lines(done.stdout) == ["script runs", "('__main__', ['monarch-proc'], False)"]


def test_start_method_of_multiprocessing(probe):
    methods = probe.evaluate.call("__import__('multiprocessing').get_start_method()").get()
    assert set(methods.values()) == {"forkserver"}


def test_main_thread_is_free(probe):
    inside = "threading.current_thread() is threading.main_thread()"
    assert set(probe.evaluate.call(inside).get().values()) == {False}


# ---- ownership and stop


def test_slices_and_pickled_meshes_are_references(quad):
    for reference in (quad.slice(hosts=0), quad.flatten("all"), pickle.loads(pickle.dumps(quad))):
        with pytest.raises(ValueError, match="ProcMesh is not owned; must be stopped by an owner"):
            reference.stop()
    assert pickle.loads(pickle.dumps(quad)) == quad


def test_slice_of_the_whole_mesh_is_the_mesh(quad):
    assert quad.slice(hosts=slice(None)) is quad
    assert quad.slice() is quad
    assert quad.slice(hosts=slice(0, 2), gpus=slice(None, None, 1)) is quad
    assert quad.slice(gpus=0) is not quad


def test_common_idiom(quad, probe):
    rest = quad.flatten("rank").slice(rank=slice(1, None))
    assert rest.sizes == {"rank": 3}
    actors = rest.spawn("rest", Probe)
    assert list(actors.pid.call().get().values()) == list(probe.flatten("rank").slice(rank=slice(1, None)).pid.call().get().values())
    actors.stop().get()


def test_spawn_on_a_slice_has_its_shape(quad, probe):
    column = quad.slice(gpus=1).spawn("column", Probe)
    assert column.sizes == {"hosts": 2}
    assert list(column.pid.call().get().values()) == list(probe.slice(gpus=1).pid.call().get().values())
    ranks = column.rank.call().get()
    assert [str(own) for _, _, own in ranks.values()] == ["{'hosts': 0/2}", "{'hosts': 1/2}"]
    column.stop().get()


def test_host_mesh_of_slices(quad):
    for mesh in (quad, quad.slice(hosts=0, gpus=0), quad.slice(hosts=1)):
        assert mesh.host_mesh.extent.nelements == 1
        with pytest.raises(RuntimeError, match="reference"):
            mesh.host_mesh.shutdown()


def test_stop_is_done_once_and_refuses_later_spawns():
    mesh = this_host().spawn_procs({"gpus": 2})
    part = mesh.slice(gpus=0)
    actor = mesh.spawn("probe", Probe)
    pids = list(actor.pid.call().get().values())
    assert mesh.stop("enough").get() is None
    assert mesh.stop().get() is None
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    for stopped in (mesh, part):
        with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
            stopped.spawn("late", Probe)


def test_with_stops_also_after_an_exception():
    with pytest.raises(ZeroDivisionError), this_host().spawn_procs() as mesh:
        assert mesh.initialized.get() is True
        _ = 1 / 0
    with pytest.raises(RuntimeError, match="already been stopped"):
        mesh.spawn("late", Probe)


def test_async_with_stops():
    async def main():
        async with this_host().spawn_procs() as mesh:
            assert await mesh.initialized is True
        with pytest.raises(RuntimeError, match="already been stopped"):
            mesh.spawn("late", Probe)

    asyncio.run(main())


def test_stop_before_the_procs_are_up():
    mesh = this_host().spawn_procs({"gpus": 2})
    assert mesh.stop().get() is None


def test_graceful_stop_finalises_the_interpreter(tmp_path):
    with this_host().spawn_procs() as mesh:
        actor = mesh.spawn("probe", Probe)
        path = str(tmp_path / "ended")
        look(actor, f"__import__('atexit').register(lambda: open({path!r}, 'w').close())")
    assert os.path.exists(path)


def test_dropping_handles_stops_nothing():
    done = run("""
        import gc
        from monarch.actor import this_host
        from mesh_actors import Probe
        actor = this_host().spawn_procs().spawn("probe", Probe)
        actor = actor.slice()
        gc.collect()
        print(actor.pid.call_one().get() > 0)
    """)
    assert lines(done.stdout) == ["True"]


# ---- spawning


def test_spawner_owns_actors_on_a_referenced_mesh(quad, probe):
    (found,) = probe.slice(hosts=0, gpus=0).spawn_there.call(quad.slice(hosts=1)).get().values()
    handle, pids = found
    assert list(pids.values()) == list(probe.slice(hosts=1).pid.call().get().values())
    with pytest.raises(NotImplementedError, match="Cannot call stop on an ActorMeshRef, requires an owned ActorMesh"):
        handle.stop()
    assert list(handle.pid.call().get().values()) == list(pids.values())
    probe.slice(hosts=0, gpus=0).stop_mine.call_one().get()


def test_callbacks_run_before_spawn_procs_returns():
    seen = []
    register_proc_mesh_spawn_callback(seen.append)
    try:
        mesh = this_host().spawn_procs(name="watched")
        assert len(seen) == 1
        assert seen[0] is mesh
        assert isinstance(seen[0], ProcMesh)
    finally:
        unregister_proc_mesh_spawn_callback(seen.append)
    with this_host().spawn_procs(), mesh:
        assert len(seen) == 1
    with pytest.raises(ValueError, match="callback"):
        unregister_proc_mesh_spawn_callback(seen.append)


def test_active_meshes():
    before = get_active_proc_meshes()
    mesh = this_host().spawn_procs()
    assert [m for m in get_active_proc_meshes() if m not in before] == [mesh]
    mesh.stop().get()
    assert mesh not in get_active_proc_meshes()


def test_methods_of_other_wheels_name_their_wheel(quad):
    for call in (quad.activate, lambda: quad.rank_tensor("gpus"), quad.rank_tensors, quad.to_table):
        with pytest.raises(NotImplementedError, match="monarch-tensor"):
            call()
    with pytest.raises(NotImplementedError, match="HostMesh"):
        asyncio.run(quad.sync_workspace())


def test_non_callable_mesh_method_names_its_wheel(quad, monkeypatch):
    from monarch._core.config import entry_points

    found = entry_points.LoadedEntry("monarch.mesh", "to_table", "table 1.0", "table:ROWS", 7)
    monkeypatch.setitem(entry_points._known, ("monarch.mesh", "to_table"), found)
    text = r"table 1\.0: entry point 'to_table' of monarch\.mesh \(table:ROWS\) is 7, not a function"
    with pytest.raises(NotImplementedError, match=text) as caught:
        quad.to_table()
    assert "install a version of table" in str(caught.value)


def test_logging_option(quad, probe):
    async def main():
        await quad.slice(hosts=0).logging_option(level=10)
        for level in (-1, 256):
            with pytest.raises(ValueError, match="level"):
                await quad.logging_option(level=level)

    asyncio.run(main())
    levels = probe.evaluate.call("__import__('logging').getLogger().level").get()
    assert list(levels.slice(hosts=0).values()) == [10, 10]
    assert 10 not in list(levels.slice(hosts=1).values())


# ---- procs that do not start


def test_missing_program_is_a_spawn_error():
    done = run("""
        import os, sys
        from monarch.actor import BootstrapCommand, SpawnError, this_host
        mesh = this_host().spawn_procs({"gpus": 2}, bootstrap_command=BootstrapCommand("/does/not/exist"))
        try:
            mesh.initialized.get()
        except SpawnError as e:
            print(e)
    """)
    text = done.stdout
    assert text.startswith("2 of 2 procs did not start")
    assert text.count("/does/not/exist") >= 2
    assert "last output:" in text
    assert "No such file or directory" in text
    assert "127" in text
    assert done.stderr.count("\n") == 2  # the output of the two processes
    assert "Unhandled" not in done.stderr


def test_exit_in_bootstrap_is_a_spawn_error():
    done = run("""
        import os
        from monarch.actor import SpawnError, this_host
        from mesh_actors import Probe
        def leave():
            print("about to leave")
            os._exit(7)
        mesh = this_host().spawn_procs({"gpus": 2}, bootstrap=leave)
        actor = mesh.spawn("probe", Probe)
        for future in (mesh.initialized, mesh.initialized):
            try:
                future.get()
            except SpawnError as e:
                print(str(e))
        for i in range(2):
            try:
                actor.slice(gpus=i).pid.call().get()
            except RuntimeError as e:
                # One string: the output of the other proc may arrive between the arguments of `print`.
                print(f"call: {type(e).__name__} {'code 7' in str(e)}")
    """)
    assert "procs did not start" in done.stdout
    assert "code 7" in done.stdout
    assert "about to leave" in done.stdout
    assert done.stdout.count("call: SupervisionError True") == 2
    assert "Unhandled" not in done.stderr


def test_spawning_on_a_lost_proc():
    done = run("""
            from monarch.actor import SpawnError, SupervisionError, this_host
            import monarch.actor
            monarch.actor.unhandled_fault_hook = lambda failure: None
            from mesh_actors import Probe
            mesh = this_host().spawn_procs({"gpus": 2})
            actor = mesh.spawn("probe", Probe)
            try:
                actor.slice(gpus=0).die.call().get()
            except SupervisionError as e:
                print("call", "Killed(sig=9)" in str(e))
            again = mesh.spawn("again", Probe)
            for use in (lambda: again.initialized.get(), lambda: again.pid.call().get()):
                try:
                    use()
                except SpawnError as e:
                    print("spawn", "error spawning actor mesh again: " in str(e), "Killed(sig=9)" in str(e))
            other = mesh.slice(gpus=1).spawn("other", Probe)
            print(len(other.pid.call().get()), len(again.slice(gpus=1).pid.call().get()))
        """)
    assert lines(done.stdout) == ["call True", "spawn True True", "spawn True True", "1 1"]


def test_stopped_meshes_are_forgotten():
    process = current_process()
    before = len(process.meshes.owned)
    for _ in range(3):
        mesh = this_host().spawn_procs()
        mesh.spawn("probe", Probe)
        mesh.stop().get()
    del mesh
    assert len(process.meshes.owned) == before
    assert isinstance(process.meshes.known, WeakValueDictionary)
    assert issubclass(SpawnError, RuntimeError)
