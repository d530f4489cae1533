"""KubernetesJob on a real cluster: actors in pods, called by a client that is in no pod."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from connection_proxy import ConnectionProxy
from eventually import eventually
from kubernetes_jobs import PODS_S, Digits, Jobs, answers
from operator_process import OperatorProcess

from monarch.job import JobEndedError, JoinTimeoutError, SubmitError, job_load
from monarch.job._job.trait import reconnect
from monarch.job.kubernetes import KubernetesJob
from monarch.job.kubernetes.manifests import install
from tools.external_process import Adder, call_elsewhere, use_hosts
from tools.project import ROOT


@pytest.mark.parametrize("workload", ["job", "statefulset"])
def test_actors_answer_in_pods_on_both_nodes(jobs: Jobs, workload: Literal["job", "statefulset"]) -> None:
    jobs.template["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"monarch.pytorch.org/mesh-name": "workers"}},
        }
    ]
    job = jobs(workload=workload, replicas=3)
    state = jobs.joined(job)
    assert answers(state) == [6, 6, 6]
    places = list(state.workers.spawn_procs({"procs": 1}).spawn("digits", Digits).place.call().get(PODS_S).values())
    prefix = places[0].removesuffix("-0")
    assert places == [f"{prefix}-{rank}" for rank in range(3)]
    assert {pod["spec"]["nodeName"] for pod in jobs.pods()} == {"node1", "node2"}
    status = job.status()
    assert status.phase == "running" and [host.phase for host in status.hosts] == ["joined"] * 3
    job.kill()
    assert jobs.objects() == []


def test_external_processes_use_the_pods(jobs: Jobs) -> None:
    workers = jobs.joined(jobs()).workers
    use_hosts(workers)
    adder = workers.spawn_procs().spawn("adder", Adder)
    assert sum(adder.add.call(1).get(PODS_S).values()) == 2
    # A pod is not the machine of the client.
    name = jobs.pods()[0]["metadata"]["name"]
    text = jobs.cluster.kubectl("exec", "-n", jobs.namespace, name, "--", *call_elsewhere(adder.slice(hosts=1)))
    assert "client of its job lost: no client of this user answers for it on this machine: " in text
    assert (
        "hint: a handle works outside its job while the client of the job runs, for processes of the same user on the client's mach" in text
    )


def test_meshes_of_a_job_communicate_and_end_together(jobs: Jobs) -> None:
    job = jobs(replicas=1)
    job.add_mesh("judges", 1, pod_template=jobs.template, labels={"team": "red"}, annotations={"note": "n"})
    state = jobs.joined(job)
    assert (answers(state), answers(state, "judges")) == ([6], [6])
    [judge] = [pod for pod in jobs.pods() if pod["metadata"]["labels"]["monarch.pytorch.org/mesh-name"] == "judges"]
    assert judge["metadata"]["labels"]["team"] == "red" and judge["metadata"]["annotations"]["note"] == "n"
    job.kill()
    assert jobs.objects() == []


def test_existing_pods_are_attached_and_stay(jobs: Jobs) -> None:
    owner = jobs()
    jobs.joined(owner)
    assert owner._ids is not None
    secret = f"{owner._ids['anchor']}-join"
    uids = {pod["metadata"]["uid"] for pod in jobs.pods()}
    # The second job finds the workers that the end of the first one has left.
    for _ in range(2):
        job = KubernetesJob(jobs.namespace, join_secret=secret)
        job.add_mesh(
            "workers",
            2,
            label_selector=f"monarch.pytorch.org/job={owner.apply_id}",
            pod_rank_label="batch.kubernetes.io/job-completion-index",
        )
        assert answers(jobs.joined(job)) == [6, 6]
        job.kill()
    assert {pod["metadata"]["uid"] for pod in jobs.pods() if pod["status"]["phase"] == "Running"} == uids


def _manifest_of_the_page(jobs: Jobs, **of_container: Any) -> dict[str, Any]:
    """The StatefulSet of docs/kubernetes-clusters.md, with the programs of this machine in its pods."""
    page = (ROOT / "docs/kubernetes-clusters.md").read_text()
    blocks = [block.partition("\n```")[0] for block in page.split("```yaml\n")[1:]]
    found: dict[str, Any] = yaml.safe_load(next(block for block in blocks if "kind: StatefulSet" in block))
    found["metadata"]["namespace"] = jobs.namespace
    spec, ours = found["spec"]["template"]["spec"], jobs.template["spec"]
    (container,), (template,) = spec["containers"], ours["containers"]
    container |= {key: template[key] for key in ("image", "imagePullPolicy", "env")} | of_container
    container["volumeMounts"] += template["volumeMounts"]
    spec["volumes"] += ours["volumes"]
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "shared-secret"}, "stringData": {"secret": "0123456789abcdef" * 4}}
    jobs.cluster.kubectl("apply", "-n", jobs.namespace, "-f", "-", stdin=yaml.safe_dump_all([secret, found]))
    return found


def test_manifest_of_the_page_is_attached(jobs: Jobs) -> None:
    # The folders of this machine are root's: the interpreter has to be readable for the user of the container.
    _manifest_of_the_page(jobs)
    job = KubernetesJob(jobs.namespace, join_secret="shared-secret")
    job.add_mesh("trainers", 2, label_selector="app=trainers")
    assert answers(jobs.joined(job), "trainers") == [6, 6]
    job.kill()
    assert len(jobs.pods()) == 2


def test_crash_looping_pods_are_named_with_their_output(jobs: Jobs) -> None:
    command = ["sh", "-c", "echo the secret is open to others; exit 3"]
    _manifest_of_the_page(jobs, command=command)
    job = KubernetesJob(jobs.namespace, 25, join_secret="shared-secret")
    job.add_mesh("trainers", 2, label_selector="app=trainers")
    with pytest.raises((JoinTimeoutError, JobEndedError)) as raised:
        job.state(cached_path=None).trainers.initialized.get(PODS_S)
    text = str(raised.value)
    assert "pod trainers-0" in text and "exit code 3" in text and "the secret is open to others" in text
    assert "within 25 s (timeout)" in text


def test_insecure_pods_need_an_explicit_option(jobs: Jobs) -> None:
    labels = {"app.kubernetes.io/name": "monarch-worker", "monarch.pytorch.org/mesh-name": "old"}
    pod = jobs.changed(command=["monarch", "worker", "--listen", "tcp://*:26600", "--insecure"])
    pod |= {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "old-0", "labels": labels}}
    jobs.cluster.kubectl("apply", "-n", jobs.namespace, "-f", "-", stdin=json.dumps(pod))
    refused = KubernetesJob(jobs.namespace)
    refused.add_mesh("old", 1)
    with pytest.raises(SubmitError, match="by which secret"):
        refused.apply()
    job = KubernetesJob(jobs.namespace, insecure=True)
    job.add_mesh("old", 1)
    with pytest.warns(UserWarning, match="without encryption"):
        state = jobs.joined(job)
    assert answers(state, "old") == [6]


def test_monarch_meshes_are_made_by_operator(jobs: Jobs, tmp_path: Path) -> None:
    crd = json.dumps(install.crd())
    jobs.cluster.kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=monarch", "-f", "-", stdin=crd)
    jobs.cluster.kubectl("wait", "--for=condition=Established", f"crd/{install.crd()['metadata']['name']}", "--timeout=60s")
    with OperatorProcess(tmp_path / "operator.log", jobs.cluster.kubeconfig, "--namespace", jobs.namespace) as operator:
        operator.await_ready()
        job, other = jobs(provisioner="monarchmesh"), jobs(provisioner="monarchmesh")
        assert answers(jobs.joined(job)) == [6, 6]
        assert sorted(pod["metadata"]["name"] for pod in jobs.pods()) == ["workers-0", "workers-1"]
        with pytest.raises(SubmitError, match=f"belongs to the job {job.apply_id}"):
            other.apply()
        assert job.status().phase == "running"
        job.kill()
        eventually("nothing left", jobs.objects, lambda left: left == [])


def test_suspended_job_is_pending_until_it_is_resumed(jobs: Jobs) -> None:
    # Kueue does this with a job that waits in its queue.
    job = jobs(replicas=1)
    job.apply()
    name = json.loads(jobs.cluster.kubectl("get", "jobs", "-n", jobs.namespace, "-o", "json"))["items"][0]["metadata"]["name"]
    patch = ("patch", "job", name, "-n", jobs.namespace, "--type=merge", "-p")
    jobs.cluster.kubectl(*patch, '{"spec":{"suspend":true}}')
    status = jobs.until(job, "the suspension", lambda status: "suspended" in status.detail)
    assert status.phase == "pending"
    jobs.cluster.kubectl(*patch, '{"spec":{"suspend":false}}')
    assert answers(jobs.joined(job)) == [6]


def test_unschedulable_pods_wait_with_words_of_scheduler(jobs: Jobs) -> None:
    job = jobs(template=jobs.changed(resources={"requests": {"cpu": "1000"}}))
    job.apply()
    status = jobs.until(job, "words of the scheduler", lambda status: "Insufficient cpu" in status.detail)
    assert status.phase == "pending" and "Unschedulable" in status.detail
    assert [host.phase for host in status.hosts] == ["waiting", "waiting"]


def test_idle_workers_end_and_state_makes_them_again(jobs: Jobs) -> None:
    job = jobs(replicas=1, idle_timeout=8.0)
    job.apply()
    before = job.apply_id
    status = jobs.until(job, "the end of idle workers", lambda status: status.phase == "ended")
    assert "all workers have ended with exit code 0" in status.detail
    assert answers(jobs.joined(job)) == [6]
    assert job.apply_id != before


_CLIENT = """
import os
import sys
from monarch.actor import Actor, endpoint
from monarch.job import job_load

class Digits(Actor):
    @endpoint
    def total(self, text: str) -> int:
        return sum(int(digit) for digit in text)

import monarch.job.kubernetes.job as module
if sys.argv[1] == "forward":
    module.has_route = lambda host, port: False  # as where pods have no route
job = job_load("job.json")
state = job.state("job.json")
procs = state.workers.spawn_procs({"procs": 1})
found = sum(procs.spawn("digits", Digits).total.call("123").get(90).values())
with open("/proc/self/net/tcp") as table:
    own = {os.readlink(fd.path) for fd in os.scandir("/proc/self/fd") if os.path.islink(fd.path)}
    fields = [line.split() for line in table.readlines()[1:]]
# Of workers: their port is the same in each pod.
dialled = [f[2] for f in fields if f"socket:[{f[9]}]" in own and f[2].endswith(":67E8")]
print(found, job._ids["route"] or ("direct" if dialled else "gateway"))
"""


@pytest.fixture
def proxy() -> Iterator[ConnectionProxy]:
    """It leads nowhere yet."""
    with ConnectionProxy("tcp://127.0.0.1:9") as found:
        yield found


@pytest.mark.parametrize("route", ["direct", "forward", "gateway"])
def test_fresh_process_attaches_again(jobs: Jobs, route: str, tmp_path: Path, proxy: ConnectionProxy) -> None:
    job = jobs(attach_to=proxy.address) if route == "gateway" else jobs()
    job.apply()
    job.dump("job.json")
    status = jobs.until(job, "workers that listen", lambda status: all(host.address for host in status.hosts))
    # This acts as a port that the user forwards to the first pod.
    proxy.lead_to((status.hosts[0].address or "").partition("@")[2])
    script = tmp_path / "client.py"
    script.write_text(_CLIENT)
    for _ in range(2):
        result = subprocess.run([sys.executable, str(script), route], capture_output=True, text=True, timeout=150, check=False)
        assert result.stdout == f"12 {route}\n", result.stderr
    text = Path("job.json").read_text()
    assert job._secret().hex() not in text
    job_load("job.json").kill()
    assert jobs.objects() == []
    status = job.status()
    assert status.phase == "ended"
    with pytest.raises(JobEndedError):
        reconnect(job)
