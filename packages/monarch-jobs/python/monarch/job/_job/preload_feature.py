"""The feature `preload` of a job: the modules that all its procs find imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from monarch.extension import checked_modules
from monarch.job._job.feature import FeatureHosts, JobFeature, Offer

if TYPE_CHECKING:
    from typing import Self


class PreloadFeature(JobFeature):
    """Replaces the meshes of the job by copies whose procs find the modules imported."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = checked_modules(modules)

    def dump(self) -> dict[str, Any]:
        return {"modules": self._modules}

    @classmethod
    def load(cls, saved: dict[str, Any]) -> Self:
        return cls(saved["modules"])

    def start(self, hosts: FeatureHosts) -> Offer:
        return Offer(meshes={name: mesh.with_preload(self._modules) for name, mesh in hosts.meshes.items()})

    def promised(self, hosts: FeatureHosts) -> Offer:
        return self.start(hosts)

    def stop(self) -> None:
        return
