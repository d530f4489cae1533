"""Fault hooks with wrong types and results at the end of the program; exits that are disturbed."""

from __future__ import annotations

import re
import signal

import pytest
from fresh_script import Script, run
from test_root_fault import HEAD

FAILING = """
import atexit
import monarch.actor
from monarch.actor import SupervisionError
class Child(Actor):
    @endpoint
    def ping(self):
        return "alive"
    @endpoint
    def error(self):
        raise ValueError("boo")
    @endpoint
    def fail(self):
        raise SystemExit(3)
in_hook = threading.Event()
atexit.register(say, "atexit before")
child = this_host().spawn_procs().spawn("child", Child)
"""


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        ("None", "TypeError: 'NoneType' object is not callable"),
        ("lambda: None", r"TypeError: <lambda>\(\) takes 0 positional arguments but 1 was given"),
        ("lambda failure: failure.no_such_thing", "AttributeError: 'MeshFailure' object has no attribute 'no_such_thing'"),
    ],
)
def test_hook_that_is_none(hook, error):
    done = run(
        FAILING
        + f"""
monarch.actor.unhandled_fault_hook = {hook}
try:
    child.error.broadcast()
    threading.Event().wait()
finally:
    say("finally")
"""
    )
    assert (done.code, done.out, done.left) == (1, "finally\natexit before\n", [])
    assert re.match(HEAD + r"ValueError: boo \(pid", done.err)
    told = re.search(rf"\n  hint: .*\n`unhandled_fault_hook` raised {error}\n  Traceback of where the remote call failed", done.err)
    assert told, done.err


@pytest.mark.parametrize(("end", "said"), [("sys.exit(7)", True), ("raise KeyboardInterrupt", True), ("raise SystemExit", True)])
def test_hook_that_ends_the_program_is_not_blamed(end, said):
    done = run(
        FAILING
        + f"""
def hook(failure):
    {end}
monarch.actor.unhandled_fault_hook = hook
child.error.broadcast()
threading.Event().wait()
"""
    )
    assert (done.code, done.left) == (1, [])
    assert re.match(HEAD + "ValueError: boo", done.err) and "`unhandled_fault_hook` raised" not in done.err


def test_hook_that_ends_the_process():
    script = Script(
        FAILING
        + """
monarch.actor.unhandled_fault_hook = lambda failure: os._exit(6)
say("ready")
child.error.broadcast()
threading.Event().wait()
"""
    )
    script.until("ready")
    code = script.wait_for_all()
    done = script.end()
    # The script itself skips all exit handlers; the kernel ends its processes.
    assert code == 6 and done.out == "ready\n"
    done.assert_clean(6)


def test_exit_while_the_hook_does_not_return():
    done = run(
        FAILING
        + """
def hook(failure):
    in_hook.set()
    threading.Event().wait()
monarch.actor.unhandled_fault_hook = hook
child.error.broadcast()
in_hook.wait()
this_host().spawn_procs().spawn("other", Child).error.broadcast()
"""
    )
    done.assert_clean()
    assert done.out == "atexit before\n"


def test_hook_at_exit_runs_off_the_main_thread():
    done = run(
        FAILING
        + """
class Bad(Child):
    def __cleanup__(self, exc):
        raise LookupError("not clean")
def hook(failure):
    say(f"{failure.name} {threading.current_thread() is threading.main_thread()}")
monarch.actor.unhandled_fault_hook = hook
this_proc().spawn("bad", Bad).ping.call_one().get()
"""
    )
    done.assert_clean()
    assert done.out == "bad False\natexit before\n"


@pytest.mark.parametrize(
    "stream", ["sys.stderr.close()", "sys.stderr = None", "os.close(2)", "del sys.stderr", "sys.stdout.close(); sys.stdout = None"]
)
def test_failure_without_a_console(stream):
    done = run(
        FAILING
        + f"""
{stream}
try:
    child.error.broadcast()
    threading.Event().wait()
finally:
    say("finally")
"""
    )
    assert (done.code, done.left) == (1, []), done
    # The interpreter's own output there is not tested.
    assert done.out.startswith("finally\natexit before\n") and done.out.count("\n") == 2


@pytest.mark.parametrize(
    "stream", ["sys.stdout.close()", "sys.stderr.close()", "os.close(1); os.close(2)", "sys.stdout = sys.stderr = None"]
)
@pytest.mark.parametrize("end", ["fail", "stuck", "exit"])
def test_proc_without_a_console(stream, end):
    done = run(
        f"""
from monarch.actor import SupervisionError
from monarch.config import configure
class Mute(Actor):
    @endpoint
    def mute(self):
        {stream}
    @endpoint
    def fail(self):
        raise SystemExit(3)
    @endpoint
    def stuck(self):
        threading.Event().wait()
    @endpoint
    def exit(self):
        os._exit(5)
    @endpoint
    def ping(self):
        return 1
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None
configure(stop_grace_period="50ms")
procs = this_host().spawn_procs()
other = procs.spawn("other", Mute)
mute = procs.spawn("mute", Mute)
mute.mute.call_one().get()
future = mute.{end}.call_one()
if "{end}" == "stuck":
    mute.stop().get()
try:
    future.get()
except SupervisionError as e:
    say(e.failure.reason.kind)
if "{end}" != "exit":
    assert other.ping.call_one().get() == 1
procs.stop().get()
"""
    )
    line = "[0] monarch: stop.timeout: <root>.<__main__.Mute mute> is still in stuck after its time to stop was over\n"
    done.assert_clean(0, line if (stream, end) == ("sys.stdout.close()", "stuck") else "")
    assert done.out == {"fail": "raised", "stuck": "stopped", "exit": "exit_code"}[end] + "\n"


# ---- the exit, disturbed


LAST = """
import atexit
class Noisy:
    def __del__(self, write=os.write):
        write(1, b"destructor\\n")
noisy = Noisy()
atexit.register(say, "atexit before")
class Last(Actor):
    @endpoint
    def ready(self):
        pass
    def __cleanup__(self, exc):
        os.write(1, b"cleaning\\n")
        threading.Event().wait()
this_host().spawn_procs().spawn("last", Last).ready.call_one().get()
atexit.register(say, "atexit after")
"""


def test_interrupted_exit_runs_the_other_handlers():
    script = Script(LAST)
    script.until("[0] cleaning")
    script.send(signal.SIGINT)
    done = script.end()
    done.assert_interrupted()
    assert done.out == "atexit after\n[0] cleaning\natexit before\ndestructor\n"


def test_exit_interrupted_twice():
    # The second interrupt arrives in a handler of the user, which the interpreter ends for it.
    script = Script(
        """
import atexit
def slow():
    say("slow")
    threading.Event().wait()
atexit.register(slow)
"""
        + LAST
    )
    script.until("[0] cleaning")
    script.send(signal.SIGINT)
    script.until("slow")
    script.send(signal.SIGINT)
    done = script.end()
    assert done.code in (130, -signal.SIGINT) and done.left == []


# ---- destructors, and threads that call during the exit


def test_destructors_that_call():
    done = run(
        """
        write = os.write
        class Holder:
            def __init__(self, name, echo):
                self.name, self.echo = name, echo
            def __del__(self, write=os.write, exits=(Exception,)):
                echo = self.echo
                for attempt in (
                    lambda: echo.echo.call_one(1).get(), lambda: echo.echo.broadcast(1), lambda: echo.stop().get(), lambda: context()
                ):
                    try:
                        attempt()
                    except exits:
                        pass
                write(1, self.name + b"\\n")
        echo = this_host().spawn_procs().spawn("echo", Echo)
        kept = Holder(b"global", echo)
        cycle = [Holder(b"cycle", echo)]
        cycle.append(cycle)
        threading.kept = Holder(b"of another module", echo)
        local = threading.local()
        local.kept = Holder(b"of the thread", echo)
        """
    )
    done.assert_clean()
    assert {"global", "cycle", "of another module", "of the thread"} >= set(done.out.splitlines()) >= {"global"}


@pytest.mark.parametrize("daemon", [True, False])
def test_thread_that_calls_while_clean_up_runs(daemon):
    done = run(
        f"""
        class Slow(Actor):
            @endpoint
            def echo(self, x):
                return x
            def __cleanup__(self, exc):
                end = time.monotonic() + 0.3
                while time.monotonic() < end:
                    pass
        slow = this_host().spawn_procs().spawn("slow", Slow)
        echo = this_host().spawn_procs().spawn("echo", Echo)
        started = threading.Event()
        main = threading.main_thread()
        def body():
            started.set()
            while {daemon} or main.is_alive():
                try:
                    echo.echo.call_one(1).get()
                    slow.echo.call_one(1).get()
                    slow.echo.broadcast(1)
                except RuntimeError:
                    if not {daemon}:
                        return
        threads = [threading.Thread(target=body, daemon={daemon}) for _ in range(3)]
        [t.start() for t in threads]
        started.wait()
        """
    )
    done.assert_clean()
