"""Rows of the other wheels in real programs: operations and buffers of monarch-rdma, what happens to a job, links between hosts."""

from __future__ import annotations

import telemetry_program

PROGRAM = """
import os, signal, sys, warnings
import monarch.actor
import monarch.telemetry as telemetry
from monarch.actor import Actor, endpoint, this_host
from observed_job import rows, until

monarch.actor.unhandled_fault_hook = lambda failure: None
"""


def shown(text: str) -> list[str]:
    return telemetry_program.shown(PROGRAM + text)


def test_buffers_between_two_procs_have_rows():
    assert shown("""
from monarch.rdma import RDMAAction, RDMABuffer, RDMAReleasedError

class Owner(Actor):
    @endpoint
    def share(self) -> RDMABuffer:
        self.buffer = RDMABuffer(memoryview(bytearray(1 << 20)), lease=900.0)
        return self.buffer

    @endpoint
    def drop(self) -> None:
        self.buffer.drop().get()

class Reader(Actor):
    @endpoint
    def work(self, buffer: RDMABuffer) -> str:
        copy = memoryview(bytearray(buffer.size()))
        buffer.read_into(copy).get()
        buffer.write_from(copy[:8]).get()
        RDMAAction().fetch_add(buffer, copy[:8], 1).submit().get()
        return buffer.path

    @endpoint
    def fail(self, buffer: RDMABuffer) -> None:
        try:
            buffer.read_into(memoryview(bytearray(buffer.size()))).get()
        except RDMAReleasedError:
            pass

telemetry.start()
owner = this_host().spawn_procs(name="owners").spawn("owner", Owner)
reader = this_host().spawn_procs(name="readers").spawn("reader", Reader)
buffer = owner.share.call_one().get()
path = reader.work.call_one(buffer).get()
ops = "SELECT proc, peer, op, bytes FROM rdma_ops WHERE error IS NULL ORDER BY timestamp_us"
print("=", until(ops, [("readers[0]", "owners[0]", "read", 1 << 20), ("readers[0]", "owners[0]", "write", 8),
                       ("readers[0]", "owners[0]", "fetch_add", 8)]) != [], rows("SELECT DISTINCT path FROM rdma_ops") == [(path,)])
print("=", rows("SELECT proc, bytes, readonly, given_away, lease_until_us - created_us > 800000000 FROM rdma_buffers"))
owner.drop.call_one().get()
reader.fail.call_one(buffer).get()
until("SELECT count(*) FROM rdma_ops WHERE error LIKE 'released: dropped by its owner%'", [(1,)])
print("=", until("SELECT count(*) FROM rdma_buffers", [(0,)]))
print("=", rows("SELECT name FROM events WHERE name LIKE 'rdma%'"))
# With its process.
owner.share.call_one().get()
until("SELECT count(*) FROM rdma_buffers", [(1,)])
owner.stop().get()
""") == ["True True", "[('owners[0]', 1048576, False, True, True)]", "[(0,)]", "[]"]


def test_job_events_and_link_events_have_rows():
    assert shown("""
from monarch.job import ProcessJob

class Host(Actor):
    @endpoint
    def agent(self) -> int:
        return os.getsid(0)  # the worker leads the session of its procs

job = ProcessJob({"trainers": 2}).enable_telemetry()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the port may be taken by another job of this machine
    state = job.state(None)
events = "SELECT event, host, job, kind FROM job_events ORDER BY timestamp_us"
of = (job._title, "process")
print("=", until(events, [("submitted", None, *of), ("attached", None, *of)]) != [])
print("=", rows("SELECT kind, state, count(*), count(DISTINCT link_id) FROM links GROUP BY kind, state"))
print("=", rows("SELECT count(*) FROM links l JOIN hosts h ON h.name = l.to_host JOIN hosts f ON f.name = l.from_host")[0][0] > 0)
victim = state.trainers.slice(hosts=1).spawn_procs(name="look").spawn("host", Host).agent.call_one().get()
os.kill(victim, signal.SIGKILL)
lost = "SELECT detail LIKE 'trainers[1]: %' FROM job_events WHERE event = 'host_lost' AND host IN (SELECT name FROM hosts)"
print("=", until(lost, [(True,)]))
print("=", until("SELECT state, count(*), count(last_error) FROM links GROUP BY state ORDER BY state", [("down", 1, 1), ("up", 1, 0)]))
job.heal()
print("=", until("SELECT event, detail FROM job_events WHERE event IN ('restarted', 'replaced')", [("replaced", "trainers[1]")]))
job.kill()
""") == [
        "True",
        "[('tcp', 'up', 2, 2)]",
        "True",
        "[(True,)]",
        "[('down', 1, 1), ('up', 1, 0)]",
        "[('replaced', 'trainers[1]')]",
    ]
