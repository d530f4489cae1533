"""Snapshots between hosts with networks of their own: copies go over streams."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tools.netns.cluster import Cluster, Worker
from tools.netns.requirement import need_namespaces

PROGRAM = """
import json, os, signal, sys, time
from monarch.spmd import Snapshots
rank, count = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
snapshots = Snapshots(replicated=True)
found = snapshots.restore()
if count == 0:
    for step in range(3):
        snapshots.save(step, {"rank": rank, "data": bytes([step, rank]) * 10_000_000}).get()
    open(f"saved.{rank}", "w").close()
    if rank == 1:
        # With replicated=True the part of one rank is enough. The test needs both parts, because their contents differ.
        while not os.path.exists("saved.0"):  # polls: programs of tests have no other way to meet
            time.sleep(0.01)  # sleeps: between two looks
        # The worker of its host; what it has started ends with it.
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = open(f"/proc/{name}/cmdline", "rb").read().split(b"\\0")
            except OSError:  # it has ended
                continue
            if b"worker" in words:
                os.kill(int(name), signal.SIGKILL)
    signal.pause()
step, state = found
with open(f"found.{rank}", "w") as file:
    json.dump([step, state["rank"], len(state["data"]), list(state["data"][-2:])], file)
"""
CLIENT = """
import json, os, sys
import monarch.actor
from monarch.actor import attach_to_workers
from monarch.spmd import RestartPolicy, run
monarch.actor.unhandled_fault_hook = lambda failure: None
order = json.loads(sys.argv[1])
hosts = attach_to_workers(workers=order["workers"], secret=os.environ["TEST_SECRET"])
policy = RestartPolicy(max_restarts=1, backoff=(0.0, 0.0), on={"host_lost": "shrink"})
result = run(hosts, [order["script"]], workdir=order["workdir"], policy=policy).result.get()
print("ranks", result.world_size, flush=True)
os._exit(0)
"""


@pytest.mark.timeout(90)
def test_copy_of_a_lost_host_is_restored(folder: Path, tmp_path: Path) -> None:
    need_namespaces()
    (folder / "program.py").write_text(PROGRAM)
    client = tmp_path / "client.py"
    client.write_text(CLIENT)
    with Cluster(2, tmp_path, "") as cluster:
        cluster.workers = [Worker(host, cluster.env, cluster.secret) for host in cluster.hosts]
        order = {
            "workers": [worker.address for worker in cluster.workers],
            "script": str(folder / "program.py"),
            "workdir": str(folder),
        }
        done = cluster.client_host.run(*(sys.executable, str(client), json.dumps(order)), env=cluster.env, check=False, capture_output=True)
        assert done.returncode == 0 and done.stdout.splitlines()[-1] == "ranks 1", done.stdout + done.stderr
    # Both parts are there, and this host has its own.
    assert json.loads((folder / "found.0").read_text()) == [2, 0, 20_000_000, [2, 0]]
