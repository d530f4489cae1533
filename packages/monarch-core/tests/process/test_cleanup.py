"""`__cleanup__`: its time, its bound, and the outcome of its errors."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from eventually import eventually
from fresh_script import Script, run

from monarch._core.process import loop_end
from monarch.actor import Actor, SupervisionError, context, endpoint, this_host, this_proc
from monarch.config import configured

LAST = """
class Last(Actor):
    def __init__(self, name="last", seconds=0.0):
        self.name, self.seconds = name, seconds
    @endpoint
    def ready(self):
        return os.getpid()
    @endpoint
    def die(self, how):
        if how == "raise":
            raise ValueError("boom")
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)
    def __cleanup__(self, exc):
        say(f"{self.name}: {exc}")

class AsyncLast(Actor):
    @endpoint
    async def ready(self):
        pass
    async def __cleanup__(self, exc):
        import asyncio
        await asyncio.sleep(0)
        say(f"async: {exc}")
"""


def test_cleanup_runs_at_exit():
    done = run(
        LAST
        + """
procs = this_host().spawn_procs(per_host={"procs": 2})
procs.spawn("last", Last).ready.call().get()
procs.spawn("async", AsyncLast).ready.call().get()
this_proc().spawn("local", Last, "local").ready.call().get()
"""
    )
    done.assert_clean()
    lines = done.out.splitlines()
    assert sorted(lines) == ["[0] async: None", "[0] last: None", "[1] async: None", "[1] last: None", "local: None"]


def test_cleanup_runs_at_exit_without_a_call():
    done = run(LAST + 'this_host().spawn_procs().spawn("last", Last)')
    done.assert_clean()
    assert done.out == "[0] last: None\n"


def test_runs_at_exit_by_interrupt():
    script = Script(
        LAST + 'this_host().spawn_procs().spawn("last", Last).ready.call().get()\nsay("now")\ntime.sleep(1000)'
    )  # sleeps: until it is interrupted
    script.until("now")
    script.send(signal.SIGINT)
    done = script.end()
    done.assert_interrupted()
    assert done.out == "now\n[0] last: None\n"


def test_owned_things_are_cleaned_up_first_at_exit():
    done = run(
        LAST
        + """
class Owner(Last):
    @endpoint
    def own(self):
        self.procs = this_host().spawn_procs()
        self.owned = self.procs.spawn("owned", Last, "owned")
        self.owned.ready.call_one().get()
m = this_host().spawn_procs().spawn("owner", Owner, "owner")
m.own.call_one().get()
"""
    )
    done.assert_clean()
    assert done.out == "[0] owned: None\n[0] owner: None\n"


def test_gets_its_time_at_exit():
    # The clean-up takes longer than the grace of the exit; the process is not killed meanwhile.
    done = run(
        """
        class Slow(Actor):
            @endpoint
            def ready(self):
                pass
            def __cleanup__(self, exc):
                end = time.monotonic() + 1.2
                while time.monotonic() < end:
                    pass
                say("slow")
        this_host().spawn_procs().spawn("slow", Slow).ready.call_one().get()
        this_proc().spawn("slow", Slow).ready.call_one().get()
        """
    )
    done.assert_clean()
    assert sorted(done.out.splitlines()) == ["[0] slow", "slow"]


def test_takes_too_long_at_exit():
    done = run(
        """
        from monarch.config import configure
        configure(cleanup_timeout="100ms")
        class Slow(Actor):
            @endpoint
            def ready(self):
                pass
            def __cleanup__(self, exc):
                time.sleep(1000)  # sleeps: until it is interrupted
        this_host().spawn_procs().spawn("slow", Slow).ready.call_one().get()
        """
    )
    assert done.left == []
    assert done.code in (0, 1)


def test_cleanup_error_at_exit_is_shown():
    done = run(
        """
        class Bad(Actor):
            @endpoint
            def ready(self):
                pass
            def __cleanup__(self, exc):
                raise ValueError("not clean")
        this_host().spawn_procs().spawn("bad", Bad).ready.call_one().get()
        """
    )
    # No owner was notified of the failure, so the program prints it.
    assert (done.code, done.left) == (1, [])
    assert "ValueError: not clean" in done.err
    assert "Exception ignored" not in done.err


def test_destructors_and_exit_handlers_run_in_stopped_processes():
    code = """
class Thing:
    def __del__(self):
        os.write(1, b"deleted\\n")
class Holder(Actor):
    def __init__(self):
        import atexit
        self.thing = Thing()
        atexit.register(os.write, 1, b"exit handler\\n")
    @endpoint
    def ready(self):
        pass
procs = this_host().spawn_procs()
procs.spawn("holder", Holder).ready.call_one().get()
"""
    for end in ("", "procs.stop().get()", "sys.exit()"):
        done = run(code + end)
        done.assert_clean()
        assert sorted(done.out.splitlines()) == ["[0] deleted", "[0] exit handler"]


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_not_run_after_the_death_of_the_process(how):
    code = f"""
from monarch.actor import SupervisionError
m = this_host().spawn_procs().spawn("last", Last)
try:
    m.die.call_one("{how}").get()
except SupervisionError as e:
    say("told")
"""
    done = run(LAST + code)
    done.assert_clean()
    assert done.out == "told\n"


# ---- in one client


class Cleaned(Actor):
    def __init__(self, port, how="", owned_by=None):
        self.port = port
        self.how = how

    @endpoint
    def own(self):
        self.owned = this_proc().spawn("owned", Cleaned, self.port)
        self.owned.remember.call_one().get()

    @endpoint
    def fail(self):
        context().actor_instance.abort("enough")

    @endpoint
    def pid(self):
        return os.getpid()

    def __supervise__(self, failure):
        return True

    def __cleanup__(self, exc):
        if self.how == "raise":
            raise ValueError("not clean")
        if self.how == "use owner's":
            self.port.send(type(_error(lambda: self.owned.pid.call_one().get())).__name__)
            return
        import threading

        self.port.send((exc if exc is None else type(exc).__name__, str(exc), threading.current_thread() is self.thread))

    @endpoint
    def remember(self):
        import threading

        self.thread = threading.current_thread()


class Child(Actor):
    @endpoint
    def fail(self):
        raise RuntimeError("no")


class FailsEarly(Actor):
    """Its child fails during `__init__`, which is its own failure."""

    def __init__(self, port):
        self.port = port
        child = this_proc().spawn("child", Child)
        child.fail.broadcast()
        eventually("the child failed", lambda: _error(lambda: child.fail.call_one().get()), lambda e: type(e) is SupervisionError)

    @endpoint
    async def ready(self):
        pass

    async def __cleanup__(self, exc):
        self.port.send(str(exc))


def _error(call):
    try:
        call()
    except Exception as e:
        return e
    return None


@pytest.fixture(scope="module")
def procs():
    with this_host().spawn_procs(per_host={"procs": 2}) as mesh:
        yield mesh


def open_channel():
    from monarch.actor import Channel

    return Channel.open()


def test_runs_on_the_actors_thread(procs):
    port, receiver = open_channel()
    m = procs.slice(procs=0).spawn("c", Cleaned, port)
    m.remember.call_one().get()
    m.stop().get()
    assert receiver.recv().get() == (None, "None", True)


def test_failure_gives_its_text(procs, monkeypatch):
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", lambda failure: None)
    port, receiver = open_channel()
    m = procs.slice(procs=0).spawn("c", Cleaned, port)
    m.remember.call_one().get()
    m.fail.call_one().get()
    kind, text, same = receiver.recv().get()
    assert (kind, same) == ("Exception", True)
    assert "actor explicitly aborted due to: enough" in text


def test_children_are_cleaned_up_before_their_owner(procs):
    port, receiver = open_channel()
    m = procs.slice(procs=0).spawn("c", Cleaned, port, "use owner's")
    m.own.call_one().get()
    m.stop().get()
    # The children are cleaned up first, then their owner.
    assert [receiver.recv().get() for _ in range(2)] == [(None, "None", True), "SupervisionError"]


def test_raise_is_raised_by_stop(procs, monkeypatch):
    told = []
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", told.append)
    port, _ = open_channel()
    m = procs.spawn("c", Cleaned, port, "raise")
    m.pid.call().get()
    with pytest.raises(SupervisionError, match="ValueError: not clean"):
        m.stop().get()


def test_async_cleanup_is_cancelled_after_its_timeout(procs, monkeypatch):
    import asyncio

    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", lambda failure: None)
    port, receiver = open_channel()

    class Slow(Actor):
        @endpoint
        async def ready(self):
            pass

        async def __cleanup__(self, exc):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                port.send("cancelled")
                raise

    with configured(cleanup_timeout="50ms"), this_host().spawn_procs() as own:
        m = own.spawn("slow", Slow)
        m.ready.call_one().get()
        with pytest.raises(SupervisionError, match="__cleanup__ took longer than"):
            m.stop().get()
    assert receiver.recv().get() == "cancelled"


def test_async_cleanup_runs_after_an_early_failure(procs, monkeypatch):
    told: queue.Queue[Any] = queue.Queue()
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", told.put)
    port, texts = open_channel()
    procs.slice(procs=0).spawn("early", FailsEarly, port)
    assert "RuntimeError: no" in texts.recv().get()
    assert told.get().name == "early"


def test_not_run_if_init_failed(procs, monkeypatch):
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", lambda failure: None)
    port, receiver = open_channel()

    class Broken(Cleaned):
        def __init__(self, port):
            super().__init__(port)
            raise ValueError("no")

    m = procs.slice(procs=0).spawn("b", Broken, port)
    with pytest.raises(SupervisionError, match="ValueError: no"):
        m.pid.call_one().get()
    m.stop().get()
    port.send("nothing before")
    assert receiver.recv().get() == "nothing before"


def test_runs_when_the_owner_vanishes():
    port, receiver = open_channel()

    class Parent(Actor):
        @endpoint
        def own(self, procs):
            self.owned = procs.spawn("owned", Cleaned, port)
            self.owned.remember.call_one().get()
            return os.getpid()

    with this_host().spawn_procs() as other, this_host().spawn_procs() as doomed:
        pid = doomed.spawn("parent", Parent).own.call_one(other).get()
        import monarch.actor as public

        before, public.unhandled_fault_hook = public.unhandled_fault_hook, lambda failure: None
        try:
            os.kill(pid, signal.SIGKILL)
            kind, text, _ = receiver.recv().get()
        finally:
            public.unhandled_fault_hook = before
        assert kind == "Exception"
        assert "timed out reaching controller" in text and "for mesh owned" in text


DYING = """
class Dying(Actor):
    def __init__(self, how):
        self.how = how
    @endpoint
    def ready(self):
        return os.getpid()
    def __cleanup__(self, exc):
        if self.how == "exit":
            os._exit(6)
        if self.how == "end":
            os._exit(0)
        signal.raise_signal(signal.SIGKILL if self.how == "kill" else signal.SIGSEGV)
"""
ENDS = [("exit", "exit_code"), ("end", "returned"), ("kill", "signal"), ("crash", "signal")]


@pytest.mark.parametrize(("how", "kind"), ENDS)
@pytest.mark.parametrize("what", ["actors", "procs"])
def test_process_that_dies_there_fails_the_stop(what, how, kind):
    done = run(
        DYING
        + f"""
import monarch.actor
from monarch.actor import SupervisionError
failures = []
told = threading.Event()
def hook(failure):
    failures.append((failure.name, failure.reason.kind))
    told.set()
monarch.actor.unhandled_fault_hook = hook
procs = this_host().spawn_procs()
dying = procs.spawn("dying", Dying, "{how}")
dying.ready.call_one().get()
try:
    ({{"actors": dying, "procs": procs}}["{what}"]).stop().get()
except SupervisionError as e:
    assert e.failure.name == "dying" and e.failure.reason.kind == "{kind}", e
else:
    raise AssertionError("the stop succeeded")
told.wait()
assert failures == [("dying", "{kind}")], failures
"""
    )
    done.assert_clean()


@pytest.mark.parametrize("what", ["actors", "procs"])
def test_stop_of_a_dead_process_raises(what):
    done = run(
        DYING
        + f"""
from monarch.actor import SupervisionError
procs = this_host().spawn_procs()
dying = procs.spawn("dying", Dying, "kill")
dying.ready.call_one().get()
try:
    ({{"actors": dying, "procs": procs}}["{what}"]).stop().get()
except SupervisionError as e:
    assert "Killed(sig=9)" in str(e)
print("here")
"""
    )
    done.assert_clean()
    assert done.out == "here\n"


def test_death_during_cleanup_at_exit_is_a_failure():
    done = run(DYING + 'this_host().spawn_procs().spawn("dying", Dying, "exit").ready.call_one().get()')
    assert (done.code, done.left) == (1, [])
    assert "exited with non-zero code 6" in done.err


def test_process_that_dies_after_it_is_stopped():
    # Destructors of libraries crash at exit; by then the actors have ended.
    done = run(
        """
        class Quiet(Actor):
            @endpoint
            def crash_at_exit(self):
                import atexit
                atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
            def __cleanup__(self, exc):
                pass
        procs = this_host().spawn_procs()
        procs.spawn("quiet", Quiet).crash_at_exit.call_one().get()
        procs.stop().get()
        """
    )
    done.assert_clean()


class Leaving(Actor):
    """Leaves an open generator, and work on a thread of its loop's executor."""

    def __init__(self, said: Any) -> None:
        self.said = said

    async def numbers(self) -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            self.said.append("finally")

    @endpoint
    async def leave(self, work: Any) -> None:
        self.open = self.numbers()
        await anext(self.open)
        asyncio.get_running_loop().run_in_executor(None, work)


class Said:
    """The texts of this process, which an actor of it receives by reference."""

    texts: list[str] = []

    def append(self, text: str) -> None:
        Said.texts.append(text)

    def work(self) -> None:
        self.append("work")


class Stays(Said):
    ended = threading.Event()

    def work(self) -> None:
        Stays.ended.wait()


def test_stop_ends_generators_and_threads_of_the_loop():
    Said.texts.clear()
    actor = this_proc().spawn("leaving", Leaving, Said())
    actor.leave.call_one(Said().work).get()
    actor.stop().get()
    assert sorted(Said.texts) == ["finally", "work"]


def test_stop_leaves_a_thread_that_does_not_end(monkeypatch, caplog):
    monkeypatch.setattr(loop_end, "END_TIME", 0.01)
    actor = this_proc().spawn("leaving", Leaving, Said())
    actor.leave.call_one(Stays().work).get()
    actor.stop().get()
    assert "a thread of the executor has not ended within 0.01 s of the end of its event loop" in caplog.text
    Stays.ended.set()
