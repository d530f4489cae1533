"""No thread can be started: the actor that needs one fails, the process and its other actors continue, and failures are still reported."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from fresh_script import run

# Limits the address space so that no further thread stack fits, for users with any rights.
LIMIT = """
import resource

def limit():
    threading.stack_size(256 << 20)
    with open("/proc/self/statm") as f:
        pages = int(f.read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (128 << 20), resource.RLIM_INFINITY))

def free():
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)

class Limited(Actor):
    @endpoint
    def limit(self, yes):
        limit() if yes else free()
        return os.getpid()
"""


@pytest.mark.parametrize("way", ["call", "initialized", "broadcast"])
def test_actor_without_a_thread_fails_alone(way):
    done = run(
        LIMIT
        + f"""
import monarch.actor
from monarch.actor import SpawnError
failures = []
monarch.actor.unhandled_fault_hook = failures.append
procs = this_host().spawn_procs()
limited, first = procs.spawn("limited", Limited), procs.spawn("first", Echo)
pid = limited.limit.call_one(True).get()
assert first.echo.call_one(1).get() == 1
late = procs.spawn("late", Echo)
try:
    if "{way}" == "call":
        late.echo.call_one(1).get()
    elif "{way}" == "initialized":
        late.initialized.get()
    else:
        late.echo.broadcast(1)
        eventually("a failure", lambda: first.echo.call_one(1).get() and failures)
        late.echo.call_one(1).get()
except SpawnError as e:
    assert "no thread can be started for the actor" in str(e), e
    assert e.failure.reason.kind == "not_started"
else:
    raise AssertionError("it started")
# The news of a mesh that has been stopped is no news any more.
eventually("the call of the hook", lambda: failures)
try:
    late.echo.call_one(1).get()
except SpawnError as e:
    late.stop().get()
assert first.echo.call_one(2).get() == 2
assert limited.limit.call_one(False).get() == pid
assert procs.spawn("again", Echo).echo.call_one(3).get() == 3
procs.stop().get()
assert [f.reason.kind for f in failures] == ["not_started"], failures
"""
    )
    done.assert_clean()


def test_owner_handles_an_actor_without_a_thread():
    done = run(
        LIMIT
        + """
class Owner(Limited):
    def __init__(self):
        self.failures = []
    @endpoint
    def spawn(self):
        self.mesh = this_proc().spawn("late", Echo)
    @endpoint
    def seen(self):
        return self.failures
    def __supervise__(self, failure):
        self.failures.append(failure.reason.kind)
        return True
owner = this_host().spawn_procs().spawn("owner", Owner)
owner.limit.call_one(True).get()
owner.spawn.call_one().get()
seen = eventually("a failure", lambda: owner.seen.call_one().get())
assert seen == ["not_started"]
"""
    )
    done.assert_clean()


def test_unhandled_failure_without_a_thread_ends_the_client():
    done = run(
        LIMIT
        + """
echo = this_host().spawn_procs().spawn("limited", Limited)
pid = echo.limit.call_one(False).get()
del echo
limit()
os.kill(pid, signal.SIGKILL)
threading.Event().wait()
"""
    )
    assert (done.code, done.left) == (1, []), done
    assert "Unhandled monarch error" in done.err and "Killed(sig=9)" in done.err


def test_client_without_a_thread_does_not_start():
    done = run(
        LIMIT
        + """
limit()
try:
    this_host().spawn_procs()
except RuntimeError as e:
    assert "can't start new thread" in str(e), e
else:
    raise AssertionError("it started")
free()
assert this_host().spawn_procs().spawn("echo", Echo).echo.call_one(1).get() == 1
"""
    )
    done.assert_clean()


def pids_folder() -> Path | None:
    for folder in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")):
        if (folder / "cgroup.procs").exists() and os.access(folder / "cgroup.procs", os.W_OK):
            made = folder / f"monarch-test-{os.getpid()}"
            try:
                made.mkdir()
            except OSError:
                continue
            if (made / "pids.max").exists():
                return made
            made.rmdir()
    return None


@pytest.fixture
def pids_cgroup():
    folder = pids_folder()
    if folder is None:
        pytest.skip("no cgroup of pids can be made")
    yield folder
    folder.rmdir()


def test_limit_of_pids_fails_spawns_only(pids_cgroup):
    done = run(
        f"""
        import monarch.actor
        from monarch.actor import SpawnError
        monarch.actor.unhandled_fault_hook = lambda failure: None
        procs = this_host().spawn_procs()
        first = procs.spawn("first", Echo)
        assert first.echo.call_one(1).get() == 1
        with open("{pids_cgroup}/cgroup.procs", "w") as f:
            f.write(str(os.getpid()))
        def move(pid):
            with open("{pids_cgroup}/cgroup.procs", "w") as f:
                f.write(str(pid))
        class Pid(Actor):
            @endpoint
            def pid(self):
                return os.getpid(), os.getppid()
        for pid in procs.spawn("pid", Pid).pid.call_one().get():
            move(pid)
        with open("{pids_cgroup}/pids.current") as f:
            now = int(f.read())
        with open("{pids_cgroup}/pids.max", "w") as f:
            f.write(str(now + 3))
        ok = refused = 0
        for i in range(10):
            mesh = procs.spawn(f"more{{i}}", Echo)
            try:
                ok += mesh.echo.call_one(1).get()
            except SpawnError as e:
                assert "no thread can be started" in str(e), e
                refused += 1
        assert 1 <= ok <= 3 and refused == 10 - ok, (ok, refused)
        assert first.echo.call_one(2).get() == 2
        try:
            this_host().spawn_procs(per_host={{"procs": 2}}).initialized.get()
        except SpawnError as e:
            assert "cannot fork a process" in str(e), e
        else:
            raise AssertionError("it started")
        assert first.echo.call_one(3).get() == 3
        """
    )
    done.assert_clean()


# The kernel applies the limit to all users but root, who runs these tests in some places: then the script becomes another user, who may
# not read what root has installed and cannot import it any more.
NPROC = """
import errno, resource, socket
import monarch._core.start.client_runtime
import monarch._core.hosts.spawn
from monarch._core._native import Process
from monarch._core.start.client import start_client
from monarch.extension import thread_limit

def become(limit):
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    if os.geteuid() == 0:
        os.setresuid(54321, 54321, 54321)

def refused(start):
    try:
        start()
    except (OSError, RuntimeError) as e:
        say(str(e))
"""
NAMED = "(RLIMIT_NPROC, which `ulimit -u` sets, is {})\n"


def test_runtime_without_a_thread_names_the_limit() -> None:
    done = run(
        NPROC
        + """
ours, theirs = socket.socketpair()
become(1)
refused(start_client)
refused(lambda: Process.proc(7, 8, theirs.detach(), 0))
ours.close()
"""
    )
    reason = f"cannot start the runtime: {os.strerror(errno.EAGAIN)} (os error {errno.EAGAIN}) "
    assert done.out == 2 * (reason + NAMED.format(1))
    done.assert_clean()


def test_python_without_a_thread_names_the_limit() -> None:
    done = run(
        NPROC
        + """
import monarch._core.start.client_runtime as client_runtime

def no_thread(*given):
    raise RuntimeError("can't start new thread")

client_runtime.start_new_thread = no_thread
become(4321)
refused(start_client)
"""
    )
    assert done.out == "cannot start the runtime: can't start new thread " + NAMED.format(4321)
    done.assert_clean()


def test_process_that_does_not_start_names_the_limit() -> None:
    done = run(
        NPROC
        + """
native = Process.client(7, "here", [sys.executable, "-c", ""], [], 0, [-1, -1])
become(1)
native.spawn_procs(7, [(9, b"", False, 1000, "", "late", "")])
say(eventually("the end of the proc", lambda: native.ended(9)).detail)
os._exit(0)
"""
    )
    assert done.out.startswith("cannot start a process: ") and done.out.endswith(NAMED.format(1)), done
    done.assert_clean()


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel limits all users but root")
def test_errors_of_root_name_no_limit() -> None:
    done = run(
        NPROC
        + """
resource.setrlimit(resource.RLIMIT_NPROC, (1, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
say(thread_limit())
"""
    )
    assert done.out == "\n"
    done.assert_clean()
