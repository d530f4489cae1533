"""A fork inside an endpoint, a hook or a bootstrap: the child ends when it returns to Monarch, and the parent is not affected."""

from __future__ import annotations

import pytest
from fresh_script import run

FORKERS = """
import asyncio

class Ledger(Actor):
    def __init__(self):
        self.got = []
    @endpoint
    def put(self, x):
        self.got.append(x)
    @endpoint
    def all(self):
        return self.got

def end(way):
    if way == "raise":
        raise ValueError("of the child")
    if way == "exit":
        sys.exit(7)
    if way == "text":
        sys.exit("bye")
    return "the child"

def ended(pid):
    return "the parent", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

class Sync(Actor):
    @endpoint
    def fork(self, way, ledger):
        for i in range(5):
            ledger.put.broadcast(("before", i))
        pid = os.fork()
        if pid == 0:
            return end(way)
        for i in range(5):
            ledger.put.broadcast(("after", i))
        return ended(pid)
    @endpoint
    def pid(self):
        return os.getpid()

class Async(Actor):
    @endpoint
    async def fork(self, way, ledger):
        for i in range(5):
            ledger.put.broadcast(("before", i))
        pid = os.fork()
        if pid == 0:
            if way == "await":
                await self.never
            return end(way)
        for i in range(5):
            ledger.put.broadcast(("after", i))
        return ended(pid)
    @concurrent_endpoint
    async def fork_beside(self, way, ledger):
        return await Async.fork._method(self, way, ledger)
    @endpoint
    async def prepare(self):
        self.never = asyncio.get_running_loop().create_future()
    @endpoint
    async def pid(self):
        return os.getpid()
"""


@pytest.mark.parametrize(("way", "code"), [("return", 0), ("raise", 1), ("exit", 7), ("text", 1)])
@pytest.mark.parametrize(("kind", "method"), [("Sync", "fork"), ("Async", "fork"), ("Async", "fork_beside")])
def test_child_that_leaves_an_endpoint_ends(kind, method, way, code):
    done = run(
        FORKERS
        + f"""
procs = this_host().spawn_procs(per_host={{"procs": 2}})
ledger = procs.slice(procs=0).spawn("ledger", Ledger)
forker = procs.slice(procs=1).spawn("forker", {kind})
pid = forker.pid.call_one().get()
assert forker.{method}.call_one("{way}", ledger).get() == ("the parent", {code})
assert [forker.pid.call_one().get() for _ in range(100)] == [pid] * 100
# The messages of the forker and those of the client have no order between them.
got = eventually("ten messages", lambda: ledger.all.call_one().get(), lambda got: len(got) >= 10)
assert got == [(when, i) for when in ("before", "after") for i in range(5)]
procs.stop().get()
"""
    )
    assert (done.code, done.left) == (0, []), done
    assert ("ValueError: of the child" in done.err) == (way == "raise")
    assert ("bye" in done.err) == (way == "text")


def test_child_that_awaits_ends():
    done = run(
        FORKERS
        + """
procs = this_host().spawn_procs()
ledger, forker = procs.spawn("ledger", Ledger), procs.spawn("forker", Async)
forker.prepare.call_one().get()
assert forker.fork.call_one("await", ledger).get() == ("the parent", 1)
assert forker.pid.call_one().get() == forker.pid.call_one().get()
"""
    )
    assert (done.code, done.left) == (0, []), done
    assert "forked in an async endpoint, awaits something" in done.err


def test_child_of_hooks_and_bootstrap_ends():
    done = run(
        """
        def fork():
            pid = os.fork()
            if pid:
                assert os.waitpid(pid, 0)[1] == 0
        class Failing(Actor):
            @endpoint
            def fail(self):
                raise ValueError
        class Forker(Actor):
            def __init__(self):
                fork()
                self.supervised = 0
            @endpoint
            def own(self):
                self.mesh = this_proc().spawn("failing", Failing)
                self.mesh.fail.broadcast()
            @endpoint
            def pid(self):
                return os.getpid(), self.supervised
            def __supervise__(self, failure):
                fork()
                self.supervised += 1
                return True
            def __cleanup__(self, exc):
                fork()
                say("clean")
        procs = this_host().spawn_procs(bootstrap=fork)
        forker = procs.spawn("forker", Forker)
        pid, _ = forker.pid.call_one().get()
        forker.own.call_one().get()
        eventually("one failure was handled", lambda: forker.pid.call_one().get(), lambda seen: seen == (pid, 1))
        procs.stop().get()
        """
    )
    done.assert_clean()
    # The rest of the hook runs in the child too.
    assert done.out == "[0] clean\n" * 2


def test_child_of_the_fault_hook_ends():
    done = run(
        """
        import monarch.actor
        done = threading.Event()
        def hook(failure):
            pid = os.fork()
            if pid:
                say(f"child {os.waitpid(pid, 0)[1]}")
                done.set()
        monarch.actor.unhandled_fault_hook = hook
        class Failing(Actor):
            @endpoint
            def fail(self):
                raise ValueError
        this_host().spawn_procs().spawn("failing", Failing).fail.broadcast()
        done.wait()
        """
    )
    done.assert_clean()
    assert done.out == "child 0\n"


def test_forked_child_of_an_actor_is_refused():
    done = run(
        """
        from monarch.actor import Channel
        class Forker(Actor):
            @endpoint
            def fork(self, echo, port):
                me = os.getpid()
                pid = os.fork()
                if pid == 0:
                    for use in (context, this_host, lambda: echo.echo.call_one(1).get(), lambda: port.send(1), Channel.open):
                        try:
                            use()
                        except RuntimeError as e:
                            assert f"was forked from process {me}" in str(e), e
                        else:
                            raise AssertionError(use)
                    return
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        procs = this_host().spawn_procs()
        port, receiver = Channel.open()
        assert procs.spawn("forker", Forker).fork.call_one(procs.spawn("echo", Echo), port).get() == 0
        """
    )
    done.assert_clean()


def test_output_around_a_fork_appears_once():
    done = run(
        """
        class Forker(Actor):
            @endpoint
            def fork(self):
                print("in front, ", end="")
                pid = os.fork()
                if pid == 0:
                    print("child", end="")
                    return
                os.waitpid(pid, 0)
                print(", parent")
        this_host().spawn_procs().spawn("forker", Forker).fork.call_one().get()
        """
    )
    done.assert_clean()
    assert done.out == "[0] in front, child, parent\n"


@pytest.mark.parametrize("where", ["client", "actor"])
def test_child_holds_nothing_of_the_runtime(where):
    done = run(
        f"""
        def shared():
            links = []
            for fd in os.listdir("/proc/self/fd"):
                try:
                    links.append(os.readlink(f"/proc/self/fd/{{fd}}"))
                except OSError:
                    continue
            return [link for link in links if link.startswith("socket:") or "eventpoll" in link]
        def fork():
            assert shared()
            pid = os.fork()
            if pid == 0:
                left = shared()
                if left:
                    print(left)
                os._exit(len(left))
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        class Forker(Actor):
            @endpoint
            def fork(self):
                return fork()
        procs = this_host().spawn_procs(per_host={{"procs": 2}})
        forker = procs.spawn("forker", Forker)
        forker.initialized.get()
        if "{where}" == "client":
            assert fork() == 0
        else:
            assert list(forker.fork.call().get().values()) == [0, 0]
        assert list(procs.spawn("echo", Echo).echo.call(3).get().values()) == [3, 3]
        """
    )
    done.assert_clean()


def test_child_gives_back_no_shared_memory():
    pytest.importorskip("numpy")
    done = run(
        """
        import gc
        import numpy
        SIZE = 1 << 20
        class Keeper(Actor):
            @endpoint
            def keep(self, array):
                self.array = array
            @endpoint
            def fork(self):
                pid = os.fork()
                if pid == 0:
                    del self.array
                    gc.collect()
                    return
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            @endpoint
            def total(self, other):
                return int(self.array.sum()), int(other.sum())
        keeper = this_host().spawn_procs().spawn("keeper", Keeper)
        keeper.keep.call_one(numpy.ones(SIZE, dtype="int64")).get()
        assert keeper.fork.call_one().get() == 0
        for i in range(2, 6):
            assert keeper.total.call_one(numpy.full(SIZE, i, dtype="int64")).get() == (SIZE, i * SIZE)
        """
    )
    done.assert_clean()


def test_documented_ways_to_start_processes_work():
    done = run(
        """
        import multiprocessing, pty, subprocess
        TRUE = [sys.executable, "-c", "print('fine')"]
        def code(pid):
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        def plain(queue):
            queue.put(os.getpid())
        class Starter(Actor):
            @endpoint
            def run(self):
                return subprocess.run(TRUE, capture_output=True, text=True, preexec_fn=lambda: None).stdout
            @endpoint
            def exec(self):
                pid = os.fork()
                if pid == 0:
                    os.execv(sys.executable, [sys.executable, "-c", "raise SystemExit(3)"])
                return code(pid)
            @endpoint
            def spawn(self):
                return code(os.posix_spawn(sys.executable, [sys.executable, "-c", "raise SystemExit(4)"], os.environ))
            @endpoint
            def terminal(self):
                pid, fd = pty.fork()
                if pid == 0:
                    os.execv(sys.executable, TRUE)
                said, ended = os.read(fd, 100), code(pid)
                os.close(fd)
                return said.strip(), ended
            @endpoint
            def pool(self, method):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    return pool.map(abs, [-1])
            @endpoint
            def fork(self):
                way = multiprocessing.get_context("fork")
                queue = way.SimpleQueue()
                process = way.Process(target=plain, args=(queue,))
                process.start()
                process.join()
                return queue.get() == process.pid, process.exitcode
        s = this_host().spawn_procs().spawn("starter", Starter)
        assert s.run.call_one().get() == "fine\\n"
        assert s.exec.call_one().get() == 3
        assert s.spawn.call_one().get() == 4
        assert s.terminal.call_one().get() == (b"fine", 0)
        assert s.pool.call_one("forkserver").get() == s.pool.call_one("spawn").get() == [1]
        assert s.fork.call_one().get() == (True, 0)
        """,
        # Python 3.12 and later warn of a fork in a process with threads.
        warnings=("-W", "ignore::DeprecationWarning"),
    )
    assert (done.code, done.err) == (0, ""), done


def test_child_in_a_universe_ends():
    done = run(
        """
        from monarch.actor.testing import Universe
        class Forker(Actor):
            @endpoint
            def fork(self):
                pid = os.fork()
                return "child" if pid == 0 else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with Universe() as u:
            assert u.host.spawn_procs().spawn("forker", Forker).fork.call_one().get() == 0
        """
    )
    done.assert_clean()


def test_child_ends_while_a_lost_thread_holds_stdout():
    done = run(
        """
        import io
        class Forker(Actor):
            @endpoint
            def fork(self):
                lock = threading.Lock()
                class Raw(io.RawIOBase):
                    def writable(self):
                        return True
                    def write(self, data):
                        entered.set()
                        lock.acquire()
                        return len(data)
                entered = threading.Event()
                stream = io.TextIOWrapper(io.BufferedWriter(Raw(), 16), line_buffering=True)
                lock.acquire()
                writer = threading.Thread(target=stream.write, args=("a long line" * 10 + "\\n",))
                writer.start()
                entered.wait()
                # Not yet standard output: the fork does not wait for it.
                pid = os.fork()
                if pid == 0:
                    sys.stdout = stream
                    return
                ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                lock.release()
                while writer.is_alive():
                    if lock.locked():
                        lock.release()
                return ended
        assert this_host().spawn_procs().spawn("forker", Forker).fork.call_one().get() == 0
        """
    )
    done.assert_clean()


@pytest.mark.parametrize("where", ["client", "actor"])
def test_child_of_a_thread_ends_with_the_thread(where):
    done = run(
        f"""
        codes = []
        def fork():
            pid = os.fork()
            if pid:
                codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        def in_thread():
            thread = threading.Thread(target=fork)
            thread.start()
            thread.join()
            return codes
        class Forker(Actor):
            @endpoint
            def fork(self):
                return in_thread()
        procs = this_host().spawn_procs()
        forker = procs.spawn("forker", Forker)
        forker.initialized.get()
        assert (in_thread() if "{where}" == "client" else forker.fork.call_one().get()) == [0]
        assert procs.spawn("echo", Echo).echo.call_one(1).get() == 1
        """
    )
    done.assert_clean()
