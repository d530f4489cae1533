"""The handling of a failure fails itself: the process ends with one line on stderr, and no process waits for it."""

from __future__ import annotations

import re

import pytest
from fresh_script import Script, run

BREAK = """
import re, resource
import monarch.actor
from monarch.actor import ActorError, SupervisionError

class Breaker(Actor):
    @endpoint
    def well(self):
        return os.getpid()
    @endpoint
    def no_end(self):
        from monarch._core.actor.local_actor import LocalActor
        def broken(self, early):
            raise MemoryError("nothing left")
        LocalActor._finish = broken
    @endpoint
    def no_module(self, name):
        sys.modules[name] = None
    @endpoint
    def no_descriptor(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    @endpoint
    def exit(self):
        sys.exit(5)
    @endpoint
    def fail(self):
        raise ValueError("plain")

def dies(use, text):
    try:
        use()
    except SupervisionError as e:
        assert re.search(text, str(e)), e
    else:
        raise AssertionError("it lives")
"""


def assert_ended(done, what, error):
    """One line of the runtime on stderr."""
    line = rf"(\[\d+\] )?monarch: process \d+ ends: {what} failed: {error}.*\n"
    assert done.code in (0, 1) and done.left == [], done
    assert re.search(line, done.err), done.err
    return re.sub(line, "", done.err)


def test_process_ends_when_ending_an_actor_raises():
    done = run(
        BREAK
        + """
monarch.actor.unhandled_fault_hook = lambda failure: None
procs = this_host().spawn_procs()
breaker, other = procs.spawn("breaker", Breaker), procs.spawn("other", Echo)
assert other.echo.call_one(1).get() == 1
breaker.no_end.call_one().get()
call = breaker.well.call_one()
breaker.exit.broadcast()
# For a moment the process may still answer, and the stop with it.
dies(lambda: [breaker.stop().get(), other.echo.call_one(1).get(), breaker.well.call_one().get()], "exit|stopped")
dies(lambda: [other.echo.call_one(1).get() for _ in iter(int, 1)], "code 1")
assert procs.spawn("late", Echo) is not None
procs.stop().get()
"""
    )
    assert assert_ended(done, "the end of actor <root>.*breaker.*", "MemoryError: nothing left") == ""
    assert done.code == 0


@pytest.mark.parametrize("kind", ["exit", "fail"])
def test_broken_modules_of_an_actor_end_the_process(kind):
    done = run(
        BREAK
        + f"""
monarch.actor.unhandled_fault_hook = lambda failure: None
procs = this_host().spawn_procs()
breaker = procs.spawn("breaker", Breaker)
breaker.no_module.call_one("monarch._core.pickle.remote_exception").get()
dies(lambda: breaker.{kind}.call_one().get(), "exited with non-zero code 1")
"""
    )
    assert assert_ended(done, "the end of actor <root>.*breaker.*", "ModuleNotFoundError") == ""
    assert done.code == 0


def test_broken_housekeeping_of_a_proc_ends_it():
    done = run(
        BREAK
        + """
monarch.actor.unhandled_fault_hook = lambda failure: None
procs = this_host().spawn_procs()
breaker = procs.spawn("breaker", Breaker)
breaker.no_module.call_one("monarch._core.process.actor_thread").get()
dies(lambda: procs.spawn("late", Echo).echo.call_one(1).get(), "exited with non-zero code 1")
"""
    )
    assert assert_ended(done, "housekeeping", "ModuleNotFoundError") == ""
    assert done.code == 0


def test_broken_housekeeping_of_the_client_ends_it():
    script = Script(
        BREAK
        + """
breaker = this_host().spawn_procs().spawn("breaker", Breaker)
pid = breaker.well.call_one().get()
del breaker
sys.modules["monarch._core.process.root_fault"] = None
os.kill(pid, signal.SIGKILL)
threading.Event().wait()
"""
    )
    # The process stops nothing: the kernel ends its children, a moment later.
    script.wait_for_all()
    done = script.end()
    assert assert_ended(done, "housekeeping", "ModuleNotFoundError") == ""
    assert done.code == 1


@pytest.mark.parametrize(("way", "text"), [("fail", "plain"), ("exit", "SystemExit: 5")])
def test_failure_is_reported_without_a_descriptor(way, text):
    done = run(
        BREAK
        + f"""
monarch.actor.unhandled_fault_hook = lambda failure: None
procs = this_host().spawn_procs()
breaker, other = procs.spawn("breaker", Breaker), procs.spawn("other", Echo)
assert other.echo.call_one(1).get() == 1
breaker.no_descriptor.call_one().get()
try:
    breaker.{way}.call_one().get()
except (ActorError, SupervisionError) as e:
    assert "{text}" in str(e), e
else:
    raise AssertionError("it lives")
assert other.echo.call_one(2).get() == 2
"""
    )
    done.assert_clean()
