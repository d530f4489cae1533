"""Hosts that join, are stopped, killed and lost between questions: an answer is that of one session over the rows of those it has."""

from __future__ import annotations

import pytest
import telemetry_program

# On a busy machine.
pytestmark = pytest.mark.timeout(100)
PROGRAM = """
import asyncio, json, os, signal, sys
from pathlib import Path
import monarch.actor
import monarch.telemetry as telemetry
from monarch.actor import Actor, endpoint
from monarch.actor.testing import local_hosts
from monarch.telemetry._collector.options import Options
from monarch.telemetry._engine.engine import Engine
from monarch.telemetry._engine.one_host import OneHost
from observed_job import stop

monarch.actor.unhandled_fault_hook = lambda failure: None
MARKS = "SELECT * FROM events WHERE name = 'mark'"
QUESTIONS = (
    "SELECT fields_json, count(*) AS n, min(timestamp_us) AS t, max(thread_id) AS m FROM events WHERE name = 'mark'"
    " GROUP BY fields_json ORDER BY fields_json",
    "SELECT count(*) AS n, avg(thread_id) AS a, count(DISTINCT fields_json) AS d FROM events WHERE name = 'mark'",
    "SELECT fields_json, timestamp_us FROM events WHERE name = 'mark' ORDER BY timestamp_us DESC, fields_json LIMIT 3",
    "SELECT a.fields_json, count(*) AS n FROM events a JOIN events b ON a.fields_json = b.fields_json"
    " WHERE a.name = 'mark' AND b.name = 'mark' GROUP BY a.fields_json ORDER BY 1",
    "SELECT fields_json, row_number() OVER (ORDER BY timestamp_us, fields_json) AS r FROM events WHERE name = 'mark' ORDER BY r",
)

class Marker(Actor):
    @endpoint
    def mark(self, name: str, count: int) -> None:
        for n in range(count):
            telemetry.record("mark", of=name, n=n % 3)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

def marks(engine):
    return engine.ask(MARKS).table.combine_chunks().to_batches()

def until_marked(engine, number):
    # What another process records is there soon, and a test that waits for what never comes is ended by its time limit.
    while True:
        found = marks(engine)
        if sum(batch.num_rows for batch in found) >= number:
            return found

def until_named(engine, name):
    while True:
        found = marks(engine)
        if any(name in text for batch in found for text in batch.column("fields_json").to_pylist()):
            return found

def agent_of(pid):
    for _ in range(2):
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return pid

def check(what, engine, rows, timeout=10.0):
    # `rows` are those of the hosts that answer, as each of them has given them before.
    union = OneHost({"events": [batch for name in sorted(rows) for batch in rows[name]]})
    answers = [engine.ask(sql, timeout=timeout) for sql in QUESTIONS]
    same = [answer.table.to_pylist() == union.ask(sql).table.to_pylist() for answer, sql in zip(answers, QUESTIONS, strict=True)]
    cover = answers[0].coverage
    print("=", what, same.count(True), cover.hosts_asked, cover.hosts_answered, [one.host for one in cover.missing])

async def main():
    async with local_hosts(3) as hosts:
        singles = {f"hosts[{n}]": Engine({"one": hosts.slice(hosts=n)}, Options(), alone=True) for n in range(3)}
        for one in singles.values():
            one.start()
        engine = Engine({"hosts": hosts}, Options(), alone=True)
        engine.start()
        there = hosts.spawn_procs(name="there")
        marker = there.spawn("marker", Marker)
        pids = [await marker.slice(hosts=n).pid.call_one() for n in range(3)]
        rows = {}
        for n, name in enumerate(singles):
            await marker.slice(hosts=n).mark.call_one(name, 5 + n)
            rows[name] = until_marked(singles[name], 5 + n)
        check("all", engine, rows)
        stopped = engine.hosts[1].pid
        stop(stopped)
        left = {name: rows[name] for name in ("hosts[0]", "hosts[2]")}
        check("stopped", engine, left, timeout=1.2)
        # The number of a host: all hosts here have one name. The question would take 8 s of its time for the stopped collector.
        own = engine.ask(f"SELECT host_id FROM procs WHERE host_id = {engine.hosts[0].host}", require_all=True)
        print("= excluded", own.table.num_rows > 0, own.coverage.hosts_asked, own.coverage.hosts_answered)
        os.kill(stopped, signal.SIGCONT)
        check("continued", engine, rows)
        async with local_hosts(1) as more:
            joined = Engine({"hosts": hosts, "more": more}, Options(), alone=True)
            joined.start()
            alone = Engine({"more": more}, Options(), alone=True)
            alone.start()
            new = more.spawn_procs(name="new")
            await new.spawn("marker", Marker).mark.call_one("more", 4)
            rows["more"] = until_marked(alone, 4)
            check("joined", joined, rows)
            os.kill(joined.hosts[0].pid, signal.SIGKILL)
            # What its ring still has is read again, in its order; on a busy machine that may be less than there was.
            await marker.slice(hosts=0).mark.call_one("again", 1)
            rows["hosts[0]"] = until_named(singles["hosts[0]"], "again")
            check("killed", joined, rows)
            os.kill(agent_of(pids[2]), signal.SIGKILL)
            del rows["hosts[2]"]
            check("lost", joined, rows, timeout=5.0)
            print("= done", flush=True)
            os._exit(0)
asyncio.run(main())
"""


def test_answers_of_real_hosts_match_their_hosts():
    assert telemetry_program.shown(PROGRAM) == [
        "all 5 3 3 []",
        "stopped 5 3 2 ['hosts[1]']",
        "excluded True 1 1",
        "continued 5 3 3 []",
        "joined 5 4 4 []",
        "killed 5 4 4 []",
        "lost 5 4 3 ['hosts[2]']",
        "done",
    ]
