"""What a client learns of pods that fail on a real cluster, and that `heal` brings the job back."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from kubernetes_jobs import PODS_S, Jobs, answers

from monarch.actor import Actor, endpoint
from monarch.job import JobEndedError
from monarch.job.kubernetes import KubernetesJob, launcher
from monarch.job.kubernetes.access import connection


class Victim(Actor):
    """Ends the worker of its host, as a crash of it would."""

    @endpoint
    def end_worker(self, number: int = signal.SIGKILL) -> None:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            # The first process is the shell around it, and cannot be killed from inside.
            if pid != "1" and b"\0--listen\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(int(pid), number)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults last for two seconds before they end a job."""
    monkeypatch.setattr(launcher, "FAULT_S", 2.0)


def _healed(jobs: Jobs, job: KubernetesJob, *ranks: int) -> None:
    """Heals the hosts of these ranks, which are lost, and all answer again."""
    status = jobs.until(job, f"the loss of {ranks}", lambda status: all(status.hosts[rank].phase == "lost" for rank in ranks))
    assert status.phase != "ended", status
    report = job.heal(timeout=PODS_S)
    healed = [*report.restarted, *report.replaced]
    assert sorted((host.mesh, host.rank) for host in healed) == [("workers", rank) for rank in ranks], (status, report)
    assert not report.missing and {host.phase for host in healed} == {"joined"}
    assert answers(jobs.joined(job)) == [6, 6]


def _diagnosed(cause: str) -> None:
    """Waits until the first cause of `monarch diagnose` is this one."""
    telemetry = pytest.importorskip("monarch.telemetry")

    def first() -> str:
        causes = telemetry.diagnose().causes
        return causes[0].sentence if causes else ""

    eventually("the cause", first, re.compile(cause).match, PODS_S)


def _ended(job: KubernetesJob) -> JobEndedError:
    """The error of the first use of a job that cannot start."""
    with pytest.raises(JobEndedError) as raised:
        job.state(cached_path=None).workers.initialized.get(PODS_S)
    return raised.value


@pytest.mark.parametrize("how", ["deleted", "evicted", "crashed"])
def test_lost_pod_is_healed(jobs: Jobs, how: str) -> None:
    job = jobs()
    state = jobs.joined(job)
    name = job.status().hosts[1].name
    if how == "deleted":
        jobs.cluster.kubectl("delete", "pod", name, "-n", jobs.namespace, "--wait=false")
    elif how == "evicted":
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": jobs.namespace}}
        path = f"/api/v1/namespaces/{jobs.namespace}/pods/{name}/eviction"
        jobs.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
        _diagnosed(rf"pod {name} on node\d.*EvictionByEvictionAPI: Eviction API: evicting")
    else:
        procs = state.workers.slice(hosts=1).spawn_procs({"procs": 1})
        procs.spawn("victim", Victim).end_worker.broadcast()
    _healed(jobs, job, 1)
    assert job.status().hosts[1].name != name


def test_restarted_container_of_a_pod_is_healed(jobs: Jobs) -> None:
    job = jobs(workload="statefulset")
    state = jobs.joined(job)
    name = job.status().hosts[0].name
    state.workers.slice(hosts=0).spawn_procs({"procs": 1}).spawn("victim", Victim).end_worker.broadcast()
    _healed(jobs, job, 0)
    assert job.status().hosts[0].name == name


def test_state_after_a_replacement_has_the_new_pod(jobs: Jobs) -> None:
    job = jobs()
    jobs.joined(job)
    before = job.status().hosts[0].name
    jobs.cluster.kubectl("delete", "pod", before, "-n", jobs.namespace, "--wait=false")
    jobs.until(job, "the loss of the pod", lambda status: status.hosts[0].phase == "lost")
    assert answers(jobs.joined(job)) == [6, 6]
    assert job.status().hosts[0].name != before


def test_completed_worker_is_started_again(jobs: Jobs) -> None:
    job = jobs()
    state = jobs.joined(job)
    # The worker ends like an idle one, with exit code 0.
    procs = state.workers.slice(hosts=1).spawn_procs({"procs": 1})
    procs.spawn("victim", Victim).end_worker.broadcast(signal.SIGTERM)
    jobs.until(job, "the end of the worker", lambda status: "exit code 0" in status.hosts[1].detail)
    _healed(jobs, job, 1)
    job.kill()
    assert jobs.objects() == []


@pytest.mark.usefixtures("impatient")
def test_image_that_does_not_exist(jobs: Jobs) -> None:
    job = jobs(template=jobs.changed(image="localhost/none:1", imagePullPolicy="IfNotPresent"), replicas=1)
    error = _ended(job)
    assert error.state == "failed" and error.reason in ("ErrImagePull", "ImagePullBackOff")
    text = str(error)
    assert "container worker" in text and "localhost/none:1" in text and "events:" in text


def test_pod_that_waits_for_its_image_is_diagnosed(jobs: Jobs) -> None:
    job = jobs(template=jobs.changed(image="localhost/none:1", imagePullPolicy="IfNotPresent"), replicas=1)
    job.state(cached_path=None)
    _diagnosed(r"pod workers-\S+ on node\d, container worker: (ErrImagePull|ImagePullBackOff): .*\(workers\[0\]\)")


@pytest.mark.usefixtures("impatient")
def test_crash_loop_has_last_lines_of_worker(jobs: Jobs) -> None:
    command = ["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11; do echo line $i; done; exit 3"]
    error = _ended(jobs(template=jobs.changed(command=command), replicas=1))
    text = str(error)
    assert error.state == "failed" and "exit code 3" in text
    assert "line 11" in text and "line 2\n" in text and "line 1\n" not in text


@pytest.mark.usefixtures("impatient")
def test_worker_out_of_memory_is_named(jobs: Jobs) -> None:
    template = jobs.changed(
        command=["python", "-c", "x = bytearray(1 << 30); print(len(x))"],
        resources={"limits": {"memory": "64Mi"}, "requests": {"memory": "16Mi"}},
    )
    error = _ended(jobs(template=template, replicas=1))
    assert error.reason == "OOMKilled" and "OOMKilled, exit code 137" in str(error)


@pytest.mark.usefixtures("impatient")
def test_configuration_that_is_missing_is_named(jobs: Jobs) -> None:
    env = [*jobs.template["spec"]["containers"][0]["env"], {"name": "X", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k"}}}]
    error = _ended(jobs(template=jobs.changed(env=env), replicas=1))
    assert error.reason == "CreateContainerConfigError" and 'configmap "none" not found' in str(error)


@pytest.mark.usefixtures("impatient")
def test_quota_exceeded(jobs: Jobs) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": {"hard": {"pods": "1"}}}
    jobs.cluster.kubectl("apply", "-n", jobs.namespace, "-f", "-", stdin=json.dumps(quota))
    eventually(
        "the quota", lambda: jobs.cluster.kubectl("get", "quota", "small", "-n", jobs.namespace, "-o", "jsonpath={.status.hard.pods}")
    )
    error = _ended(jobs())
    assert error.reason == "exceeded quota" and "exceeded quota: small" in str(error)


def test_restart_of_api_server_loses_nothing(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    job = jobs()
    state = jobs.joined(job)
    jobs.cluster.api_server_kill()
    with monkeypatch.context() as short:
        # The server does not come back while the status waits for it.
        short.setattr(connection, "RESTART_SECONDS", 1.0)
        status = job.status()
    assert status.phase == "unknown" and [host.phase for host in status.hosts] != ["lost", "lost"]
    # Calls go to the pods, not through the API server.
    assert answers(state) == [6, 6]
    jobs.cluster.api_server_up()
    jobs.until(job, "an answer of the API server", lambda status: status.phase == "running")
    assert answers(jobs.joined(job)) == [6, 6]


@pytest.mark.parametrize("workload", ["job", "statefulset"])
def test_lost_node_is_left_by_heal(jobs: Jobs, workload: Any) -> None:
    job = jobs(workload=workload, replicas=2)
    jobs.joined(job)
    nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in jobs.pods()}
    # The scheduler may have placed both ranks there.
    ranks = [host.rank for host in job.status().hosts if nodes[host.name] == "node2"]
    if not ranks:
        pytest.skip("the scheduler has put both pods on the other node")
    jobs.cluster.node_kill(2)
    eventually("the node without heartbeats", lambda: jobs.cluster.node_ready(2), lambda is_ready: not is_ready)
    _healed(jobs, job, *ranks)
    assert {pod["spec"]["nodeName"] for pod in jobs.pods() if not pod["metadata"].get("deletionTimestamp")} == {"node1"}
