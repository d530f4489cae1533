"""What a fault leaves behind: the last lines of the container, and the events of the pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.job.errors import JobError
from monarch.job.kubernetes.pods.diagnosis import Fault, event_lines

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.client import Cluster

_LINES = 10


def evidence(cluster: Cluster, fault: Fault) -> str:
    """The text of the fault, and below it what the cluster still has of it."""
    parts = [fault.text]
    if not fault.pod:
        return fault.text
    if fault.has_run:
        parts += _log(cluster, fault)
    try:
        lines = event_lines(cluster.events(fault.pod))
    except JobError as error:
        lines = [f"no events: {str(error).splitlines()[0]}"]
    if lines:
        parts += ["events:", *(f"  {line}" for line in lines)]
    return "\n".join(parts)


def _log(cluster: Cluster, fault: Fault) -> list[str]:
    """The lines of the container that has ended: of the one before, where another one waits to start."""
    try:
        text = cluster.pod_log(fault.pod, fault.container or None, _LINES, previous=fault.reason == "CrashLoopBackOff")
    except JobError as error:
        return [f"no output: {str(error).splitlines()[0]}"]
    lines = text.splitlines()[-_LINES:]
    return ["last lines:", *(f"  {line}" for line in lines)] if lines else ["no output"]
