"""Which pods may connect to workers: those of the same job, clients in the cluster, and for a gateway all that reach the first host.

Ports other than the worker's are not affected. Ranges of ports need a network plugin that knows `endPort`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from monarch.job.kubernetes.manifests import names

if TYPE_CHECKING:
    from monarch.job.kubernetes.arguments import KubernetesArguments

Object = dict[str, Any]

_LAST_PORT = 65535


def policies(arguments: KubernetesArguments, apply_id: str, metadata: Object, clients: Sequence[Object]) -> list[Object]:
    ports = sorted({mesh.port for mesh in arguments.provisioned})
    job = {names.JOB_LABEL: apply_id}
    own = [{"podSelector": {"matchLabels": job}}, {"podSelector": {"matchLabels": {names.CLIENT_LABEL: "true"}}}, *clients]
    ingress = [{"from": own}, {"ports": _others(ports)}]
    found = [_policy(names.policy_name(apply_id), metadata, job, ingress)]
    if arguments.attach_to is not None:
        first = next(iter(arguments.meshes.values()))
        if first.provisioned:
            # A load balancer's connections come from unknown addresses. The worker requires the job's certificate.
            index = names.COMPLETION_INDEX if arguments.restart_policy == "Never" else names.POD_INDEX_LABEL
            gateway = {**names.mesh_labels(first.name, apply_id), index: "0"}
            found.append(_policy(names.gateway_policy_name(apply_id), metadata, gateway, [{"ports": [_port(first.port)]}]))
    return found


def _policy(name: str, metadata: Object, pods: dict[str, str], ingress: list[Object]) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, **metadata},
        "spec": {"podSelector": {"matchLabels": pods}, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def _others(taken: list[int]) -> list[Object]:
    """All ports but these."""
    found: list[Object] = []
    first = 1
    for port in [*taken, _LAST_PORT + 1]:
        if first < port:
            found.append(_port(first) if first == port - 1 else {**_port(first), "endPort": port - 1})
        first = port + 1
    return [*found, *({"protocol": protocol, "port": 1, "endPort": _LAST_PORT} for protocol in ("UDP", "SCTP"))]


def _port(port: int) -> Object:
    return {"protocol": "TCP", "port": port}
