"""Traces of a real job: a call through three procs and a cast are one trace, whose spans lie in each other across processes."""

from __future__ import annotations

import telemetry_program

PROGRAM = """
import json, logging, os, sys
import monarch.telemetry as telemetry
from monarch.actor import Actor, ActorError, endpoint, span, this_host
from monarch.extension.trace import TraceContext, trace_context, use_trace
from observed_job import rows, until

class Stage(Actor):
    def __init__(self, following=None):
        self.following = following

    @endpoint
    async def step(self) -> list[str]:
        with span("work", stage="here"):
            logging.getLogger("stage").warning("in a trace")
            telemetry.record("seen")
        later = [] if self.following is None else await self.following.step.call_one()
        here = trace_context()
        return [here.traceparent if here else "", *later]

    @endpoint
    async def note(self) -> None:
        print("noted")

    @endpoint
    async def fail(self) -> None:
        raise ValueError("no such row")

def procs(name, count):
    return this_host().spawn_procs({"n": count}, name=name)

last = procs("c", 2).spawn("last", Stage)
middle = procs("b", 1).spawn("middle", Stage, last.slice(n=0))
first = procs("a", 1).spawn("first", Stage, middle)
first.step.call_one().get()
running = telemetry.start()
request = TraceContext.from_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
"""

NAMED = """
WITH named AS (SELECT s.*, c.trace_id, c.parent_process_id, c.parent_span_id,
                      split_part(split_part(s.fields_json, '"otel.kind": "', 2), '"', 1) AS kind,
                      split_part(split_part(s.fields_json, '"otel.status_code": "', 2), '"', 1) AS status
               FROM spans s JOIN span_context c ON c.process_id = s.process_id AND c.span_id = s.id)
SELECT a.name, a.kind, a.status, b.name AS parent, b.kind AS parent_kind, count(*) FROM named a
LEFT JOIN named b ON b.process_id = a.parent_process_id AND b.id = a.parent_span_id
WHERE a.trace_id = '4bf92f3577b34da6a3ce929d0e0e4736'
GROUP BY a.name, a.kind, a.status, b.name, b.kind ORDER BY a.name, a.kind, parent"""


def shown(text: str) -> list[str]:
    return telemetry_program.shown(f"{PROGRAM}\nNAMED = '''{NAMED}'''\n{text}")


def test_call_chain_and_cast_are_one_trace():
    assert shown("""
with use_trace(request):
    parents = first.step.call_one().get()
    last.note.broadcast()
until("SELECT count(*) FROM span_events WHERE event_type = 'close'", [(12,)])
for row in rows(NAMED):
    print("=", *row)
print("=", rows("SELECT count(*), count(DISTINCT trace_id) FROM span_context"))
server = "SELECT m.given_name, s.id FROM spans s JOIN procs p ON p.proc_id = s.process_id JOIN meshes m ON m.id = p.mesh_id"
found = dict(rows(server + " WHERE s.fields_json LIKE '%\\"server\\"%'"))
print("=", [f"{found[name]:016x}" for name in "abc"] == [parent.split("-")[2] for parent in parents])
print("=", rows("SELECT DISTINCT parent_span_id = 67667974448284343, parent_process_id FROM span_context c JOIN procs p"
                " ON p.proc_id = c.process_id JOIN meshes m ON m.id = p.mesh_id WHERE m.given_name = 'client'"))
until("SELECT count(*) FROM logs WHERE line = 'in a trace' AND trace_id IS NOT NULL", [(3,)])
print("=", rows("SELECT count(*) FROM logs l JOIN spans s ON s.id = l.span_id WHERE l.line = 'in a trace' AND s.name LIKE '%.step'"))
print("=", rows("SELECT count(*) FROM events e JOIN spans s ON s.id = e.parent_span WHERE e.name = 'seen' AND s.name LIKE '%.step'"))
""") == [
        "first.step client ok None None 1",
        "first.step server ok first.step client 1",
        "last.note consumer ok last.note producer 2",
        "last.note producer ok None None 1",
        "last.step client ok middle.step server 1",
        "last.step server ok last.step client 1",
        "middle.step client ok first.step server 1",
        "middle.step server ok middle.step client 1",
        "work   first.step server 1",
        "work   last.step server 1",
        "work   middle.step server 1",
        "[(12, 1)]",
        "True",
        "[(True, None)]",
        "[(3,)]",
        "[(3,)]",
    ]


def test_failed_call_is_an_error_at_both_ends():
    assert shown("""
with use_trace(request):
    try:
        first.fail.call_one().get()
    except ActorError:
        print("= failed")
until("SELECT count(*) FROM span_events WHERE event_type = 'close'", [(2,)])
for row in rows(NAMED):
    print("=", *row)
first.step.call_one().get()
until("SELECT count(*) FROM message_status_events WHERE status = 'complete'", [(3,)])
print("=", rows("SELECT count(*) FROM span_context"))
""") == ["failed", "first.fail client error None None 1", "first.fail server error first.fail client 1", "[(2,)]"]
