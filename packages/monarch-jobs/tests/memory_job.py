"""A launcher of Kubernetes jobs on a cluster in memory, for what it makes of the answers of an API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memory_cluster import JOB, MemoryCluster

from monarch.job._job.launcher import JobStatus
from monarch.job.kubernetes.arguments import KubernetesArguments, checked, checked_mesh
from monarch.job.kubernetes.launcher import KubernetesLauncher

SECRET = bytes(range(32))
IMAGE = {"image": "registry.example.com/monarch:1"}
JOB_KIND = "batch/v1/Job"


def arguments_of(meshes: dict[str, dict[str, Any]] | None = None, **arguments: Any) -> KubernetesArguments:
    meshes = meshes or {"trainers": {"num_replicas": 2, "image_spec": IMAGE}}
    checked_meshes = {name: checked_mesh({"name": name, **mesh}).model_dump() for name, mesh in meshes.items()}
    return checked({"namespace": "research", "meshes": checked_meshes, **arguments})


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Made:
    """A launcher, its cluster and its clock; `ids` once it is submitted."""

    def __init__(self, arguments: KubernetesArguments) -> None:
        self.arguments = arguments
        self.cluster = MemoryCluster()
        self.clock = Clock()
        self.launcher = KubernetesLauncher(arguments, cluster=lambda: self.cluster, apply_id=JOB, title=self.cluster.title, now=self.clock)
        self.ids: dict[str, Any] = {}

    def another(self, directory: Path) -> KubernetesLauncher:
        """Of another process."""
        return KubernetesLauncher(
            self.arguments,
            cluster=lambda: self.cluster,
            apply_id=JOB,
            title=self.cluster.title,
            directory=str(directory),
            now=self.clock,
        )

    def submit(self) -> Made:
        self.ids = self.launcher.submit(self.launcher.plan(), SECRET)
        return self

    def poll(self) -> JobStatus:
        return self.launcher.poll(self.ids)

    def addresses(self) -> list[str | None]:
        self.poll()
        return [address for found in self.launcher.addresses(self.ids).values() for address in found]

    def joined(self) -> Made:
        for rank in range(2):
            self.cluster.pod("trainers", rank)
        assert None not in self.addresses()
        return self

    def set_job(self, **fields: Any) -> None:
        self.cluster.objects[JOB_KIND, "trainers-11111111"] |= fields


def submitted(**arguments: Any) -> Made:
    """A job of the mesh `trainers`, two pods, with these arguments."""
    return Made(arguments_of(**arguments)).submit()
