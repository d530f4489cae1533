"""Events of links, casts and stalls: the traffic between processes and hosts, with bytes and round trips."""

from __future__ import annotations

from fresh import run

RECORDER = {"MONARCH_FLIGHT_RECORDER": "1", "MONARCH_FLIGHT_RECORDER_EVENTS": "16384"}

ACTORS = """
import os, signal, sys, threading
from monarch.actor import Actor, endpoint, this_host, this_proc
from monarch import actor as monarch_actor
from monarch.extension import events

class Worker(Actor):
    @endpoint
    def step(self, n):
        return len(n)

    @endpoint
    def agent(self, *names):
        # The agent of a host is the first one that it lists.
        found = events.recordings()[0].reader().read()
        return [(e.name, e.fields) for e in found if e.name in names]

    @endpoint
    def leave(self):
        os._exit(0)

def own(*names):
    return [(e.name, e.fields) for e in events.recordings()[0].reader().read() if e.name in names]

monarch_actor.unhandled_fault_hook = lambda failure: None
"""


def test_closed_link_event_has_bytes_of_both_directions():
    done = run(
        ACTORS
        + """
from eventually import eventually
worker = this_host().spawn_procs().spawn("worker", Worker)
worker.step.call_one("x" * 5000).get()
try:
    worker.leave.call_one().get()
except Exception:
    pass
((_, fields),) = eventually("the link is down", lambda: own("link.down"))
assert fields["sent"] > 5000 and 0 < fields["received"] < 5000, fields
""",
        env=RECORDER,
    )
    assert done.stderr == ""


def test_connection_events_have_bytes_and_round_trip():
    done = run(
        ACTORS
        + """
from eventually import eventually
from worker_processes import Workers
with Workers(1, "tls") as workers, workers.attach() as hosts:
    worker = hosts.spawn_procs().spawn("worker", Worker)
    worker.step.call_one("x" * 100_000).get()
    ((_, up),) = own("link.resumed")
    assert up["received"] == 0 and 0 < up["round_trip"] < 10**9, up
    assert own("link.broken") == []
    workers.processes[0].kill()
    (_, broken), *_ = eventually("the connection is broken", lambda: own("link.broken"))
    assert broken["host"] == up["host"] and broken["end"] in ("closed", "reset"), broken
    assert broken["sent"] > 100_000 > broken["received"] > 0 and broken["round_trip"] > 0, broken
    sys.stdout.flush()
    os._exit(0)
""",
        env=RECORDER,
    )
    assert done.stderr == ""


def test_steps_of_a_cast_are_events():
    done = run(
        ACTORS
        + """
from worker_processes import Workers
with Workers(3) as workers, workers.attach() as hosts:
    procs = hosts.spawn_procs(per_host={"gpus": 2})
    members = procs.spawn("members", Worker)
    members.step.call("abc").get()
    members.slice(gpus=1).step.call("abc").get()
    sent = [fields for _, fields in own("cast.sent") if fields["method"] == "step"]
    assert [(fields["targets"], fields["offset"], fields["dims"]) for fields in sent] == [(6, 0, ""), (3, 2, "hosts=3:2")], sent
    assert sent[0]["bytes"] > 0, sent
    steps = own("cast.step")
    assert {fields["number"] for _, fields in steps} >= {0} and all(fields["bytes"] > 0 for _, fields in steps), steps
    answers = [fields for _, found in members.agent.call("reduction.step").get().items() for _, fields in found]
    assert answers and all(fields["answers"] >= 1 for fields in answers), answers
    assert {fields["number"] for fields in answers} & {fields["number"] for _, fields in steps}
""",
        env=RECORDER,
    )
    assert done.stderr == ""


def test_wait_for_credit_is_an_event():
    done = run(
        ACTORS
        + """
class Slow(Actor):
    @endpoint
    def take(self, block):
        # Takes longer than to send it.
        sum(block)

from eventually import eventually
slow = this_host().spawn_procs().spawn("slow", Slow)
seen = threading.Event()
def flood():
    body = b"x" * 30_000
    while not seen.is_set():
        slow.take.broadcast(body)
thread = threading.Thread(target=flood)
thread.start()
(_, fields), *_ = eventually("a stall is over", lambda: own("credit.stall"))
seen.set()
thread.join()
assert fields["method"] == "take" and fields["duration"] > 0, fields
""",
        env=RECORDER,
    )
    assert done.stderr == ""
