"""One pod, as far as a job needs it: whose rank it has, whether its worker can be dialled, whether it is over.

The phase of a pod is not enough: a pod of a node that is lost keeps the phase Running as long as the node is away. Ready, DisruptionTarget
and the time of the deletion show more.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from monarch.job.kubernetes.manifests import names
from monarch.job.kubernetes.pods.fields import Object, part, rows, text

# The index in the name of a pod; in that of a Job's pod a random suffix follows.
_ORDINAL = re.compile(r"-(\d+)(?:-[a-z0-9]{5})?$")


class ContainerView(NamedTuple):
    """A container: `state` is `waiting`, `running`, `terminated`, or "" where the kubelet has reported nothing yet."""

    name: str
    state: str
    reason: str
    message: str
    exit_code: int | None
    restarts: int
    last_reason: str
    last_exit_code: int | None
    is_init: bool

    @property
    def has_run(self) -> bool:
        """Has it begun, now or before it was started again?"""
        return self.state in ("running", "terminated") or self.restarts > 0


class PodView(NamedTuple):
    """`created` is the server's text (ISO 8601, UTC), so that pods compare by age; `rank` is None where nothing gives one."""

    name: str
    uid: str
    mesh: str
    rank: int | None
    node: str
    ip: str
    phase: str
    created: str
    is_ready: bool
    # The node does not answer, and its containers had no problem before.
    is_unreachable: bool
    deleted_at: str
    disruption: str
    unschedulable: str
    reason: str
    containers: tuple[ContainerView, ...]
    has_identity: bool

    @property
    def is_over(self) -> bool:
        """Has it ended, or is it about to?"""
        return self.has_ended or bool(self.deleted_at) or bool(self.disruption)

    @property
    def has_ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def worker(self) -> str:
        """Distinguishes the workers of a rank: those of different pods, and those of one pod whose container was started again.

        Containers beside the worker's may be started again without it.
        """
        return f"{self.uid}/{self.main.restarts if self.main is not None else 0}"

    @property
    def is_running(self) -> bool:
        """Do its containers run?"""
        return self.phase == "Running" and any(container.state == "running" for container in self.containers if not container.is_init)

    @property
    def main(self) -> ContainerView | None:
        """The container of the worker: the one with its name, else the first; None where the kubelet has reported none yet."""
        found = [container for container in self.containers if not container.is_init]
        return next((container for container in found if container.name == names.CONTAINER), found[0] if found else None)

    def address(self, port: int) -> str:
        """Where its worker listens: with its identity where the worker was given one, so that the next pod at this IP is another host."""
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"{identity(self.uid)}@tcp://{host}:{port}" if self.has_identity else f"tcp://{host}:{port}"


def identity(pod_uid: str) -> str:
    """The identity of the worker of a pod, as the command of its container makes it of the uid: digits of base 58, which has no 0."""
    return f"worker<g{pod_uid.partition('-')[0].replace('0', 'g')}>"


def place_of(address: str) -> tuple[str, int]:
    """IP address and port of `PodView.address`."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return host.strip("[]"), int(port)


def view(pod: Object, rank_label: str) -> PodView:
    """The pod; its rank is in our own label for replacements, else in the label `rank_label`, else in that annotation, else in its name."""
    meta, spec, status = part(pod, "metadata"), part(pod, "spec"), part(pod, "status")
    conditions = {text(condition, "type"): condition for condition in rows(status, "conditions")}
    ready, scheduled, disrupted = (conditions.get(name, {}) for name in ("Ready", "PodScheduled", "DisruptionTarget"))
    own = rows(status, "containerStatuses")
    return PodView(
        name=text(meta, "name"),
        uid=text(meta, "uid"),
        mesh=text(meta, "labels", names.MESH_LABEL),
        rank=rank_of(meta, rank_label),
        node=text(spec, "nodeName"),
        ip=text(status, "podIP"),
        phase=text(status, "phase") or "Pending",
        created=text(meta, "creationTimestamp"),
        is_ready=ready.get("status") == "True",
        is_unreachable=text(status, "phase") == "Running"
        and ready.get("status") == "False"
        and bool(own)
        and all(container.get("ready") for container in own),
        deleted_at=text(meta, "deletionTimestamp"),
        disruption=_words(disrupted) if disrupted.get("status") == "True" else "",
        unschedulable=_words(scheduled) if scheduled.get("status") == "False" else "",
        reason=_words(status),
        containers=(*_containers(status, "initContainerStatuses"), *_containers(status, "containerStatuses")),
        has_identity=spec.get("restartPolicy") == "Never" and names.POD_UID_VARIABLE in _variables(spec),
    )


def _variables(spec: Object) -> set[str]:
    return {text(variable, "name") for container in rows(spec, "containers") for variable in rows(container, "env")}


def rank_of(meta: Object, rank_label: str) -> int | None:
    """The rank of a pod with this metadata."""
    labels, annotations = part(meta, "labels"), part(meta, "annotations")
    for found in (labels.get(names.RANK_LABEL), labels.get(rank_label), annotations.get(rank_label)):
        if isinstance(found, str) and found.isascii() and found.isdecimal():
            return int(found)
    ordinal = _ORDINAL.search(text(meta, "name"))
    return int(ordinal[1]) if ordinal is not None else None


def current(pods: list[PodView]) -> PodView | None:
    """Of the pods that have had a rank, the one that counts: not over before over, ready before not, young before old."""
    return max(pods, key=lambda pod: (not pod.has_ended, not pod.is_over, pod.is_ready, pod.created, pod.name), default=None)


def _containers(status: Object, field: str) -> list[ContainerView]:
    found: list[ContainerView] = []
    for container in rows(status, field):
        kind = next(iter(part(container, "state")), "")
        detail, last = part(container, "state", kind), part(container, "lastState", "terminated")
        found.append(
            ContainerView(
                text(container, "name"),
                kind,
                text(detail, "reason"),
                text(detail, "message"),
                detail.get("exitCode"),
                container.get("restartCount") or 0,
                text(last, "reason"),
                last.get("exitCode"),
                field == "initContainerStatuses",
            )
        )
    return found


def _words(described: Object) -> str:
    return ": ".join(filter(None, (text(described, "reason"), text(described, "message"))))
