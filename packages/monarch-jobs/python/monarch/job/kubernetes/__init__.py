"""KubernetesJob: hosts from a Kubernetes cluster, of pods that are there already or that the job makes.

The names are loaded on first use. Without what the extra `kubernetes` of monarch-jobs installs, that is a `BackendMissingError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.config import KubeConfig as KubeConfig
    from monarch.job.kubernetes.arguments import ImageSpec as ImageSpec
    from monarch.job.kubernetes.job import KubernetesJob as KubernetesJob

_HOMES = {"ImageSpec": "arguments", "KeptForward": "access.kept_forward", "KubeConfig": "access.config", "KubernetesJob": "job"}
# Packages that the extra installs and this package imports. The official client is for users who make its objects.
_REQUIRED = ("python_socks", "websockets", "yaml")

__all__ = ["ImageSpec", "KubeConfig", "KubernetesJob"]


def __getattr__(name: str) -> object:
    from importlib import import_module
    from importlib.util import find_spec

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'monarch.job.kubernetes' has no attribute {name!r}")
    missing = [module for module in _REQUIRED if find_spec(module) is None]
    if missing:
        from monarch.job.errors import BackendMissingError

        raise BackendMissingError(
            f"monarch.job.kubernetes needs the Python package{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            hint="pip install 'monarch-jobs[kubernetes]'",
        )
    found = globals()[name] = getattr(import_module(f"monarch.job.kubernetes.{home}"), name)
    return found
