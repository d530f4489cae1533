"""A fork of a process that uses Monarch: the child is inert, gets an error, and does not harm its parent."""

from __future__ import annotations

import pytest
from fresh_script import run

FORK = """
procs = this_host().spawn_procs(per_host={"procs": 2})
mesh = procs.spawn("echo", Echo)
future = mesh.echo.call(1)
assert list(mesh.echo.call(7).get().values()) == [7] * 2

def in_child(body):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        body()
        return True
    assert os.waitpid(pid, 0)[1] == 0
    return False

def refused(*uses):
    for use in uses:
        try:
            use()
        except RuntimeError as e:
            text = str(e)
            assert f"forked from process {os.getppid()}" in text and "spawn" in text and "forkserver" in text, text
            continue
        say(f"not refused: {use.__code__.co_names if hasattr(use, '__code__') else use}")
        os._exit(9)

def parent_is_well():
    assert list(mesh.echo.call(8).get().values()) == [8] * 2
    assert list(future.get().values()) == [1] * 2
"""


def test_use_is_refused():
    done = run(
        FORK
        + """
from monarch.actor import Channel, get_or_spawn_controller, shutdown_context
from monarch import extension
port, receiver = Channel.open()
class Sleeper(Actor):
    @endpoint
    def sleep(self):
        threading.Event().wait()
pending = procs.spawn("sleeper", Sleeper).sleep.call()
hosts = this_host()
extension.serve("fork.echo", lambda request: b"")
def body():
    refused(
        context,
        this_host,
        this_proc,
        lambda: mesh.echo.call(1).get(),
        lambda: mesh.echo.broadcast(1),
        lambda: procs.spawn("e", Echo),
        lambda: procs.stop().get(),
        lambda: mesh.stop().get(),
        lambda: pending.get(),
        lambda: port.send(1),
        lambda: receiver.recv().get(),
        Channel.open,
        lambda: get_or_spawn_controller("c", Echo).get(),
        lambda: extension.serve("fork.echo", lambda request: b""),
        lambda: extension.ask(3, "fork.echo"),
        lambda: extension.service(hosts, "any"),
    )
    assert shutdown_context().get() is None
    os._exit(0)
in_child(body)
parent_is_well()
"""
    )
    done.assert_clean()


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "os._exit(0)"])
def test_child_ends_and_the_parent_goes_on(end):
    # A normal end of the child runs its exit handlers and destructors, which affect nothing of the parent's.
    done = run(
        FORK
        + f"""
def body():
    global mesh, procs, future
    del mesh, procs, future
    import gc
    gc.collect()
    {end}
if not in_child(body):
    parent_is_well()
    print("parent")
"""
    )
    done.assert_clean()
    assert done.out == "parent\n"


def test_fork_before_use_is_a_fresh_start():
    done = run(
        """
        pid = os.fork()
        mesh = this_host().spawn_procs().spawn("echo", Echo)
        assert mesh.echo.call_one(3).get() == 3
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
        """
    )
    done.assert_clean()


def test_fork_of_a_thread():
    done = run(
        FORK
        + """
def body():
    refused(context)
    os._exit(0)
thread = threading.Thread(target=in_child, args=(body,))
thread.start()
thread.join()
parent_is_well()
"""
    )
    done.assert_clean()


def test_fork_in_an_actor():
    done = run(
        """
        class Forker(Actor):
            @endpoint
            def fork(self, way):
                pid = os.fork()
                if pid == 0:
                    try:
                        context()
                    except RuntimeError as e:
                        ok = f"forked from process {os.getppid()}" in str(e)
                    else:
                        ok = False
                    if way == "exit":
                        sys.exit(0 if ok else 9)
                    os._exit(0 if ok else 9)
                return os.waitpid(pid, 0)[1]
            @endpoint
            def well(self):
                return "well"
        forker = this_host().spawn_procs(per_host={"procs": 2}).spawn("forker", Forker)
        assert list(forker.fork.call("_exit").get().values()) == [0, 0]
        assert list(forker.well.call().get().values()) == ["well"] * 2
        """
    )
    done.assert_clean()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_multiprocessing_in_the_client(method):
    done = run(
        f"""
        import multiprocessing
        if __name__ == "__main__":
            mesh = this_host().spawn_procs().spawn("echo", Echo)
            with multiprocessing.get_context("{method}").Pool(2) as pool:
                assert pool.map(abs, [-1, -2]) == [1, 2]
            assert mesh.echo.call_one(1).get() == 1
        """
    )
    # The servers of multiprocessing end when they notice that the script has ended.
    assert (done.code, done.err) == (0, "")


def test_handles_work_in_a_spawned_multiprocessing_child():
    done = run(
        """
        import multiprocessing
        from monarch.actor import Extent
        if __name__ == "__main__":
            this_host().spawn_procs().initialized.get()
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                assert pool.map(str, [Extent(["a"], [2])]) == ["{a: 2}"]
        """
    )
    done.assert_clean()


def test_start_method_in_processes_is_forkserver():
    done = run(
        """
        class User(Actor):
            @endpoint
            def loaded(self):
                return "multiprocessing.pool" in sys.modules
            @endpoint
            def methods(self):
                import multiprocessing
                before = multiprocessing.get_context().get_start_method()
                with multiprocessing.Pool(2) as pool:
                    doubled = pool.map(abs, [-1, -2])
                multiprocessing.set_start_method("spawn", force=True)
                return before, doubled, multiprocessing.get_start_method()
            @endpoint
            def chosen(self):
                import multiprocessing
                multiprocessing.set_start_method("fork")
                return multiprocessing.get_start_method()
            @endpoint
            def futures(self):
                from concurrent.futures import ProcessPoolExecutor
                with ProcessPoolExecutor(1) as pool:
                    return pool.submit(abs, -3).result()
        import multiprocessing
        assert multiprocessing.get_start_method(allow_none=True) is None
        procs = this_host().spawn_procs(per_host={"procs": 3})
        u = procs.spawn("user", User)
        assert u.slice(procs=0).methods.call_one().get() == ("forkserver", [1, 2], "spawn")
        assert u.slice(procs=1).chosen.call_one().get() == "fork"
        assert u.slice(procs=2).futures.call_one().get() == 3
        """
    )
    done.assert_clean()


def test_start_method_in_processes_started_by_a_command():
    done = run(
        """
        from monarch.actor import default_bootstrap_cmd
        class User(Actor):
            @endpoint
            def method(self):
                import multiprocessing
                return multiprocessing.get_start_method()
        procs = this_host().spawn_procs(bootstrap_command=default_bootstrap_cmd())
        assert procs.spawn("user", User).method.call_one().get() == "forkserver"
        """
    )
    done.assert_clean()


def test_fork_during_the_first_wait_is_safe():
    """A fork at any moment finds no half-made state that only the parent would complete: another thread forks while the main thread
    prepares its first wait.
    """
    done = run(
        """
        import types
        import _signal
        def fork():
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            try:
                eventually("the child has ended", lambda: os.waitpid(pid, os.WNOHANG)[0], seconds=20)
            except AssertionError:
                say("the child hangs")
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        class Forking(types.ModuleType):
            def __getattribute__(self, name):
                forker = threading.Thread(target=fork)
                forker.start()
                forker.join()
                return getattr(_signal, name)
        this_host()
        sys.modules["_signal"] = Forking("_signal")
        echo = this_host().spawn_procs().spawn("echo", Echo)
        assert echo.echo.call_one(1).get() == 1
        sys.modules["_signal"] = _signal
        fork()
        """
    )
    done.assert_clean()
    assert done.out == ""
