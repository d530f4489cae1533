"""A client that has no route to pods, and loses the one through which it reaches the others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kubernetes_jobs import Jobs

_CLIENT = """
import json
import sys
import monarch.actor
from monarch.actor import Actor, SupervisionError, endpoint
from monarch.job import job_load
import monarch.job.kubernetes.job as module

monarch.actor.unhandled_fault_hook = lambda failure: None
module.has_route = lambda host, port: False

class Digits(Actor):
    @endpoint
    def total(self, text: str) -> int:
        return sum(int(digit) for digit in text)

def answers(state):
    digits = state.workers.spawn_procs({"procs": 1}).spawn("digits", Digits)
    assert list(digits.total.call("123").get(90).values()) == [6, 6, 6]
    return digits

job = job_load("job.json")
digits = answers(job.state("job.json"))
print(json.dumps({"gateway": job._ids["gateway"], "pods": [host.name for host in job.status().hosts]}), flush=True)
sys.stdin.readline()
try:
    while True:
        digits.total.call("123").get(90)
except SupervisionError:
    pass
report = job.heal(timeout=120)
answers(job.state("job.json"))
print(json.dumps({
    "gateway": job._ids["gateway"],
    "pods": [host.name for host in job.status().hosts],
    "replaced": [host.rank for host in report.replaced],
    "missing": [host.rank for host in report.missing],
}), flush=True)
job.kill()
"""


def test_lost_gateway_pod_alone_is_replaced(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs(replicas=3)
    job.apply()
    job.dump("job.json")
    jobs.until(job, "workers that listen", lambda status: all(host.address for host in status.hosts))
    script = tmp_path / "client.py"
    script.write_text(_CLIENT)
    with subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None and client.stdout is not None
        before = json.loads(client.stdout.readline())
        jobs.cluster.kubectl("delete", "pod", before["gateway"], "-n", jobs.namespace, "--wait=false")
        client.stdin.write("\n")
        client.stdin.flush()
        after = json.loads(client.stdout.readline())
        assert client.wait(120) == 0
    lost = before["pods"].index(before["gateway"])
    assert (after["replaced"], after["missing"]) == ([lost], [])
    assert [rank for rank in range(3) if before["pods"][rank] != after["pods"][rank]] == [lost]
    assert after["gateway"] in after["pods"]
    assert jobs.objects() == []


_WAITING = """
import sys
import monarch.actor
from monarch.actor import Actor, endpoint
from monarch.job import JobEndedError, job_load
import monarch.job.kubernetes.job as module

monarch.actor.unhandled_fault_hook = lambda failure: None
module.has_route = lambda host, port: False

class Digits(Actor):
    @endpoint
    def total(self, text: str) -> int:
        return sum(int(digit) for digit in text)

job = job_load("job.json")
state = job.state("job.json")
print(job.status().phase, flush=True)
if sys.stdin.readline() == "kill\\n":
    job.kill()
    try:
        state.workers.initialized.get(30)
    except JobEndedError:
        print("ended", flush=True)
    sys.exit()
digits = state.workers.spawn_procs({"procs": 1}).spawn("digits", Digits)
print(sorted(digits.total.call("123").get(90).values()), flush=True)
# Another process goes the same way.
again = job_load("job.json")
print(again._ids["gateway"] == job._ids["gateway"] != "", flush=True)
job.kill()
"""


@pytest.mark.parametrize("how", ["kill", "use"])
def test_state_returns_while_no_pod_can_be_scheduled(jobs: Jobs, tmp_path: Path, how: str) -> None:
    template = jobs.template | {"spec": jobs.template["spec"] | {"nodeSelector": {"late": jobs.namespace}}}
    job = jobs(template=template)
    job.apply()
    job.dump("job.json")
    script = tmp_path / "client.py"
    script.write_text(_WAITING)
    try:
        with subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdin is not None and client.stdout is not None
            assert client.stdout.readline() == "pending\n"
            if how == "use":
                jobs.cluster.kubectl("label", "node", "--all", f"late={jobs.namespace}", "--overwrite")
            client.stdin.write(f"{how}\n")
            client.stdin.flush()
            out, _ = client.communicate(timeout=150)
            assert (out, client.returncode) == ("ended\n" if how == "kill" else "[6, 6]\nTrue\n", 0)
    finally:
        jobs.cluster.kubectl("label", "node", "--all", "late-")
    assert jobs.objects() == []
