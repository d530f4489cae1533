"""The end of a script: silent, complete, with the right exit code, in every state of the script."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_script import Script, interrupt, run

BENCH = Path(__file__).parents[4] / "bench" / "exit_reliability.py"

IMPORTED = """
import sys
sys.path.insert(0, {folder!r})
from mesh_actors import Counter
from monarch.actor import this_proc
print(this_proc().spawn("counter", Counter).add.call_one().get(), "threading" in sys.modules)
"""

FOUR = """
procs = this_host().spawn_procs(per_host={"procs": 4})
mesh = procs.spawn("echo", Echo)
assert list(mesh.echo.call(7).get().values()) == [7] * 4
"""

BUSY = """
class Busy(Actor):
    @endpoint
    def ready(self):
        pass
    @endpoint
    def spin(self):
        while True:
            pass
    @endpoint
    def sleep(self):
        time.sleep(1000)  # sleeps: until it is killed
    @endpoint
    def hold_gil(self):
        from monarch._core._native import hold_gil
        hold_gil(0.0, 1000.0)
    @endpoint
    def wait_for_ever(self):
        threading.Event().wait()
    @endpoint
    def ignore_signals(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            try:
                signal.signal(number, signal.SIG_IGN)
            except ValueError:
                pass
        time.sleep(1000)  # sleeps: until it is killed
    @endpoint
    def leave_thread(self):
        threading.Thread(target=threading.Event().wait).start()

class BusyLoop(Actor):
    @endpoint
    async def spin(self):
        while True:
            pass
    @endpoint
    async def wait_for_ever(self):
        import asyncio
        await asyncio.Event().wait()
    @endpoint
    async def swallow(self):
        import asyncio
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
    @concurrent_endpoint
    async def beside(self):
        import asyncio
        await asyncio.Event().wait()
"""


def test_script_that_leaves_threading_to_us():
    """At exit Python waits for the thread that imported `threading` first, which must not be a runtime thread."""
    run(IMPORTED.format(folder=str(Path(__file__).parent)), prelude="").assert_clean()


# ---- the four ways to end


def test_falls_off_the_end():
    done = run(FOUR)
    done.assert_clean()
    assert done.out == ""


def test_import_alone_exits_cleanly():
    run("").assert_clean()


def test_client_without_processes():
    run("print(context().actor_instance)").assert_clean()


def test_uncalled_procs_exit_cleanly():
    run('this_host().spawn_procs(per_host={"procs": 2})').assert_clean()


def test_exit_code():
    run(FOUR + "sys.exit(3)").assert_clean(3)


def test_exit_with_text():
    run(FOUR + "sys.exit('gone')").assert_clean(1, "gone\n")


def test_exception_shows_only_the_users_traceback():
    script = Script(FOUR + "def f():\n    raise ValueError('boom')\nf()")
    path = str(script.path)
    done = script.end()
    assert (done.code, done.left) == (1, [])
    lines = done.err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.split('"')[1] for line in lines if line.startswith("  File")] == [path, path]
    assert lines[-1] == "ValueError: boom"


def test_code_as_argument():
    run("", argv=["-c", "from monarch.actor import this_host as h; h().spawn_procs(per_host={'a': 2}).initialized.get()"]).assert_clean()


def test_os_exit():
    # No code cleans up: the kernel does.
    script = Script(FOUR + "say('called')\nos._exit(5)")
    script.until("called")
    code = script.wait_for_all()
    done = script.end()
    assert code == 5
    done.assert_clean(5)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGHUP])
def test_killed(number):
    # The process that runs the tests may ignore a signal, and its children inherit that.
    usual = "" if number == signal.SIGKILL else f"import signal\nsignal.signal({int(number)}, signal.SIG_DFL)\n"
    done = interrupt(usual + FOUR + "say('called')\nwhile True: mesh.echo.call(1).get()", "called", number)
    assert (done.code, done.left) == (-number, [])
    assert done.err == ""


def test_killed_while_processes_are_busy():
    code = BUSY + 'm = this_host().spawn_procs(per_host={"procs": 2}).spawn("busy", Busy)\nm.ready.call().get()\n'
    done = interrupt(
        code + "m.spin.broadcast()\nm.slice(procs=0).hold_gil.broadcast()\nsay('busy')\ntime.sleep(1000)",  # sleeps: until it is killed
        "busy",
        signal.SIGKILL,
    )
    assert (done.code, done.left) == (-signal.SIGKILL, [])


# ---- Ctrl-C


@pytest.mark.parametrize(
    "code",
    [
        "say('now')\n" + FOUR + "while True: mesh.echo.call(7).get()",
        'context(); say("now")\n' + FOUR + "while True: mesh.echo.call(7).get()",
        'p = this_host().spawn_procs(per_host={"procs": 4}); say("now")\np.initialized.get()\nwhile True: signal.pause()',
        'p = this_host().spawn_procs(per_host={"procs": 4}); m = p.spawn("e", Echo); say("now")\nwhile True: m.echo.call(1).get()',
        FOUR + "say('now')\nwhile True: mesh.echo.call(7).get()",
        FOUR + "say('now')\ntime.sleep(1000)",  # sleeps: until it is killed
        FOUR + "say('now')\nwhile True: pass",
        FOUR + "say('now')\nthreading.Event().wait()",
        FOUR + "import asyncio\nasync def main():\n    say('now')\n    while True: await mesh.echo.call(1)\nasyncio.run(main())",
        FOUR + "import asyncio\nasync def main():\n    say('now')\n    await asyncio.Event().wait()\nasyncio.run(main())",
    ],
    ids=["import", "client", "spawning", "first call", "calls", "sleep", "compute", "lock", "asyncio calls", "asyncio idle"],
)
def test_interrupted(code):
    interrupt(code, "now").assert_interrupted()


@pytest.mark.parametrize("method", ["spin", "sleep", "hold_gil", "wait_for_ever"])
def test_interrupted_in_a_call(method):
    code = f"""
    m = this_host().spawn_procs(per_host={{"procs": 2}}).spawn("busy", Busy)
    m.ready.call().get()
    f = m.{method}.call()
    say("now")
    f.get()
    time.sleep(1000)  # sleeps: until it is killed
    """
    interrupt(BUSY + __import__("textwrap").dedent(code), "now").assert_interrupted()


def test_interrupted_in_a_call_that_is_handled():
    code = (
        FOUR
        + """
class Busy(Actor):
    @endpoint
    def sleep(self):
        time.sleep(1000)  # sleeps: until it is killed
b = procs.spawn("busy", Busy)
f = b.sleep.call()
try:
    say("now")
    f.get()
except KeyboardInterrupt:
    # The future and everything else stay usable.
    assert list(mesh.echo.call(8).get().values()) == [8] * 4
    print("handled")
"""
    )
    done = interrupt(code, "now")
    done.assert_clean()
    assert done.out == "now\nhandled\n"


def test_interrupted_during_exit():
    # The clean-up prints this word, so the exit has begun. The interrupt shortens it and decides the exit code; nothing stays.
    code = """
class Last(Actor):
    @endpoint
    def ready(self):
        pass
    def __cleanup__(self, exc):
        os.write(1, b"cleaning\\n")
        threading.Event().wait()
this_host().spawn_procs(per_host={"procs": 1}).spawn("last", Last).ready.call().get()
"""
    interrupt(code, "[0] cleaning").assert_interrupted()


def test_interrupted_twice():
    code = (
        BUSY
        + 'm = this_host().spawn_procs(per_host={"procs": 2}).spawn("busy", Busy)\nm.ready.call().get()\nm.sleep.broadcast()\n'
        + 'say("now")\ntime.sleep(1000)'  # sleeps: until it is interrupted
    )
    script = Script(code)
    script.until("now")
    script.send(signal.SIGINT)
    script.send(signal.SIGINT)
    done = script.end()
    assert done.code in (130, -signal.SIGINT) and done.left == []


def test_ctrl_c_reaches_the_client_only():
    code = (
        FOUR
        + """
class Watch(Actor):
    def __init__(self):
        self.interrupted = False
    @endpoint
    def group(self):
        return os.getpgid(0), os.getpid()
w = procs.spawn("watch", Watch)
groups = list(w.group.call().get().values())
assert all(group == pid for group, pid in groups)
try:
    say("now")
    time.sleep(1000)  # sleeps: until it is killed
except KeyboardInterrupt:
    assert list(w.group.call().get().values()) == groups
"""
    )
    script = Script(code)
    script.until("now")
    import os

    os.killpg(script.process.pid, signal.SIGINT)
    script.end().assert_clean()


# ---- activity during the end of the script


@pytest.mark.parametrize("method", ["spin", "sleep", "hold_gil", "wait_for_ever", "ignore_signals", "leave_thread"])
def test_busy_process(method):
    code = f'm = this_host().spawn_procs(per_host={{"procs": 2}}).spawn("busy", Busy)\nm.ready.call().get()\nm.{method}.broadcast()'
    run(BUSY + code).assert_clean()


@pytest.mark.parametrize("method", ["spin", "wait_for_ever", "swallow", "beside"])
def test_busy_loop(method):
    code = f'm = this_host().spawn_procs(per_host={{"procs": 2}}).spawn("busy", BusyLoop)\nm.{method}.broadcast()'
    run(BUSY + code).assert_clean()


@pytest.mark.parametrize("method", ["spin", "hold_gil", "sleep"])
def test_busy_in_the_clients_process(method):
    code = f'm = this_proc().spawn("busy", Busy)\nm.ready.call().get()\nm.{method}.broadcast()'
    code = code.replace("m.hold_gil.broadcast()", "pass")
    done = run(BUSY + code)
    assert (done.code, done.left) == (0, [])


def test_init_that_never_returns():
    run("""
        class Stuck(Actor):
            def __init__(self):
                time.sleep(1000)  # sleeps: until it is killed
            @endpoint
            def ask(self):
                pass
        m = this_host().spawn_procs(per_host={"procs": 2}).spawn("stuck", Stuck)
        m.ask.call()
    """).assert_clean()


def test_exit_while_spawning_is_clean():
    run('this_host().spawn_procs(per_host={"procs": 16}).spawn("echo", Echo)').assert_clean()


def test_bootstrap_that_never_returns():
    run("""
        def bootstrap():
            time.sleep(1000)  # sleeps: until it is killed
        this_host().spawn_procs(per_host={"procs": 2}, bootstrap=bootstrap).spawn("echo", Echo)
    """).assert_clean()


def test_nested_processes():
    run("""
        class Parent(Actor):
            @endpoint
            def start(self):
                self.procs = this_host().spawn_procs(per_host={"procs": 2})
                self.echo = self.procs.spawn("echo", Echo)
                return [v for _, v in self.echo.echo.call(1).get().items()]
            @endpoint
            def start_only(self):
                this_host().spawn_procs(per_host={"procs": 2}).spawn("echo", Echo)
        p = this_host().spawn_procs(per_host={"procs": 2}).spawn("parent", Parent)
        assert [v for _, v in p.start.call().get().items()] == [[1, 1]] * 2
        p.start_only.broadcast()
    """).assert_clean()


def test_controllers():
    done = run("""
        from monarch.actor import get_or_spawn_controller
        class Counter(Actor):
            def __init__(self):
                self.n = 0
            @endpoint
            def add(self):
                self.n += 1
                return self.n
            def __cleanup__(self, exc):
                say(f"counted {self.n}")
        class User(Actor):
            @endpoint
            def use(self):
                return get_or_spawn_controller("counter", Counter).get().add.call_one().get()
        u = this_host().spawn_procs(per_host={"procs": 2}).spawn("user", User)
        assert sorted(u.use.call().get().values()) == [1, 2]
    """)
    done.assert_clean()
    assert done.out == "counted 2\n"


def test_messages_sent_before_are_delivered():
    done = run(
        FOUR
        + """
class Printer(Actor):
    @endpoint
    def show(self, i):
        print(i)
p = this_host().spawn_procs().spawn("printer", Printer)
for i in range(200):
    p.show.broadcast(i)
"""
    )
    done.assert_clean()
    assert done.out.split() == [w for i in range(200) for w in ("[0]", str(i))]


# ---- threads of the user


@pytest.mark.parametrize("daemon", [True, False])
def test_threads_that_call(daemon):
    count = "while True" if daemon else "for _ in range(300)"
    code = f"""
def body():
    {count}:
        mesh.echo.call(1).get()
threads = [threading.Thread(target=body, daemon={daemon}) for _ in range(4)]
[t.start() for t in threads]
"""
    done = run(FOUR + code)
    # The exceptions of a daemon thread after the end do not matter; a crash, or output of it, would.
    done.assert_clean()


@pytest.mark.parametrize(
    "body",
    [
        "f = b.sleep.call(); started.set(); f.get()",
        "started.set(); list(map(lambda f: f.get(), mesh.echo.stream(1))); b.sleep.call().get()",
        "started.set()\n    while True: mesh.echo.broadcast(b'x' * 100000)",
        "started.set()\n    while True: this_host().spawn_procs().spawn('e', Echo).echo.call(1).get()",
        "import asyncio\n    async def main():\n        f = b.sleep.call(); started.set(); await f\n    asyncio.run(main())",
        "from monarch.actor import Channel\n    p, r = Channel.open(); started.set(); r.recv().get()",
    ],
    ids=["get", "stream", "flood", "spawn", "asyncio", "recv"],
)
def test_daemon_thread_in_a_wait(body):
    code = f"""
class Busy(Actor):
    @endpoint
    def sleep(self):
        time.sleep(1000)  # sleeps: until it is killed
b = procs.spawn("busy", Busy)
started = threading.Event()
def body():
    {body}
threading.Thread(target=body, daemon=True).start()
started.wait()
"""
    run(FOUR + code).assert_clean()


@pytest.mark.parametrize("late", ["procs.spawn('late', Echo)", "this_host().spawn_procs()", "this_proc().spawn('late', Echo)"])
def test_daemon_thread_that_spawns_while_the_client_ends(late):
    code = f"""
import atexit
from monarch._core.process.current import has_exited
tried = threading.Event()
# Registered before the client's own, so that it runs after that.
atexit.register(tried.wait)
{FOUR}
def body():
    eventually("the client has ended", has_exited)
    tried.set()
    {late}
    say("it came back")
threading.Thread(target=body, daemon=True).start()
"""
    done = run(code)
    done.assert_clean()
    assert done.out == ""


# ---- exit handlers of the user


def test_exit_handler_of_the_user_that_calls():
    done = run("import atexit\n" + FOUR + "atexit.register(lambda: print(list(mesh.echo.call(9).get().values())))")
    done.assert_clean()
    assert done.out == "[9, 9, 9, 9]\n"


def test_exit_handler_that_comes_too_late():
    done = run(
        """
        import atexit
        from monarch.actor import SupervisionError
        def late():
            for attempt in (lambda: mesh.echo.call(9).get(), lambda: mesh.echo.broadcast(9), lambda: this_host().spawn_procs()):
                try:
                    attempt()
                except RuntimeError as e:
                    print(type(e).__name__)
        atexit.register(late)
        """
        + FOUR.replace("\n", "\n        ")
    )
    done.assert_clean()
    assert len(done.out.split()) == 3


def test_error_of_last_destructor_is_shown():
    """The interpreter has removed its modules by then, so that no import works."""
    last = "class Last:\n    def __del__(self):\n        raise ValueError('own')\nlast = Last()"
    done = run(FOUR + last)
    assert (done.code, done.left) == (0, [])
    assert done.err.startswith("Exception ignored in: <function Last.__del__ ") and done.err.endswith("ValueError: own\n")


def test_exit_without_stdout_is_clean():
    script = Script(FOUR + "say('called')\nsys.stdin.read()\nsys.stdout = None")
    script.until("called")
    assert script.process.stdout is not None
    script.process.stdout.close()
    assert script.process.wait(25) == 0
    assert script.left() == []
    script.process.stdout = open("/dev/null", "rb")
    script.end()


# ---- shutdown_context


def test_shutdown_context():
    done = run(
        FOUR
        + """
from monarch.actor import SupervisionError, shutdown_context
for bad in (-1.0, float("nan"), float("inf")):
    try:
        shutdown_context(bad)
    except ValueError:
        continue
    raise AssertionError(bad)
ended = shutdown_context()
again = shutdown_context()
assert ended.get() is None and again.get() is None and shutdown_context().get() is None
for use in (lambda: mesh.echo.call(1).get(), lambda: this_host().spawn_procs(), lambda: procs.spawn("e", Echo)):
    try:
        use()
    except RuntimeError:
        continue
    raise AssertionError("still usable")
"""
    )
    done.assert_clean()


def test_shutdown_context_without_a_client():
    run("from monarch.actor import shutdown_context\nassert shutdown_context().get() is None\n" + FOUR).assert_clean()


def test_shutdown_context_begins_when_called():
    done = run("""
        from monarch.actor import shutdown_context
        class Last(Actor):
            @endpoint
            def pid(self):
                return os.getpid()
            def __cleanup__(self, exc):
                say("cleaned")
        pid = this_host().spawn_procs().spawn("last", Last).pid.call_one().get()
        fd = os.pidfd_open(pid)
        shutdown_context()
        import select
        select.select([fd], [], [])
        say("gone")
    """)
    done.assert_clean()
    assert done.out == "[0] cleaned\ngone\n"


def test_shutdown_context_bounds_the_stop():
    run(
        BUSY
        + """
from monarch.actor import shutdown_context
m = this_host().spawn_procs(per_host={"procs": 2}).spawn("busy", Busy)
m.ready.call().get()
m.spin.broadcast()
shutdown_context(0.0).get()
"""
    ).assert_clean()


# ---- many times


def test_reliability():
    command = [sys.executable, str(BENCH), "--fall-off", "4", "--exit", "2", "--interrupt", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
