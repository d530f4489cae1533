"""The port-forward that the keeper of a job holds: one for each allocation, by the entry point `kubernetes-forward` of `monarch.keeper`."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from monarch.job._client.kept_service import KeptService
from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.config import KubeConfig
from monarch.job.kubernetes.access.forward import Forward, UpgradeMissingError
from monarch.job.kubernetes.access.kubectl_forward import KubectlForward

if TYPE_CHECKING:
    from monarch.actor import HostMesh
    from monarch.job._client.keeper import Keeper

SERVICE = "kubernetes-forward"
# The ports are below those that the kernel assigns by itself.
_FIRST_PORT, _PORTS = 20000, 10000


def forwarded(keeper: Keeper, kubeconfig: Mapping[str, Any] | None, server: str, namespace: str, pod: str, port: int, title: str) -> int:
    """The port of this machine that reaches `port` of the pod, held by the keeper; another pod replaces the one before.

    `kubeconfig` is `KubeConfig.saved()`, which has to lead the keeper to `server` as well. `KeeperError` with what has failed.
    """
    config = {
        "kubeconfig": None if kubeconfig is None else dict(kubeconfig),
        "server": server,
        "namespace": namespace,
        "pod": pod,
        "port": port,
        "title": title,
    }
    return int(keeper.serve(SERVICE, "gateway", config)["port"])


class KeptForward(KeptService):
    """Hosts are reached through it, so it starts without them."""

    needs_hosts = False

    def __init__(self) -> None:
        self._forward: Forward | KubectlForward | None = None
        self._cluster: Cluster | None = None
        self._port = 0

    def start(self, hosts: Mapping[str, HostMesh], config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Listens, or does nothing where it does already."""
        if self._forward is None:
            self._begin(config)
        return {"port": self._port}

    def _begin(self, config: Mapping[str, Any]) -> None:
        kubeconfig = KubeConfig.restored(config["kubeconfig"])
        namespace, pod, port = str(config["namespace"]), str(config["pod"]), int(config["port"])
        cluster = Cluster(kubeconfig.load(), namespace, str(config["title"]))
        kubeconfig.check_server(cluster.connection, config.get("server"), cluster.title)
        # A keeper that follows a killed one listens at the same port, so connected clients continue. So does the forward to the next pod of
        # the job: a process keeps one address of a gateway for good.
        local = _FIRST_PORT + zlib.crc32(f"{cluster.connection.server}/{namespace}/{config['title']}:{port}".encode()) % _PORTS
        made: Forward | KubectlForward = Forward(cluster, pod, port, local=local, report=_report)
        try:
            self._port = made.start()
        except UpgradeMissingError:
            options = kubeconfig.kubectl_options()
            if options is None:
                raise
            made = KubectlForward([*options, "--namespace", namespace], pod, port, local=local, report=_report)
            self._port = made.start()
        self._forward, self._cluster = made, cluster

    def stop(self) -> None:
        if self._forward is not None:
            self._forward.close()
        if self._cluster is not None:
            self._cluster.connection.close()

    def status(self) -> Mapping[str, Any]:
        return {} if self._forward is None else self._forward.status()

    def busy(self) -> bool:
        return self._forward is not None and self._forward.is_busy


def _report(line: str) -> None:
    print(line, flush=True)
