"""What a fault leaves behind: the last lines of the container, and the events of the pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.job.errors import JobError
from monarch.job.kubernetes.access.failures import UnreachableError
from monarch.job.kubernetes.pods.diagnosis import Fault, event_lines, fault
from monarch.job.kubernetes.pods.place import progress, restarted

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.client import Cluster
    from monarch.job.kubernetes.pods.pod_view import PodView

_LINES = 10
# The API server fetches the lines from the pod's node, and waits for a lost node as long as the request may take. A status has to be quick.
_LOG_SECONDS = 5.0
# The mark of a container that runs again: its last lines are those of the previous run.
RESTARTED = "Restarted"


def fault_report(cluster: Cluster, found: Fault, has_run: bool | None = None) -> str:
    """The text of the fault, and below it what the cluster still has of it; `has_run` where that is not the fault's."""
    parts = [found.text]
    if not found.pod:
        return found.text
    if found.has_run if has_run is None else has_run:
        parts += _log(cluster, found)
    try:
        lines = event_lines(cluster.events(found.pod))
    except JobError as error:
        lines = [f"no events: {str(error).splitlines()[0]}"]
    if lines:
        parts += ["events:", *(f"  {line}" for line in lines)]
    return "\n".join(parts)


def pod_report(cluster: Cluster, pod: PodView) -> str:
    """The same for a pod whose worker does not answer, with a fault or without."""
    found, main = fault(pod), pod.main
    if found is not None:
        return fault_report(cluster, found)
    if main is not None and main.restarts:
        return fault_report(cluster, Fault(pod.name, main.name, RESTARTED, restarted(pod), False))
    text = progress(pod) or f"pod {pod.name}{f' on {pod.node}' if pod.node else ''} is ready"
    return fault_report(cluster, Fault(pod.name, "" if main is None else main.name, "", text, False), main is not None and main.has_run)


def _log(cluster: Cluster, found: Fault) -> list[str]:
    """The lines of the container that has ended: of the one before, where another one waits to start."""
    try:
        previous = found.reason in ("CrashLoopBackOff", RESTARTED)
        text = cluster.pod_log(found.pod, found.container or None, _LINES, previous=previous, seconds=_LOG_SECONDS)
    except JobError as error:
        # The API server gets the lines from the node: it is there, as it has answered the query for the pod.
        if isinstance(error, UnreachableError) and error.has_timed_out:
            return [f"no output: the node of the pod does not answer within {_LOG_SECONDS:g} s"]
        return [f"no output: {str(error).splitlines()[0]}"]
    lines = text.splitlines()[-_LINES:]
    return ["last lines:", *(f"  {line}" for line in lines)] if lines else ["no output"]
