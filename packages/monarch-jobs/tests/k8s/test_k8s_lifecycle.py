"""Many jobs, several clients, interrupted and repeated: what is left in the namespace, and what each client finds."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import ARGV
from eventually import eventually
from kubernetes_jobs import PODS_S, Jobs, answers

from monarch.job import JobTrait, SubmitError, job_load
from monarch.job._files.state_file import DEFAULT_JOB_PATH
from monarch.job.kubernetes import KubeConfig, KubernetesJob
from monarch.job.testing import conformance
from tools.k8s.cluster import KubeCluster


def test_conformance(jobs: Jobs) -> None:
    conformance(lambda: jobs(replicas=1))
    assert jobs.objects() == []


def test_twenty_jobs_leave_nothing(jobs: Jobs) -> None:
    for _ in range(20):
        job = jobs(replicas=1)
        job.apply()
        job.kill()
    assert jobs.objects() == []


def test_two_clients_heal_one_pod(jobs: Jobs) -> None:
    job = jobs()
    job.state("job.json").workers.initialized.get(PODS_S)
    other = job_load("job.json")
    assert isinstance(other, KubernetesJob)
    assert answers(jobs.joined(other)) == [6, 6]
    name = job.status().hosts[0].name
    jobs.cluster.kubectl("delete", "pod", name, "-n", jobs.namespace, "--wait=false")
    jobs.until(job, "the loss of the pod", lambda status: status.hosts[0].phase == "lost")
    report = other.heal(timeout=PODS_S)
    assert [host.rank for host in report.replaced] == [0]
    # The job finds the workers that the other process has healed.
    report = job.heal(timeout=PODS_S)
    assert not report.replaced and not report.missing
    state = job.state("job.json")
    state.workers.initialized.get(PODS_S)
    assert answers(state) == [6, 6]


def test_two_jobs_of_a_namespace_share_mesh_names(jobs: Jobs) -> None:
    one, two = jobs(replicas=1), jobs(replicas=1)
    states = [jobs.joined(one), jobs.joined(two)]
    assert [answers(state) for state in states] == [[6], [6]]
    one.kill()
    assert answers(states[1]) == [6]
    assert two.status().phase == "running"


def test_allocation_of_cached_file_is_used_again(jobs: Jobs) -> None:
    first = jobs(replicas=1)
    first.state("job.json")
    again, other = jobs(replicas=1), jobs(replicas=2)
    again.state("job.json")
    assert again.apply_id == first.apply_id
    # The interpreter is killed and another one takes its place.
    other.state("job.json")
    assert other.apply_id != first.apply_id
    assert first.status().phase == "ended"


def test_refused_submission_leaves_nothing(jobs: Jobs) -> None:
    template = jobs.changed(resources={"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}})
    job = jobs(template=template)
    with pytest.raises(SubmitError, match="memory"):
        job.apply()
    assert not job.active and jobs.objects() == []
    assert (
        not os.path.exists(os.path.join(os.environ["MONARCH_HOME"], "jobs"))
        or os.listdir(os.path.join(os.environ["MONARCH_HOME"], "jobs")) == []
    )


def test_namespace_that_does_not_exist_is_named(cluster: KubeCluster, pod_template: dict[str, Any]) -> None:
    job: JobTrait = KubernetesJob("no-such-namespace")
    assert isinstance(job, KubernetesJob)
    job.add_mesh("workers", 1, pod_template=pod_template)
    with pytest.raises(SubmitError, match="there is no namespace 'no-such-namespace'"):
        job.apply()
    assert not job.active


_INTERRUPTED = """
import sys
from monarch.job.kubernetes import KubernetesJob, submission
import json
template = json.load(open(sys.argv[2]))
kind_of = submission.kind_of
job = KubernetesJob(sys.argv[1])
job.add_mesh("workers", 1, pod_template=template)
from monarch.job.kubernetes.access.client import Cluster
apply = Cluster.apply
def slow(self, obj, **options):
    if obj["kind"] == "Job":
        print("now", flush=True)
        sys.stdin.read()  # until Ctrl-C
    return apply(self, obj, **options)
Cluster.apply = slow
job.apply()
"""


def test_interrupted_submission_leaves_nothing(jobs: Jobs, tmp_path: Path) -> None:
    import json

    (tmp_path / "template.json").write_text(json.dumps(jobs.template))
    argv = [sys.executable, "-c", _INTERRUPTED, jobs.namespace, str(tmp_path / "template.json")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        assert any(name.startswith("ConfigMap/monarch-") for name in jobs.objects())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PODS_S)
    assert "KeyboardInterrupt" in errors
    assert jobs.objects() == []


def test_given_configuration_is_written_nowhere_and_needed_again(jobs: Jobs) -> None:
    from kubernetes import config
    from kubernetes.client import Configuration

    found = Configuration()
    config.load_kube_config(str(jobs.cluster.kubeconfig), client_configuration=found)
    job = jobs(replicas=1, kubeconfig=KubeConfig.from_config(found))
    job.state("job.json")
    text = Path("job.json").read_text()
    assert "PRIVATE" not in text and "certificate" not in text
    code = "from monarch.job import job_load; job_load('job.json').status()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "CredentialsError" in result.stderr and "from_config" in result.stderr
    # This process has the job that was given last.
    again = job_load("job.json")
    assert again.status().phase in ("pending", "running")
    again.kill()
    eventually("nothing left", jobs.objects, lambda left: left == [])


def test_verbs_of_core_reach_pods(jobs: Jobs) -> None:
    job = jobs()
    job.apply()
    # There is no client that would report its pods.
    job.dump(DEFAULT_JOB_PATH)
    jobs.until(job, "pods that have joined", lambda status: all(host.phase == "joined" for host in status.hosts))
    for verb in ("ps", "stack"):
        done = subprocess.run([*ARGV, verb], capture_output=True, text=True, timeout=PODS_S)
        assert done.stderr == "", done
        for host in job.status().hosts:
            _, _, section = done.stdout.partition(f"=== {host.mesh}[{host.rank}]\n")
            assert re.match(rf"agent \d+ on \S+-{host.rank}: ", section), done
    # A process that has not queried the job before has their output too.
    done = subprocess.run([*ARGV, "logs"], capture_output=True, text=True, timeout=PODS_S)
    assert done.stdout.count("listening at ") == len(job.status().hosts) and done.stderr == "", done
