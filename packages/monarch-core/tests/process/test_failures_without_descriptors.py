"""A process without a free descriptor reports and receives failures like any other: it need not open a file."""

from __future__ import annotations

import pytest
from fresh import run

ACTORS = """
import os, resource, signal, sys, threading
import monarch.actor
from monarch.actor import Actor, ActorError, SupervisionError, endpoint, this_host

def no_descriptors():
    # Also those that a lost link gives back are not to be had.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        os.dup(2)
    except OSError:
        return
    raise AssertionError("there is a descriptor")

class One(Actor):
    @endpoint
    def pid(self):
        return os.getpid()
    @endpoint
    def poor(self):
        no_descriptors()
    @endpoint
    def fail(self):
        raise ValueError("plain")
    @endpoint
    def leave(self):
        sys.exit(5)
    @endpoint
    def own(self, procs):
        self.child = procs.spawn("child", One)
        return self.child.pid.call_one().get()
    @endpoint
    def ask(self, other):
        try:
            return other.pid.call_one().get()
        except SupervisionError as e:
            return str(e)

def text(call):
    try:
        call()
    except (ActorError, SupervisionError) as e:
        return f"{type(e).__name__}: {e}"
    raise AssertionError("it lives")

reports, told = [], threading.Event()

def hook(failure):
    reports.append(failure.report())
    told.set()
"""

CLIENT = """
monarch.actor.unhandled_fault_hook = hook
procs = this_host().spawn_procs(name="procs")
one = procs.spawn("one", One)
pid = one.pid.call_one().get()
no_descriptors()
"""


def test_client_gets_what_an_endpoint_raised() -> None:
    run(
        ACTORS
        + CLIENT
        + """
assert "ValueError: plain" in text(one.fail.call_one().get), text(one.fail.call_one().get)
assert list(one.pid.call().get().values()) == [pid]
one.fail.broadcast()
assert told.wait()
assert "ValueError: plain" in reports[0], reports
assert "ValueError: plain" in text(one.pid.call_one().get)
procs.stop().get()
"""
    )


@pytest.mark.parametrize(("end", "cause"), [("one.leave.broadcast()", "SystemExit: 5"), ("os.kill(pid, signal.SIGKILL)", "SIGKILL")])
def test_client_is_notified_of_an_end(end: str, cause: str) -> None:
    run(
        ACTORS
        + CLIENT
        + f"""
{end}
assert told.wait()
assert {cause!r} in reports[0] and "hint: " in reports[0], reports
for call in (one.pid.call_one, one.pid.call):
    assert {cause!r} in text(call().get), text(call().get)
procs.stop().get()
"""
    )


def test_client_ends_for_a_failure_with_its_report() -> None:
    done = run(
        ACTORS + CLIENT.replace("= hook", "= monarch.actor.unhandled_fault_hook") + "os.kill(pid, signal.SIGKILL)\ntold.wait()\n",
        check=False,
    )
    assert done.returncode == 1, done
    assert "Unhandled monarch error on the root actor" in done.stderr and "SIGKILL" in done.stderr, done.stderr
    assert "Errno 24" not in done.stderr, done.stderr


def test_proc_is_notified_of_anothers_end() -> None:
    run(
        ACTORS
        + CLIENT.replace("no_descriptors()\n", "")
        + """
other = this_host().spawn_procs(name="others").spawn("other", One)
assert other.ask.call_one(one).get() == pid
other.poor.call_one().get()
os.kill(pid, signal.SIGKILL)
assert told.wait()
assert "SIGKILL" in other.ask.call_one(one).get()
"""
    )


def test_owner_is_notified_of_its_meshes_failure() -> None:
    run(
        ACTORS
        + CLIENT.replace("no_descriptors()\n", "")
        + """
below = this_host().spawn_procs(name="below")
child = one.own.call_one(below).get()
one.poor.call_one().get()
os.kill(child, signal.SIGKILL)
assert "SIGKILL" in text(lambda: [one.pid.call_one().get() for _ in iter(int, 1)])
assert told.wait()
"""
    )
