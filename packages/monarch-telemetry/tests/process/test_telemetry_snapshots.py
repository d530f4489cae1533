"""Snapshots and resources of a real job: the tree with its ids, actors that have failed, and faults that canned queries find in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import telemetry_program

PROGRAM = """
import asyncio, json, logging, os, signal, sys
import monarch.actor
import monarch.telemetry as telemetry
from monarch.actor import Actor, SupervisionError, endpoint, this_host
from monarch.actor.testing import local_hosts
from monarch.telemetry._queries.catalog import load
from monarch.telemetry._agents.status import status
from observed_job import rows, until

monarch.actor.unhandled_fault_hook = lambda failure: None

class Worker(Actor):
    def __init__(self) -> None:
        self.kept = []

    @endpoint
    def step(self) -> None:
        pass

    @endpoint
    def wait_for(self, path: str) -> None:
        with open(path) as file:
            file.read()

    @endpoint
    def leak(self, mebibytes: int) -> None:
        self.kept.append(b"x" * (mebibytes << 20))

    @endpoint
    def fail(self) -> None:
        raise ValueError("no such row")

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

def snapshots(more):
    # This many more than there are now.
    (count,) = rows("SELECT count(*) FROM snapshots")[0]
    until(f"SELECT count(*) >= {count + more} FROM snapshots", [(True,)])

LAST = "snapshot_id = (SELECT max(snapshot_id) FROM snapshots)"
workers = this_host().spawn_procs({"gpus": 2}, name="workers")
worker = workers.spawn("worker", Worker)
worker.step.call().get()
running = telemetry.start(snapshot_interval_secs=0.3)
"""


def shown(text: str) -> list[str]:
    return telemetry_program.shown(PROGRAM + text)


def test_snapshot_is_the_tree_of_the_job():
    assert shown("""
snapshots(2)
print("=", rows(f"SELECT node_kind, count(*) FROM nodes WHERE {LAST} GROUP BY node_kind ORDER BY node_kind"))
print("=", rows("SELECT r.num_hosts, r.started_at = p.started_us FROM root_nodes r, procs p JOIN meshes m ON m.id = p.mesh_id"
                f" WHERE r.{LAST} AND m.class = 'Client'"))
print("=", rows(f"SELECT h.host_num_procs FROM host_nodes h JOIN hosts t ON t.host_id = h.node_id WHERE h.{LAST}"))
print("=", rows("SELECT n.proc_name, n.num_actors, n.is_poisoned FROM proc_nodes n JOIN procs p ON p.proc_id = n.node_id"
                f" WHERE n.{LAST} ORDER BY n.proc_name"))
print("=", rows("SELECT a.rank, n.actor_type, n.actor_status, n.queue_depth, n.is_system, n.created_at = a.timestamp_us,"
                " n.last_message_handler, p.rank AS of FROM actor_nodes n JOIN actors a ON a.id = n.node_id"
                " JOIN meshes m ON m.id = a.mesh_id"
                " JOIN children c ON c.child_id = n.node_id AND c.snapshot_id = n.snapshot_id"
                " JOIN procs p ON p.proc_id = c.parent_id"
                f" WHERE n.{LAST} AND m.given_name = 'worker' ORDER BY a.rank"))
print("=", rows("SELECT count(*) FROM (SELECT snapshot_id FROM snapshots GROUP BY snapshot_id HAVING count(*) > 1)"))
print("=", rows("SELECT count(*) FROM children WHERE parent_id = child_id"))
print("=", rows("SELECT count(*) FROM nodes n LEFT ANTI JOIN children c ON c.child_id = n.node_id AND c.snapshot_id = n.snapshot_id"
                f" WHERE n.{LAST} AND n.node_kind <> 'root'"))
""") == [
        "[('actor', 5), ('host', 1), ('proc', 4), ('root', 1)]",
        "[(1, True)]",
        "[(3,)]",
        "[('client', 1, False), ('workers[0]', 1, False), ('workers[1]', 1, False)]",
        "[(0, '__main__.Worker', 'Idle', 0, False, True, None, 0), (1, '__main__.Worker', 'Idle', 0, False, True, None, 1)]",
        "[(0,)]",
        "[(0,)]",
        "[(0,)]",
    ]


def test_actor_that_runs_and_actor_that_has_failed():
    assert shown("""
os.mkfifo("pipe")
worker.slice(gpus=0).wait_for.broadcast("pipe")
try:
    worker.slice(gpus=1).fail.call_one().get()
except Exception as error:
    print("=", type(error).__name__)
worker.slice(gpus=1).fail.broadcast()
until(f"SELECT count(*) FROM actor_failures WHERE {LAST}", [(1,)])
print("=", rows("SELECT n.actor_status, n.last_message_handler, e.active_count, h.name, h.oldest_since < s.snapshot_ts"
                " FROM actor_nodes n JOIN actors a ON a.id = n.node_id JOIN meshes m ON m.id = a.mesh_id"
                " LEFT JOIN actor_executions e ON e.snapshot_id = n.snapshot_id AND e.node_id = n.node_id"
                " LEFT JOIN active_handlers h ON h.snapshot_id = n.snapshot_id AND h.node_id = n.node_id"
                " JOIN snapshots s ON s.snapshot_id = n.snapshot_id"
                f" WHERE n.{LAST} AND m.given_name = 'worker' ORDER BY a.rank"))
print("=", rows("SELECT f.failure_error_message, f.failure_root_cause_actor = a.full_name, f.failure_root_cause_name,"
                f" f.failure_is_propagated FROM actor_failures f JOIN actors a ON a.id = f.node_id WHERE f.{LAST}"))
print("=", rows(f"SELECT proc_name, is_poisoned, failed_actor_count, num_actors FROM proc_nodes WHERE {LAST} ORDER BY proc_name"))
print("=", "Failed" in status(running.asking))
""") == [
        "ActorError",
        "[('Processing', 'wait_for', 1, 'wait_for', True), ('Failed', 'fail', None, None, None)]",
        "[('ValueError: no such row', True, \"worker{'gpus': 1/2}\", False)]",
        "[('client', False, 0, 1), ('telemetry', False, 0, 1), ('workers[0]', False, 0, 1), ('workers[1]', True, 1, 0)]",
        "True",
    ]


def test_growing_queue_is_found():
    assert shown("""
os.mkfifo("pipe")
slow = worker.slice(gpus=1)
slow.wait_for.broadcast("pipe")
snapshots(1)
for _ in range(5):
    for _ in range(50):
        slow.step.broadcast()
    snapshots(1)
found = telemetry.query(load().query("queue_growth").sql).to_pylist()
print("=", [(row["mesh"], row["rank"], row["depth_min"] < 50, row["depth_max"] >= 250, row["last_handler"]) for row in found])
print("=", [line for line in status(running.asking).splitlines() if "Processing" in line])
""") == ["[('worker', 1, True, True, 'wait_for')]", "['Processing\\t1\\t250']"]


def test_leak_and_peak_of_killed_procs_are_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MONARCH_PROCESS_MEMORY_METRIC_INTERVAL", "200ms")
    assert shown("""
leaking = worker.slice(gpus=0)
samples = "FROM resources WHERE proc = 'workers[0]'"
for _ in range(8):
    leaking.leak.call_one(16).get()
    (count,) = rows(f"SELECT count(*) {samples}")[0]
    until(f"SELECT count(*) > {count + 1} {samples}", [(True,)])
found = telemetry.query(load().query("memory_growth").sql).to_pylist()
print("=", [(row["proc"], row["most_mib"] >= 128, row["steady"] > 0.8) for row in found])
leaking.die.broadcast()
until("SELECT count(*) FROM procs WHERE signal = 9", [(1,)])
print("=", rows("SELECT rss_peak_bytes >= 128 * 1048576 FROM procs WHERE signal = 9"))
""") == ["[('workers[0]', True, True)]", "[(True,)]"]


def test_gpus_of_the_hosts_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!{sys.executable}\nprint('0, NVIDIA Z9, 81559, 1024, 7')\nprint('1, NVIDIA Z9, 81559, [N/A], [N/A]')\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert shown("""
until("SELECT count(*) >= 2 FROM resources WHERE gpu IS NOT NULL", [(True,)])
print("=", rows("SELECT DISTINCT gpu, gpu_util_pct, gpu_memory_bytes, proc FROM resources WHERE gpu IS NOT NULL ORDER BY gpu"))
print("=", json.loads(rows("SELECT gpus_json FROM hosts")[0][0]))
""") == [
        "[(0, 7.0, 1073741824, None), (1, None, None, None)]",
        "[{'index': 0, 'name': 'NVIDIA Z9', 'memory_bytes': 85520809984}, {'index': 1, 'name': 'NVIDIA Z9', 'memory_bytes': 85520809984}]",
    ]


def test_snapshot_has_an_error_for_an_unresponsive_proc():
    assert shown("""
async def main():
    await running.stop()
    async with local_hosts(2) as hosts:
        again = telemetry.start(hosts=hosts, snapshot_interval_secs=0.5)
        there = hosts.spawn_procs({"gpus": 1}, name="there")
        distant = there.spawn("distant", Worker)
        await distant.step.call()
        whole = ("SELECT count(*) FROM (SELECT n.snapshot_id FROM actor_nodes n JOIN snapshots s ON s.snapshot_id = n.snapshot_id"
                 " JOIN actors a ON a.id = n.node_id JOIN meshes m ON m.id = a.mesh_id WHERE m.given_name = 'distant'"
                 " GROUP BY n.snapshot_id HAVING count(*) = 2)")
        until(whole.replace("count(*) FROM (", "count(*) >= 2 FROM (", 1), [(True,)])
        print("=", rows("SELECT max(num_hosts) FROM root_nodes"))
        pid = rows("SELECT pid FROM live_procs('there') ORDER BY rank")[0][0]
        os.kill(pid, signal.SIGSTOP)
        until("SELECT count(*) > 0 FROM resolution_errors", [(True,)])
        print("=", rows("SELECT DISTINCT r.error_code, n.node_kind, p.proc_name, p.num_actors FROM resolution_errors r"
                        " JOIN nodes n ON n.node_id = r.node_id AND n.snapshot_id = r.snapshot_id"
                        " JOIN proc_nodes p ON p.node_id = r.node_id AND p.snapshot_id = r.snapshot_id"))
        os.kill(pid, signal.SIGCONT)
        await there.stop()
asyncio.run(main())
""") == ["[(3,)]", "[('gateway_timeout', 'proc', 'there[0]', 1)]"]


def test_nested_procs_and_causes_are_found_across_hosts():
    assert shown("""
class Owner(Actor):
    @endpoint
    async def spawn(self, hosts) -> None:
        self.worker = hosts.spawn_procs({"gpus": 1}, name="deep").spawn("deep_worker", Worker)
        await self.worker.step.call()

    @endpoint
    async def break_it(self) -> None:
        self.worker.fail.broadcast()

async def main():
    await running.stop()
    async with local_hosts(2) as hosts:
        again = telemetry.start(hosts=hosts, snapshot_interval_secs=0.3)
        owner = hosts.slice(hosts=0).spawn_procs({"gpus": 1}, name="near").spawn("owner", Owner)
        await owner.spawn.call(hosts.slice(hosts=1))
        print("=", until("SELECT mesh_name, rank FROM live_actors('deep_worker')", [("deep_worker", 0)]))
        owner.break_it.broadcast()
        until("SELECT count(*) > 0 FROM actor_failures WHERE failure_is_propagated", [(True,)])
        print("=", rows("SELECT DISTINCT f.failure_error_message, f.failure_root_cause_name, a.rank FROM actor_failures f"
                        " JOIN actors a ON a.full_name = f.failure_root_cause_actor WHERE f.failure_is_propagated"))
        until("SELECT count(*) FROM failures WHERE mesh_name IN ('owner', 'deep_worker')", [(2,)])
        print("=", rows("SELECT f.mesh_name, c.mesh_name AS cause FROM failures f LEFT JOIN failures c ON c.id = f.cause_id"
                        " WHERE f.mesh_name IN ('owner', 'deep_worker') ORDER BY f.mesh_name"))
asyncio.run(main())
""") == [
        "[('deep_worker', 0)]",
        "[('ValueError: no such row', \"deep_worker{'gpus': 0/1}\", 0)]",
        "[('deep_worker', None), ('owner', 'deep_worker')]",
    ]
