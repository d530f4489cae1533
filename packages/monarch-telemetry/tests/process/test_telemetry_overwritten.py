"""A ring goes round while its collector does not read: processes, meshes, actors and ends of the lost events have their rows again."""

from __future__ import annotations

import telemetry_program

PROGRAM = """
import logging, os, signal, sys
from pathlib import Path
import monarch.actor
import monarch.telemetry as telemetry
from monarch.actor import Actor, endpoint, this_host
from observed_job import rows, stop, until

monarch.actor.unhandled_fault_hook = lambda failure: None
BURST = 40_000

class Worker(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def make(self, name: str):
        from monarch.actor import this_proc
        made = this_proc().spawn(name, Worker)
        made.pid.call_one().get()
        return made

    @endpoint
    def burst(self) -> None:
        # Each event has a text, of which a ring has less room than of events.
        for number in range(BURST):
            telemetry.record("burst", number=number)

running = telemetry.start(snapshot_interval_secs=0.5)
collector = running.asking.hosts[0].pid
"""


def test_overwritten_spawn_events_are_recovered() -> None:
    assert telemetry_program.shown(
        PROGRAM
        + """
stop(collector)
worker = this_host().spawn_procs(name="late").spawn("worker", Worker)
inner = worker.make.call_one("inner").get()
pid = worker.pid.call_one().get()
worker.burst.call_one().get()
os.kill(collector, signal.SIGCONT)
until(f"SELECT count(*) FROM procs WHERE pid = {pid}", [(1,)])
until("SELECT display_name FROM actors WHERE display_name IN ('worker', 'inner') ORDER BY 1", [("inner",), ("worker",)])
until("SELECT given_name FROM meshes WHERE given_name = 'inner'", [("inner",)])
print("=", rows("SELECT count(*) FROM actor_status_events s JOIN actors a ON s.actor_id = a.id WHERE a.display_name = 'inner'"))
# Of whom one introduction after another tells, it is one.
telemetry.record("here")
until(f"SELECT count(*), count(DISTINCT proc_id) FROM procs WHERE pid = {pid}", [(1, 1)])
"""
    ) == ["[(2,)]"]


def test_ends_that_were_overwritten_are_found() -> None:
    assert telemetry_program.shown(
        PROGRAM
        + """
worker = this_host().spawn_procs(name="killed").spawn("worker", Worker)
pid = worker.pid.call_one().get()
living = this_host().spawn_procs(name="living")
other, short = living.spawn("other", Worker), living.spawn("short", Worker)
short.pid.call_one().get()
until("SELECT count(*) FROM actors WHERE display_name IN ('worker', 'short', 'other')", [(3,)])
stop(collector)
os.kill(pid, signal.SIGKILL)
try:
    worker.pid.call_one().get()
except monarch.actor.SupervisionError:
    pass
short.stop().get()
other.burst.call_one().get()
for number in range(BURST):
    telemetry.record("burst", number=number)
os.kill(collector, signal.SIGCONT)
until(f"SELECT exit_reason, signal, ended_us IS NULL FROM procs WHERE pid = {pid}", [("signal", 9, False)])
print("=", rows(f"SELECT mesh_name, message, pid = {pid} FROM failures WHERE exit_reason = 'signal' ORDER BY mesh_name"))
of = "FROM actor_status_events s JOIN actors a ON s.actor_id = a.id WHERE display_name"
until(f"SELECT count(*) {of} = 'short' AND new_status = 'Stopped'", [(1,)])
print("=", rows(f"SELECT count(*) {of} = 'other' AND new_status IN ('Stopped', 'Failed')"), other.pid.call_one().get() > 0)
"""
    ) == ["[('killed', 'signal 9', True), ('worker', 'its proc has ended: signal 9', True)]", "[(0,)] True"]
