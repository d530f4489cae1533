"""Telemetry of a real job: what processes do is in the tables, whatever they were when it began and however they end."""

from __future__ import annotations

import telemetry_program

PROGRAM = """
import asyncio, json, logging, os, signal, sys
from pathlib import Path
import monarch.actor
import monarch.telemetry as telemetry
from monarch.actor import Actor, ActorError, SupervisionError, endpoint, get_meter, span, this_host
from monarch.actor.testing import local_hosts
from observed_job import rows, stop, until

monarch.actor.unhandled_fault_hook = lambda failure: None

class Worker(Actor):
    @endpoint
    def step(self, n: int) -> int:
        print(f"step {n}")
        logging.getLogger("worker").warning("at %d", n)
        with span("work", n=n):
            telemetry.record("rows", count=n)
        get_meter("loader").create_counter("rows").add(0.5)
        return n

    @endpoint
    def fail(self) -> None:
        raise ValueError("no such row")

    @endpoint
    def die(self) -> None:
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

workers = this_host().spawn_procs({"gpus": 2}, name="workers")
worker = workers.spawn("worker", Worker)
worker.step.call(1).get()
running = telemetry.start()
"""


def shown(text: str) -> list[str]:
    return telemetry_program.shown(PROGRAM + text)


def test_calls_are_messages_at_both_ends():
    assert shown("""
for n in range(5):
    worker.step.call(n).get()
worker.step.broadcast(9)
print("=", until("SELECT count(*) FROM messages WHERE endpoint = 'step'", [(12,)]))
until("SELECT count(*) FROM message_status_events WHERE status = 'complete'", [(12,)])
print("=", rows("SELECT status, count(*) FROM message_status_events GROUP BY status ORDER BY status"))
print("=", rows("SELECT count(*), count(DISTINCT m.id) FROM messages m JOIN message_status_events e ON e.message_id = m.id"
                " WHERE e.status = 'complete'"))
print("=", rows("SELECT count(*) FROM sent_messages s JOIN meshes m ON m.id = s.actor_mesh_id WHERE m.given_name = 'worker'"))
print("=", rows("SELECT DISTINCT a.full_name FROM messages m JOIN actors a ON a.id = m.from_actor_id"))
stats = "SELECT side, adverb, sum(count), sum(errors) FROM endpoint_stats WHERE endpoint = 'step' GROUP BY side, adverb"
print("=", rows(stats + " ORDER BY side, adverb"))
print("=", rows("SELECT bool_and(latency_max_us > 0 AND latency_sum_us >= latency_max_us) FROM endpoint_stats WHERE adverb = 'call'"))
""") == [
        "[(12,)]",
        "[('active', 12), ('complete', 12), ('queued', 12)]",
        "[(12, 12)]",
        "[(6,)]",
        "[('<root>',)]",
        "[('client', 'broadcast', 1, 0), ('client', 'call', 5, 0), ('server', 'broadcast', 2, 0), ('server', 'call', 10, 0)]",
        "[(True,)]",
    ]


def test_actor_states_go_from_created_to_stopped():
    assert shown("""
other = workers.spawn("other", Worker)
other.step.call(1).get()
other.stop().get()
of = " FROM actor_status_events e JOIN actors a ON a.id = e.actor_id WHERE a.display_name LIKE 'other%0/2}'"
until("SELECT count(*)" + of + " AND new_status = 'Stopped'", [(1,)])
print("=", [state for state, in rows("SELECT new_status" + of + " ORDER BY e.timestamp_us, e.id")])
print("=", rows("SELECT new_status FROM actor_status_events e JOIN actors a ON a.id = e.actor_id WHERE a.full_name = '<root>'"))
print("=", rows("SELECT count(*) FROM sent_messages s JOIN meshes m ON m.id = s.actor_mesh_id WHERE m.given_name = 'other'"))
""") == [
        "['Created', 'Initializing', 'Idle', 'Processing', 'Idle', 'Stopping', 'Stopped']",
        "[('Client',)]",
        "[(1,)]",
    ]


def test_view_of_a_call_is_its_slice():
    assert shown("""
workers.slice(gpus=1).spawn("second", Worker).step.call(1).get()
worker.slice(gpus=slice(1, 2)).step.broadcast(2)
worker.slice(gpus=1).step.call_one(3).get()
until("SELECT count(*) FROM sent_messages s JOIN meshes m ON m.id = s.actor_mesh_id WHERE m.given_name IN ('worker', 'second')", [(3,)])
print("=", rows("SELECT s.view_json, s.shape_json = s.view_json FROM sent_messages s JOIN meshes m ON m.id = s.actor_mesh_id"
                " WHERE m.given_name IN ('worker', 'second') ORDER BY s.timestamp_us"))
print("=", rows("SELECT parent_view_json FROM meshes WHERE given_name = 'second'"))
""") == [
        str(
            [
                ('{"labels": [], "slice": {"offset": 0, "sizes": [], "strides": []}}', True),
                ('{"labels": ["gpus"], "slice": {"offset": 1, "sizes": [1], "strides": [1]}}', True),
                ('{"labels": [], "slice": {"offset": 1, "sizes": [], "strides": []}}', True),
            ]
        ),
        str([('{"labels": [], "slice": {"offset": 1, "sizes": [], "strides": []}}',)]),
    ]


def test_existing_actors_and_meshes_are_known():
    assert shown("""
print("=", rows("SELECT a.rank, a.display_name, m.given_name FROM actors a JOIN meshes m ON a.mesh_id = m.id"
                " WHERE m.given_name = 'worker' ORDER BY a.rank"))
print("=", rows("SELECT p.given_name, p.class FROM meshes m JOIN meshes p ON m.parent_mesh_id = p.id WHERE m.given_name = 'worker'"))
print("=", rows("SELECT p.given_name, p.class FROM meshes m JOIN meshes p ON m.parent_mesh_id = p.id WHERE m.given_name = 'workers'"))
print("=", rows("SELECT shape_json, parent_view_json FROM meshes WHERE given_name = 'worker'"))
print("=", rows("SELECT parent_view_json FROM meshes WHERE given_name = 'workers'"))
print("=", rows("SELECT m.given_name, p.rank, p.ended_us FROM procs p JOIN meshes m ON p.mesh_id = m.id ORDER BY m.given_name, p.rank"))
print("=", rows("SELECT state, left_us FROM hosts"), rows("SELECT given_name FROM meshes WHERE class = 'Host'"))
""") == [
        "[(0, \"worker{'gpus': 0/2}\", 'worker'), (1, \"worker{'gpus': 1/2}\", 'worker')]",
        "[('workers', 'Proc')]",
        "[('hosts', 'Host')]",
        str([('{"labels": ["gpus"], "slice": {"offset": 0, "sizes": [2], "strides": [1]}}',) * 2]),
        str([('{"labels": [], "slice": {"offset": 0, "sizes": [], "strides": []}}',)]),
        "[('client', 0, None), ('workers', 0, None), ('workers', 1, None)]",
        "[('ready', None)] [('hosts',)]",
    ]


def test_output_logging_spans_events_and_metrics_of_processes():
    assert shown("""
worker.step.call(7).get()
until("SELECT count(*) FROM logs WHERE stream = 'stdout' AND line = 'step 7'", [(2,)])
print("=", rows("SELECT DISTINCT stream, proc, mesh_name, rank, line FROM logs WHERE line = 'step 7' ORDER BY rank"))
print("=", rows("SELECT level, logger, mesh_name, rank, line FROM logs WHERE stream = 'logging' ORDER BY rank"))
print("=", rows("SELECT name, fields_json FROM spans GROUP BY name, fields_json"))
print("=", rows("SELECT event_type, count(*) FROM span_events GROUP BY event_type ORDER BY event_type"))
print("=", rows("SELECT name, fields_json, count(*) FROM events GROUP BY name, fields_json"))
print("=", rows("SELECT name, scope_name, is_monotonic, sum(sum_f64) FROM metric_sums WHERE scope_name <> 'monarch'"
                " GROUP BY name, scope_name, is_monotonic"))
print("=", rows("SELECT DISTINCT l.rank FROM logs l JOIN actors a ON a.id = l.actor_id ORDER BY l.rank"))
""") == [
        "[('stdout', 'workers[0]', 'worker', 0, 'step 7'), ('stdout', 'workers[1]', 'worker', 1, 'step 7')]",
        "[('warn', 'worker', 'worker', 0, 'at 7'), ('warn', 'worker', 'worker', 1, 'at 7')]",
        "[('work', '{\"n\": 7}')]",
        "[('close', 2), ('enter', 2), ('exit', 2)]",
        "[('rows', '{\"count\": 7}', 2)]",
        "[('rows', 'loader', True, 1.0)]",
        "[(0,), (1,)]",
    ]


def test_killed_proc_is_a_failure_with_first_cause():
    assert shown("""
try:
    worker.slice(gpus=1).die.call_one().get()
except SupervisionError:
    pass
until("SELECT count(*) FROM failures", [(2,)])
print("=", rows("SELECT kind, first_cause, mesh_name, rank, exit_reason, message, last_lines FROM failures ORDER BY first_cause DESC"))
print("=", rows("SELECT a.mesh_name, b.mesh_name AS cause FROM failures a JOIN failures b ON a.cause_id = b.id"))
print("=", rows("SELECT signal, exit_code FROM procs WHERE ended_us IS NOT NULL"))
until("SELECT count(*) FROM supervision_events WHERE handled", [(1,)])
print("=", rows("SELECT f.mesh_name, s.delivered_to, s.crashed_ranks_json FROM supervision_events s"
                " JOIN failures f ON s.failure_id = f.id"))
print("=", rows("SELECT new_status, count(*) FROM actor_status_events WHERE new_status = 'Failed' GROUP BY new_status"))
""") == [
        "[('infrastructure', True, 'workers', 1, 'signal', 'signal 9', 'last words'),"
        " ('infrastructure', False, 'worker', 1, 'signal', 'its proc has ended: signal 9', 'last words')]",
        "[('worker', 'workers')]",
        "[(9, None)]",
        "[('worker', '<root>', '[1]')]",
        "[('Failed', 1)]",
    ]


def test_live_functions_join_history_and_stacks_merge():
    assert shown("""
print("=", rows("SELECT l.mesh_name, l.rank, l.actor_status FROM live_actors('worker') l JOIN actors a ON a.id = l.actor_id"
                " ORDER BY l.rank"))
print("=", rows("SELECT mesh_name, rank, state FROM live_procs('workers') ORDER BY rank"))
print("=", rows("SELECT count(*) FROM memory('workers') WHERE rss_bytes > 0 AND vm_bytes > rss_bytes"))
print("=", rows("SELECT count(*) FROM live_actors('missing')"))
print("=", rows("SELECT count(*) > 0 FROM stacks('workers') s JOIN live_procs('workers') p ON s.proc_id = p.proc_id"
                " WHERE s.frame_depth = 0"))
report = telemetry.stacks()
print("=", any("in client" in line for line in str(report).splitlines()), report.missing)
""") == [
        "[('worker', 0, 'Idle'), ('worker', 1, 'Idle')]",
        "[('workers', 0, 'running'), ('workers', 1, 'running')]",
        "[(2,)]",
        "[(0,)]",
        "[(True,)]",
        "True ()",
    ]


def test_queries_are_no_messages_and_stop_ends_them():
    assert shown("""
for _ in range(5):
    rows("SELECT * FROM messages")
print("=", rows("SELECT count(*) FROM messages"), rows("SELECT count(*) FROM sent_messages"))
running.stop().get()
worker.step.call(1).get()
print("=", running.engine.query("SELECT count(*) AS n FROM messages").to_pylist())
try:
    telemetry.query("SELECT 1")
except telemetry.TelemetryError as error:
    print("=", str(error).partition(chr(10))[0])
again = telemetry.start()
worker.step.call(1).get()
until("SELECT count(*) FROM messages", [(2,)])
print("= again")
""") == ["[(0,)] [(0,)]", "[{'n': 0}]", "telemetry is not enabled in this process", "again"]


def test_killed_collector_is_replaced_and_its_loss_stated():
    assert shown("""
worker.step.call(1).get()
until("SELECT count(*) FROM messages", [(2,)])
collector = running.asking.hosts[0].pid
os.kill(collector, signal.SIGKILL)
while True:
    try:
        worker.step.call(2).get()
        if rows("SELECT count(*) FROM messages WHERE endpoint = 'step'")[0][0] >= 2:
            break
    except telemetry.QueryTimeout:
        continue
print("= answers again")
print("=", rows("SELECT level, count(*) FROM events WHERE name = 'telemetry.collector_ended' GROUP BY level"))
print("=", rows("SELECT count(*) FROM actors a JOIN meshes m ON a.mesh_id = m.id WHERE m.given_name = 'worker'"))
""") == ["answers again", "[('warn', 1)]", "[(2,)]"]


def test_events_after_a_collectors_kill_are_collected():
    assert shown("""
import time
other = this_host().spawn_procs(name="other").spawn("other", Worker)
worker.step.call(1).get()
other.step.call(1).get()
until("SELECT count(*) FROM messages WHERE endpoint = 'step'", [(3,)])
victim = rows("SELECT pid FROM procs p JOIN meshes m ON p.mesh_id = m.id WHERE m.given_name = 'other'")[0][0]
collector = running.asking.hosts[0].pid
os.kill(collector, signal.SIGKILL)
os.kill(victim, signal.SIGKILL)
for _ in range(20):
    worker.step.call(2).get()
while running.asking.hosts[0].pid == collector:  # polls: no question is asked
    time.sleep(0.01)  # sleeps: between two looks
print("=", rows("SELECT count(*) FROM messages WHERE endpoint = 'step'"))
print("=", rows("SELECT count(*) FROM failures WHERE mesh_name = 'other' AND first_cause"))
print("=", rows(f"SELECT count(*) FROM procs WHERE pid = {victim} AND ended_us IS NOT NULL"))
print("=", rows("SELECT count(*) FROM events WHERE name = 'telemetry.collector_ended'"))
""") == ["[(43,)]", "[(1,)]", "[(1,)]", "[(1,)]"]


def test_actors_of_a_stopped_process_are_unknown():
    assert shown("""
pid = worker.slice(gpus=1).pid.call_one().get()
until("SELECT rank, actor_status FROM live_actors('worker') ORDER BY rank", [(0, "Idle"), (1, "Idle")])
stop(pid)
print("=", rows("SELECT rank, actor_status FROM live_actors('worker') ORDER BY rank"))
print("=", rows(f"SELECT count(*) > 0 FROM stacks() WHERE pid = {pid}"))
os.kill(pid, signal.SIGCONT)
print("=", until("SELECT rank, actor_status FROM live_actors('worker') ORDER BY rank", [(0, "Idle"), (1, "Idle")]))
""") == ["[(0, 'Idle'), (1, 'Unknown')]", "[(True,)]", "[(0, 'Idle'), (1, 'Idle')]"]


def test_query_names_an_unresponsive_host_of_two():
    assert shown("""
running.stop().get()
async def main():
    async with local_hosts(2) as hosts:
        running = telemetry.start(hosts=hosts)
        there = hosts.spawn_procs({"gpus": 2}, name="there")
        worker = there.spawn("distant", Worker)
        await worker.step.call(1)
        await worker.slice(hosts=1, gpus=0).step.call_one(5)
        until("SELECT count(*) FROM messages WHERE endpoint = 'step'", [(5,)])
        until("SELECT count(*) FROM logs WHERE stream = 'stdout'", [(5,)])
        print("=", rows("SELECT count(*) FROM meshes WHERE given_name = 'distant'"))
        print("=", rows("SELECT a.rank, count(*) FROM messages m JOIN actors a ON a.id = m.to_actor_id WHERE m.endpoint = 'step'"
                        " GROUP BY a.rank ORDER BY a.rank"))
        print("=", rows("SELECT proc, line FROM logs WHERE stream = 'stdout' AND line = 'step 5'"))
        print("=", rows("SELECT mesh_name, rank FROM live_actors('distant') ORDER BY rank"))
        print("=", rows("SELECT count(*), count(DISTINCT host_id) FROM hosts"))
        stats = "SELECT side, adverb, sum(count) FROM endpoint_stats WHERE endpoint = 'step' GROUP BY side, adverb ORDER BY side, adverb"
        print("=", rows(stats))
        coverage = json.loads(telemetry.query("SELECT 1 FROM hosts").schema.metadata[b"coverage"])
        print("=", coverage["hosts_asked"], coverage["hosts_answered"], coverage["missing"])
        stopped = running.asking.hosts[1]
        stop(stopped.pid)
        answer = running.asking.ask("SELECT count(*) FROM messages WHERE endpoint = 'step'", timeout=1.0)
        print("=", answer.table.to_pylist()[0]["count(*)"], answer.coverage.missing)
        try:
            running.asking.ask("SELECT count(*) FROM messages", timeout=1.0, require_all=True)
        except telemetry.PartialAnswer as error:
            print("=", error.missing, error.table.num_rows)
        print("=", [host for host, _ in telemetry.stacks(hosts).missing])
        os.kill(stopped.pid, signal.SIGCONT)
        until("SELECT count(*) FROM messages WHERE endpoint = 'step'", [(5,)])
        os.kill(stopped.pid, signal.SIGKILL)
        until("SELECT count(*) FROM procs", [(7,)])
        print("=", rows("SELECT p.rank FROM procs p JOIN meshes m ON p.mesh_id = m.id WHERE m.given_name = 'there' ORDER BY p.rank"))
        await there.stop()
asyncio.run(main())
""") == [
        "[(1,)]",
        "[(0, 1), (1, 1), (2, 2), (3, 1)]",
        "[('there[2]', 'step 5')]",
        "[('distant', 0), ('distant', 1), ('distant', 2), ('distant', 3)]",
        "[(3, 3)]",
        "[('client', 'call', 1), ('client', 'call_one', 1), ('server', 'call', 5)]",
        "3 3 []",
        "2 (Missing(host='hosts[1]', reason='no answer in time'),)",
        "{'hosts[1]': 'no answer in time to an earlier question, and none since'} 1",
        "['hosts[1]']",
        "[(0,), (1,), (2,), (3,)]",
    ]


def test_partial_answers_are_merged_by_leader_hosts():
    assert shown("""
from monarch.telemetry._collector.options import Options
from monarch.telemetry._engine.engine import Engine
running.stop().get()
async def main():
    async with local_hosts(4) as hosts:
        engine = Engine({"hosts": hosts}, Options(), group=2)
        engine.start()
        there = hosts.spawn_procs(name="there")
        distant = there.spawn("distant", Worker)
        await distant.step.call(1)
        sql = "SELECT endpoint, count(*) AS n, min(timestamp_us) > 0 AS ok FROM messages WHERE endpoint = 'step' GROUP BY endpoint"
        while (answer := engine.ask(sql)).table.to_pylist() != [{"endpoint": "step", "n": 4, "ok": True}]:
            logging.getLogger("test").debug("%s", answer)
        print("=", answer.coverage.hosts_asked, answer.coverage.hosts_answered, answer.coverage.stages[-1].hosts)
        listed = "SELECT proc_id FROM procs WHERE rank < 9 ORDER BY proc_id"
        print("=", len(engine.ask(listed).table), engine.ask("SELECT count(*) AS n FROM live_procs('there')").table.to_pylist())
        # A leader, then a member.
        for number in (0, 3):
            stopped = engine.hosts[number]
            stop(stopped.pid)
            answer = engine.ask(sql, timeout=4.0)
            missing = [(one.host == stopped.name, one.reason) for one in answer.coverage.missing]
            print("=", answer.table.to_pylist()[0]["n"], answer.coverage.hosts_answered, missing)
            os.kill(stopped.pid, signal.SIGCONT)
        os.kill(engine.hosts[2].pid, signal.SIGKILL)
        print("=", engine.ask("SELECT count(*) AS n FROM hosts").table.to_pylist())
        try:
            engine.ask("SELECT nothing FROM messages GROUP BY nothing")
        except telemetry.QueryError as error:
            print("=", "nothing" in str(error))
        await there.stop()
asyncio.run(main())
""") == [
        "5 5 3",
        "7 [{'n': 4}]",
        "3 4 [(True, 'no answer in time')]",
        "3 4 [(True, 'no answer in time')]",
        "[{'n': 5}]",
        "True",
    ]


def test_events_are_read_once_despite_a_restart():
    assert (
        shown("""
for n in range(5):
    worker.step.call(n).get()
until("SELECT count(*) FROM message_status_events WHERE status = 'complete'", [(10,)])
until("SELECT count(*) FROM spans", [(10,)])
for _ in range(3):
    print("=", rows("SELECT count(*), count(DISTINCT id) AS ids FROM messages"), rows("SELECT count(*) FROM spans"),
          rows("SELECT sum(count) AS n FROM endpoint_stats WHERE endpoint = 'step' AND side = 'server'"),
          rows("SELECT count(*) FROM actors WHERE display_name LIKE 'worker%'"))
    running.stop().get()
    running = telemetry.start()
""")
        == ["[(10, 10)] [(10,)] [(10,)] [(2,)]"] * 3
    )


def test_calls_after_a_second_start_are_counted_once():
    assert shown("""
for number in range(1, 5):
    worker.step.call(number).get()
    until("SELECT count(*) FROM messages", [(2 * number,)])
    print("=", rows("SELECT count(DISTINCT id) AS ids FROM messages"))
    running.stop().get()
    running = telemetry.start()
""") == ["[(2,)]", "[(4,)]", "[(6,)]", "[(8,)]"]


def test_lost_host_keeps_its_reason_until_stop():
    assert shown("""
running.stop().get()
async def main():
    async with local_hosts(2) as hosts:
        running = telemetry.start(hosts=hosts)
        there = hosts.spawn_procs(name="there")
        await there.initialized
        pid = rows("SELECT pid FROM live_procs('there') WHERE rank = 0")[0][0]
        for _ in range(2):
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGKILL)
        until("SELECT state, count(*) FROM hosts GROUP BY state ORDER BY state", [("lost", 1), ("ready", 2)])
        print("=", rows("SELECT reason FROM hosts WHERE left_us IS NOT NULL")[0][0].endswith("agent killed"))
        await running.stop()
        print("= stopped", flush=True)
        os._exit(0)
asyncio.run(main())
""") == ["True", "stopped"]


# Tables that this job does not fill, or only at times: they have tests of their own.
_OF_OTHERS = {
    *("actor_failures", "actor_inbound_orderings", "ordering_sessions", "resolution_errors"),
    *("pyspy_dumps", "pyspy_frames", "pyspy_local_variables", "pyspy_stack_traces"),
    *("audit", "fs_events", "job_events", "links", "live_queues", "metric_gauges", "metric_histograms", "mounts", "span_context"),
    *("rdma_buffers", "rdma_ops"),
}


def test_every_column_of_a_job_has_a_source() -> None:
    """A table that stays empty, or a row without a value in a column that must have one, lacks the code that fills it."""
    assert not shown(
        f"OTHERS = {_OF_OTHERS!r}"
        + """
from monarch.telemetry._tables.catalog import TABLES
worker.step.call(2).get()
try: worker.fail.call().get()
except ActorError: pass
try: worker.slice(gpus=1).die.call().get()
except SupervisionError: pass
for table in TABLES.values():
    if table.name not in OTHERS:
        until(f"SELECT count(*) > 0 FROM {table.source}", [(True,)])
    columns = [column.name for column in table.columns if not column.nullable]
    counts = ", ".join(f"count({name})" for name in columns)
    (count, *values), = rows(f"SELECT count(*), {counts} FROM {table.source}")
    for name, value in zip(columns, values):
        if value != count:
            print("=", table.name, name, value, count)
"""
    )
