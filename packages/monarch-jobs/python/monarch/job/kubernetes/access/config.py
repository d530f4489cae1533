"""Where an API server is and how it is asked: the service account of a pod, a kubeconfig, or a `Configuration` of the official client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kubernetes.client import Configuration

    from monarch.job.kubernetes.access.connection import ApiConnection


class KubeConfig:
    """`KubeConfig()` is the service account of the pod where there is one, else `KUBECONFIG` or `~/.kube/config`."""

    __module__ = "monarch.job.kubernetes"

    @classmethod
    def from_path(cls, path: str, *, context: str | None = None) -> KubeConfig:
        """A kubeconfig file, read at `load()`; `context` in place of its current one."""
        raise NotImplementedError

    @classmethod
    def from_config(cls, config: Configuration) -> KubeConfig:
        """A `Configuration` of the official client. It is never written anywhere: a re-attach needs it again."""
        raise NotImplementedError

    @property
    def out_of_cluster(self) -> bool:
        """Is this process outside the cluster?"""
        raise NotImplementedError

    def saved(self) -> dict[str, Any] | None:
        """What a state file has: `{"path": ..., "context": ...}`, `{"given": True}`, or None for the default; never a secret."""
        raise NotImplementedError

    @classmethod
    def restored(cls, saved: dict[str, Any] | None) -> KubeConfig:
        """From `saved()`; `CredentialsError` where that was a given `Configuration`."""
        raise NotImplementedError

    def load(self) -> ApiConnection:
        """Reads it all, and runs exec plugins: what `Cluster` takes. `CredentialsError` that names file, context and server."""
        raise NotImplementedError
