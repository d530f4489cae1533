"""The root's reaction to unhandled failures: the fault hook, the interrupt, the exit code."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from eventually import SOURCE

PRELUDE = f"""
import asyncio, atexit, os, signal, sys, threading, time
import monarch.actor
from monarch.actor import *

class Child(Actor):
    @endpoint
    def ping(self):
        return "alive"
    @endpoint
    def fail(self):
        raise SystemExit(3)
    @endpoint
    def error(self):
        raise ValueError("boo")
    @endpoint(explicit_response_port=True)
    def never(self, port):
        self.port = port

def spawn(name="child"):
    return this_host().spawn_procs(name=name).spawn(name, Child)

def say(*text):
    print(*text, flush=True)

{SOURCE}
"""
HEAD = (
    r"Unhandled monarch error on the root actor, hostname=\S+, PID=\d+ at time .*:\n"
    r"The actor <root>\.<__main__\.Child child> and all its .*"
)


def run(tmp_path: Path, body: str) -> tuple[int, str, str]:
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + textwrap.dedent(body))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "wait",
    [
        "time.sleep(1000)",  # sleeps: until it is interrupted
        "threading.Event().wait()",
        "threading.Lock().acquire() and (lock := threading.Lock()).acquire() and lock.acquire()",
        "spawn('other').never.call_one().get()",
        "asyncio.run(asyncio.sleep(1000))",  # sleeps: until it is interrupted
        "os.read(os.pipe()[0], 1)",
    ],
)
@pytest.mark.parametrize("disposition", ["default_int_handler", "SIG_IGN", "SIG_DFL"])
def test_unhandled_failure_ends_the_program(tmp_path, wait, disposition):
    # In the background of a shell SIGINT is ignored.
    code, out, err = run(
        tmp_path,
        f"""
        signal.signal(signal.SIGINT, signal.{disposition})
        atexit.register(say, "atexit before")
        class Noisy:
            def __del__(self, write=os.write):
                write(1, b"destructor\\n")
        noisy = Noisy()
        child = spawn()
        atexit.register(say, "atexit after")
        try:
            child.error.broadcast()
            {wait}
        except KeyboardInterrupt:
            say("interrupted")
            raise
        finally:
            say("finally")
        """,
    )
    assert out == "interrupted\nfinally\natexit after\natexit before\ndestructor\n"
    assert code == 1 and re.match(HEAD + "ValueError: boo", err)
    assert err.count("Unhandled monarch error") == 1


@pytest.mark.parametrize(
    "catch",
    [
        "child.fail.call_one().get()",
        "child.fail.call().get()",
        "child.fail.choose().get()",
        "next(child.fail.stream()).get()",
        "asyncio.run(wait(child.fail.call_one))",
        "asyncio.run(wait(lambda: child.fail.call_one().as_asyncio()))",
    ],
)
def test_error_that_was_caught_is_handled(tmp_path, catch):
    code, out, err = run(
        tmp_path,
        f"""
        async def wait(call):
            await call()
        child = spawn()
        try:
            {catch}
        except SupervisionError as e:
            say("caught")
        other = spawn("other")
        say(other.ping.call_one().get())
        """,
    )
    assert (code, out, err) == (0, "caught\nalive\n", "")


def test_failure_before_the_first_call_fails_it(tmp_path):
    code, out, err = run(
        tmp_path,
        """
        from monarch._core.process import root_fault

        class Broken(Child):
            def __init__(self):
                raise ValueError("boo")

        root_fault.FIRST_CALL_TIME = 600.0
        child = this_host().spawn_procs().spawn("child", Broken)
        eventually("the failure is known", lambda: root_fault._held)
        try:
            child.ping.call_one().get()
        except SupervisionError as e:
            say("caught", "boo" in str(e))
        """,
    )
    assert (code, out, err) == (0, "caught True\n", "")


def test_error_that_was_looked_at_is_handled(tmp_path):
    code, out, err = run(
        tmp_path,
        """
        child = spawn()
        say(type(child.fail.call_one().exception()).__name__, spawn("other").ping.call_one().get())
        """,
    )
    assert (code, out, err) == (0, "SupervisionError alive\n", "")


def test_future_that_is_dropped_unretrieved(tmp_path):
    code, out, err = run(
        tmp_path,
        """
        child = spawn()
        future = child.fail.call_one()
        eventually("the call has failed", future._done)
        say("done")
        try:
            del future
            time.sleep(1000)  # sleeps: until it is interrupted
        finally:
            say("finally")
        """,
    )
    assert (code, out) == (1, "done\nfinally\n") and re.match(HEAD + "SystemExit: 3", err)


def test_unread_future_before_the_end_is_reported(tmp_path):
    code, out, err = run(
        tmp_path,
        """
        child = spawn()
        future = child.fail.call_one()
        eventually("the call has failed", future._done)
        say("done")
        """,
    )
    assert (code, out) == (1, "done\n") and re.match(HEAD + "SystemExit: 3", err)


def test_error_caught_by_another_call_is_not_repeated(tmp_path):
    code, out, err = run(
        tmp_path,
        """
        child = spawn()
        pending = child.never.call_one()
        try:
            child.fail.call_one().get()
        except SupervisionError:
            say("caught")
        try:
            pending.get()
        except SupervisionError:
            say("caught too")
        try:
            child.ping.call_one().get()
        except SupervisionError:
            say("refused")
        """,
    )
    assert (code, out, err) == (0, "caught\ncaught too\nrefused\n", "")


def test_uncaught_error_ends_the_script_with_its_traceback(tmp_path):
    code, out, err = run(tmp_path, "spawn().fail.call_one().get()")
    assert code == 1 and err.count("SystemExit: 3") >= 1 and "Traceback" in err


def test_hook_that_returns_drops_the_failure(tmp_path):
    code, out, err = run(
        tmp_path,
        """
        seen = []
        told = threading.Event()
        def hook(failure):
            seen.append((failure.name, failure.crashed_ranks, threading.current_thread() is threading.main_thread()))
            if len(seen) == 2:
                told.set()
        monarch.actor.unhandled_fault_hook = hook
        one, two = spawn("one"), spawn("two")
        try:
            one.error.broadcast()
            two.fail.call_one().get()  # a hook of the user sees what was caught, too
        except SupervisionError:
            pass
        told.wait()
        say(sorted(seen), spawn("three").ping.call_one().get())
        """,
    )
    assert (code, out, err) == (0, "[('one', [0], False), ('two', [0], False)] alive\n", "")


@pytest.mark.parametrize("end", ["sys.exit(5)", "raise ValueError('no')", "raise KeyboardInterrupt", "sys.exit(0)"])
def test_hook_that_raises_ends_the_program(tmp_path, end):
    code, out, err = run(
        tmp_path,
        f"""
        def hook(failure):
            say("hook", failure.name)
            {end}
        monarch.actor.unhandled_fault_hook = hook
        child, other = spawn(), spawn("other")
        try:
            child.error.broadcast()
            time.sleep(1000)  # sleeps: until it is interrupted
        except KeyboardInterrupt:
            other.ping.call_one().exception()
            say("interrupted")
            raise
        """,
    )
    assert (code, out) == (1, "hook child\ninterrupted\n") and re.match(HEAD + "ValueError: boo", err)


def test_hook_is_looked_up_when_it_is_needed(tmp_path):
    code, out, err = run(
        tmp_path,
        """
        told = threading.Event()
        child, other = spawn(), spawn("other")
        assert child.ping.call_one().get() == other.ping.call_one().get()
        monarch.actor.unhandled_fault_hook = lambda failure: (say("first", failure.name), told.set())
        child.error.broadcast()
        told.wait()
        told.clear()
        monarch.actor.unhandled_fault_hook = lambda failure: (say("second", failure.name), told.set())
        other.error.broadcast()
        told.wait()
        """,
    )
    assert (code, out, err) == (0, "first child\nsecond other\n", "")


def test_hook_may_use_actors(tmp_path):
    code, out, err = run(
        tmp_path,
        """
        told = threading.Event()
        controller = get_or_spawn_controller("local", Child).get()
        def hook(failure):
            say(controller.ping.call_one().get(), get_or_spawn_controller("new", Child).get().ping.call_one().get())
            say(spawn("again").ping.call_one().get())
            told.set()
        monarch.actor.unhandled_fault_hook = hook
        spawn().error.broadcast()
        told.wait()
        """,
    )
    assert (code, out, err) == (0, "alive alive\nalive\n", "")


def test_script_that_swallows_the_interrupt(tmp_path):
    code, out, err = run(
        tmp_path,
        """
        child, other = spawn(), spawn("other")
        say(other.ping.call_one().get())
        try:
            child.error.broadcast()
            time.sleep(1000)  # sleeps: until it is interrupted
        except KeyboardInterrupt:
            say("swallowed")
        for mesh in (child, other, spawn("new")):
            for call in (mesh.ping.call, mesh.ping.call_one, mesh.ping.choose):
                try:
                    call().get()
                except SupervisionError as e:
                    say("refused", "ValueError: boo" in str(e))
            try:
                mesh.ping.broadcast()
            except SupervisionError:
                say("refused too")
        """,
    )
    assert code == 1 and out == "alive\nswallowed\n" + ("refused True\n" * 3 + "refused too\n") * 3
    assert re.match(HEAD + "ValueError: boo", err) and "Traceback (most recent call last)" not in err


def test_failure_of_an_owner_reaches_the_root(tmp_path):
    code, out, err = run(
        tmp_path,
        """
        class Owner(Actor):
            def __init__(self):
                self.child = this_proc().spawn("child", Child)
            @endpoint
            def go(self):
                self.child.error.broadcast()
        this_host().spawn_procs().spawn("owner", Owner).go.broadcast()
        time.sleep(1000)  # sleeps: until it is interrupted
        """,
    )
    assert code == 1
    assert re.search(r"The actor <root>\.<__main__\.Owner owner>\.<__main__\.Child child> and all its .*: ValueError: boo \(pid", err)
    assert re.search(r"\n  <root>\.<__main__\.Owner owner> failed because it did not handle a supervision event from its child\n", err)


def test_failed_init_that_was_caught(tmp_path):
    code, out, err = run(
        tmp_path,
        """
        class Bad(Actor):
            def __init__(self):
                raise ValueError("no")
            @endpoint
            def ping(self):
                return 1
        bad = this_host().spawn_procs(per_host={"gpus": 1}).spawn("bad", Bad)
        try:
            bad.ping.call().get()
        except SupervisionError as e:
            say("ValueError: no" in str(e))
        """,
    )
    assert (code, out, err) == (0, "True\n", "")


def test_spawn_on_ended_procs_interrupts_nothing(tmp_path: Path) -> None:
    code, out, err = run(
        tmp_path,
        """
        for _ in range(40):  # the end of a process arrives before or after the spawn
            procs = this_host().spawn_procs({"gpus": 2}, bootstrap_command=BootstrapCommand("/bin/false"))
            try:
                procs.initialized.get()
            except SpawnError:
                pass
            try:
                procs.spawn("child", Child).ping.call().get()
            except SupervisionError:
                pass
        say("all caught")
        """,
    )
    assert (code, out, err) == (0, "all caught\n", "")


@pytest.mark.parametrize("ignored", [False, True])
def test_interrupt_that_a_callback_swallows(tmp_path, ignored):
    """The interpreter drops an exception of a weak reference's callback: the script ends all the same."""
    body = f"""
        import weakref
        if {ignored}:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        class Thing:
            pass
        def callback(_):
            child.error.broadcast()
            while True:
                time.sleep(0.01)  # sleeps: until the interrupt comes
        child = spawn()
        thing = Thing()
        reference = weakref.ref(thing, callback)
        del thing
        while True:
            time.sleep(0.01)  # sleeps: until the interrupt comes again
        """
    code, _, err = run(tmp_path, body)
    assert code == 1
    assert "ValueError: boo" in err
    assert "Exception ignored" not in err


def test_ctrl_c_that_a_destructor_swallows(tmp_path):
    """The interrupt comes between any two lines, also in a destructor, where Python reports it and continues."""
    code, out, err = run(
        tmp_path,
        """
        class Careless:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGINT)
                threading.Event().wait()

        spawn()
        try:
            Careless()
            threading.Event().wait()
        except KeyboardInterrupt:
            say("interrupted")
        """,
    )
    assert (code, out, err) == (0, "interrupted\n", "")


def test_exception_swallowed_by_a_destructor_is_gone(tmp_path):
    code, out, err = run(
        tmp_path,
        """
        class Own(KeyboardInterrupt):
            pass

        class Careless:
            def __del__(self):
                raise Own

        spawn()
        Careless()
        time.sleep(0.2)  # sleeps: longer than another one would take to come
        say("not interrupted")
        """,
    )
    assert (code, out) == (0, "not interrupted\n") and "Exception ignored in: <function Careless.__del__" in err


def test_interrupt_is_repeated_after_the_unraisable_hook(tmp_path):
    """An exception in that hook would be dropped too, and a signal just before a wait does not wake the wait."""
    code, out, err = run(
        tmp_path,
        """
        from monarch._core.process import interrupt

        def start(function, arguments):
            threading.Thread(target=function, args=arguments).start()
            # In the hook: long enough for any thread to run.
            time.sleep(0.2)  # sleeps: the order that a test of a race needs
            say("left")

        class Careless:
            def __del__(self):
                interrupt.interrupt_main_thread()
                threading.Event().wait()

        interrupt.listen()
        interrupt.start_new_thread = start
        try:
            Careless()
            threading.Event().wait()
        except KeyboardInterrupt:
            eventually("the second wait was woken by more than one signal", lambda: interrupt._noticed)
            say("interrupted")
        """,
    )
    assert (code, out, err) == (0, "left\ninterrupted\n", "")
