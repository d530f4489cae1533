"""Jobs on a real cluster for tests, and an actor for their hosts."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eventually import eventually

from monarch.actor import Actor, endpoint
from monarch.job import JobStatus
from monarch.job._job.job_state import JobState
from monarch.job.kubernetes import KubernetesJob
from tools.k8s.cluster import KubeCluster
from tools.k8s.images import HOST
from tools.project import ROOT

# Seconds for pods on a busy machine.
PODS_S = 90.0

Template = dict[str, Any]


class Digits(Actor):
    """Sums digits on its host, as a program of a user could."""

    @endpoint
    def total(self, text: str) -> int:
        return sum(int(digit) for digit in text)

    @endpoint
    def place(self) -> str:
        return os.uname().nodename


class Jobs:
    """Makes jobs in a namespace; those that a test leaves are killed."""

    def __init__(self, cluster: KubeCluster, namespace: str, template: Template) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.template = template
        self.made: list[KubernetesJob] = []

    def __call__(self, *, template: Template | None = None, replicas: int = 2, **arguments: Any) -> KubernetesJob:
        job = KubernetesJob(self.namespace, **arguments)
        job.add_mesh("workers", replicas, pod_template=self.template if template is None else template)
        self.made.append(job)
        return job

    def changed(self, **of_container: Any) -> Template:
        """The template with other fields of its container."""
        template = copy.deepcopy(self.template)
        template["spec"]["containers"][0] |= of_container
        return template

    def joined(self, job: KubernetesJob) -> JobState:
        """The hosts, all of which answer."""
        state = job.state(cached_path=None)
        for name in state:
            state[name].initialized.get(PODS_S)
        return state

    def until(self, job: KubernetesJob, what: str, reached: Callable[[JobStatus], object]) -> JobStatus:
        """Looks until it is so: a scheduler offers nothing to wait for."""
        return eventually(what, job.status, reached, PODS_S)

    def objects(self) -> list[str]:
        """All that a job can make in the namespace."""
        kinds = "configmaps,secrets,services,networkpolicies,jobs,statefulsets,pods"
        listed = json.loads(self.cluster.kubectl("get", kinds, "-n", self.namespace, "-o", "json"))["items"]
        return [f"{one['kind']}/{one['metadata']['name']}" for one in listed if one["metadata"]["name"] != "kube-root-ca.crt"]

    def pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.cluster.kubectl("get", "pods", "-n", self.namespace, "-o", "json"))["items"]
        return found


def host_template() -> dict[str, Any]:
    """The node's programs, the interpreter and the checkout at the paths that they have here, read-only."""
    folders: list[Path] = []
    for folder in sorted({Path("/usr"), Path(sys.base_prefix), Path(sys.prefix), ROOT}):
        if not any(folder.is_relative_to(other) for other in folders):
            folders.append(folder)
    names = [f"host{number}" for number in range(len(folders))]
    path = f"{Path(sys.prefix) / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    env = {"PATH": path, "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    if "PYTHONPATH" in os.environ:
        env["PYTHONPATH"] = os.environ["PYTHONPATH"]
    container = {
        "name": "worker",
        "image": HOST,
        "imagePullPolicy": "Never",
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "volumeMounts": [{"name": name, "mountPath": str(folder), "readOnly": True} for name, folder in zip(names, folders, strict=True)],
    }
    volumes = [{"name": name, "hostPath": {"path": str(folder)}} for name, folder in zip(names, folders, strict=True)]
    return {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes}}


def answers(state: JobState, mesh: str = "workers") -> list[int]:
    """What actors on every host of a mesh answer."""
    procs = state[mesh].spawn_procs({"procs": 1})
    found = list(procs.spawn("digits", Digits).total.call("123").get(PODS_S).values())
    procs.stop().get(PODS_S)
    return found
