"""Malformed requests of another process to a housekeeping thread: each is dropped and recorded, and its receiver goes on."""

from __future__ import annotations

from fresh import run

SCRIPT = """
import os
from eventually import eventually
from monarch._core.process.current import current_process
from monarch.actor import Actor, MeshFailure, endpoint, this_host
from monarch import actor as monarch_actor
from monarch.extension import events

# The number of the report of a failed actor (`rust/runtime/src/system.rs`), and of a request with fields.
FAILURE, LOG_LEVEL, WORKSPACE, NAMED = 1, 5, 50, 60


class Child(Actor):
    @endpoint
    def fail(self):
        raise SystemExit(3)

    @endpoint
    def send(self, to, kind, body):
        current_process().native.request(to, kind, body)

    @endpoint
    def spawn(self, to, spec):
        current_process().native.spawn_actor(to, 12345, spec)


class Owner(Actor):
    def __init__(self, procs):
        self.child = procs.spawn("child", Child)
        self.seen = []

    @endpoint
    def mesh(self):
        return self.child.__core__.info.uid

    @endpoint
    def proc(self):
        return current_process().uid, os.getpid()

    @endpoint
    def fail(self):
        self.child.fail.broadcast()

    @endpoint
    def failures(self):
        return self.seen

    @endpoint
    def refused(self):
        (own,) = [r for r in events.recordings() if r.proc == current_process().uid]
        return [e.fields["what"] for e in own.reader().read() if e.name == "frame.refused"]

    def __supervise__(self, failure):
        self.seen.append(failure.reason.detail)
        return True


host = this_host()
ours, others = host.spawn_procs(), host.spawn_procs()
owner, sender = ours.spawn("owner", Owner, others), others.spawn("sender", Child)
(mesh, (proc, pid)) = owner.mesh.call_one().get(), owner.proc.call_one().get()
"""

REPORTS = (
    SCRIPT
    + """
about = mesh.to_bytes(8, "little") + bytes(4)
for body in (b"", b"cut", about, about + b"garbage", about + b"\\x29\\x01"):
    sender.send.call_one(proc, FAILURE, body).get()
owner.fail.call_one().get()
eventually("the owner receives the failure", lambda: owner.failures.call_one().get())
assert owner.proc.call_one().get() == (proc, pid)
assert owner.refused.call_one().get() == ["failure"] * 5, owner.refused.call_one().get()
"""
)

REQUESTS = (
    SCRIPT
    + """
for kind in (LOG_LEVEL, WORKSPACE, NAMED):
    sender.send.call_one(proc, kind, b"").get()
sender.send.call_one(proc, LOG_LEVEL, b"\\x29\\x01N").get()
sender.spawn.call_one(proc, b"\\0\\0\\0\\0garbage").get()
sender.send.call_one(proc, FAILURE, b"").get()
found = eventually("all are refused", lambda: owner.refused.call_one().get(), lambda all: len(all) == 6)
assert sorted(found) == ["failure", "request 5", "request 5", "request 50", "request 60", "spawn"], found
assert owner.proc.call_one().get() == (proc, pid)
"""
)

EVENTS = {"MONARCH_FLIGHT_RECORDER": "1", "MONARCH_FLIGHT_RECORDER_EVENTS": "4096"}


def test_malformed_failure_report_is_dropped() -> None:
    assert run(REPORTS, env=EVENTS).stderr == ""


def test_malformed_request_is_dropped() -> None:
    assert run(REQUESTS, env=EVENTS).stderr == ""
