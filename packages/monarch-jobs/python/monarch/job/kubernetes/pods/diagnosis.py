"""Why a pod does not get to run its worker, or no longer does: pure functions over pods and events.

Some faults last until a person changes something: an image that does not exist, a key that a ConfigMap lacks, a program that ends at once,
a quota that is used up. Others are the scheduler's affair (no room, a suspended job), and a job waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from monarch.job.kubernetes.pods.pod_view import ContainerView, PodView

# The kubelet's reasons for waiting containers that will not start by themselves.
STUCK = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "RegistryUnavailable",
        "ImageInspectError",
        "SignatureValidationFailed",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "PreCreateHookError",
        "PostStartHookError",
        "CrashLoopBackOff",
    }
)
# Events of kubelets that name a fault of the pod's own specification, before any container waits for a reason.
_STUCK_EVENTS = frozenset({"FailedMount", "FailedCreatePodSandBox"})
# Events of a pod whose volumes and sandbox exist: earlier failures have passed.
_PROGRESS_EVENTS = frozenset({"Pulling", "Pulled", "Created", "Started"})
_EVENTS_SHOWN = 5
# The API server's words for a pod that a quota refuses.
QUOTA = "exceeded quota"


class Fault(NamedTuple):
    """`reason` is Kubernetes' word; `is_lasting`: waiting does not help. `text` names pod and container.

    `container` is "" where the fault is one of the whole pod, `pod` where there is no pod.
    """

    pod: str
    container: str
    reason: str
    text: str
    is_lasting: bool

    @property
    def has_run(self) -> bool:
        """Was there a process, whose last lines can be asked for?"""
        return self.reason not in STUCK or self.reason == "CrashLoopBackOff"


def fault(pod: PodView) -> Fault | None:
    """What is wrong with a pod now; None for one that runs, starts, or has completed."""
    if pod.disruption and not pod.has_ended:
        return Fault(pod.name, "", pod.disruption.partition(":")[0], f"pod {pod.name} on {pod.node}: {pod.disruption}", False)
    for container in pod.containers:
        found = _of_container(pod, container)
        if found is not None:
            return found
    if pod.phase == "Failed":
        reason = pod.reason or pod.disruption or "Failed"
        return Fault(pod.name, "", reason.partition(":")[0], f"pod {pod.name}{_on(pod)}: {reason}", False)
    if pod.deleted_at and pod.disruption:
        # Its worker has ended with exit code 0, as asked.
        return Fault(pod.name, "", pod.disruption.partition(":")[0], f"pod {pod.name}{_on(pod)}: {pod.disruption}", False)
    if pod.deleted_at:
        return Fault(pod.name, "", "Deleted", f"pod {pod.name}{_on(pod)} is being deleted", False)
    if pod.is_unreachable:
        return Fault(pod.name, "", "NodeNotReady", f"pod {pod.name}: node {pod.node} does not answer", False)
    if pod.unschedulable:
        return Fault(pod.name, "", pod.unschedulable.partition(":")[0], f"pod {pod.name} waits: {pod.unschedulable}", False)
    return None


def _of_container(pod: PodView, container: ContainerView) -> Fault | None:
    place = f"pod {pod.name}{_on(pod)}, container {container.name}"
    if container.state == "waiting" and container.reason in STUCK:
        words = ": ".join(filter(None, (container.reason, container.message)))
        before = ended_words(container.last_reason, container.last_exit_code)
        restarts = (
            f" after {container.restarts} restarts, the last end: {before}" if container.reason == "CrashLoopBackOff" and before else ""
        )
        return Fault(pod.name, container.name, container.reason, f"{place}: {words}{restarts}", True)
    if container.state == "terminated" and (container.exit_code or container.reason == "OOMKilled"):
        cause = pod.reason or pod.disruption
        ended = ended_words(container.reason, container.exit_code)
        words = ", ".join(filter(None, (ended, container.message.strip(), cause)))
        reason = pod.reason.partition(":")[0] or container.reason or "Error"
        return Fault(pod.name, container.name, reason, f"{place}: {words}", False)
    return None


def ended_words(reason: str, code: int | None) -> str:
    """How a container has ended."""
    if code is None:
        return reason
    number = f"exit code {code}" + (f" (signal {code - 128})" if 128 < code < 160 else "")
    return f"{reason}, {number}" if reason and reason != "Error" else number


def _on(pod: PodView) -> str:
    return f" on {pod.node}" if pod.node else ""


def crash_loop(ended: Iterable[PodView]) -> Fault | None:
    """Pods of one rank whose worker has ended again and again, none of them by an eviction; None for fewer than two."""
    found = [
        one
        for pod in sorted(ended, key=lambda pod: pod.created)
        if not pod.disruption and (one := fault(pod)) is not None and one.container
    ]
    if len(found) < 2:
        return None
    last = found[-1]
    return last._replace(text=f"{last.text}; so have {len(found) - 1} pods of this rank before", is_lasting=True)


def event_lines(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """The last warnings about an object, else its last events, one a line."""
    listed = list(events)
    warnings = [event for event in listed if event.get("type") == "Warning"] or listed
    lines: list[str] = []
    for event in warnings:
        line = f"{event.get('reason') or 'Event'}: {' '.join(str(event.get('message') or event.get('note') or '').split())}"
        if line in lines:
            lines.remove(line)
        lines.append(line)
    return lines[-_EVENTS_SHOWN:]


def mount_fault(pod: PodView, events: Iterable[Mapping[str, Any]]) -> Fault | None:
    """A pod that has been scheduled and has no container yet, since a volume or its sandbox cannot be made. `events`: oldest first."""
    if pod.containers and any(container.state != "waiting" or container.reason in STUCK for container in pod.containers):
        return None
    failed: list[Mapping[str, Any]] = []
    for event in events:
        if event.get("reason") in _PROGRESS_EVENTS:
            failed.clear()
        elif event.get("reason") in _STUCK_EVENTS:
            failed.append(event)
    if not failed:
        return None
    reason = str(failed[-1]["reason"])
    return Fault(pod.name, "", reason, f"pod {pod.name}{_on(pod)}: {event_lines(failed)[-1]}", True)


def refused(workload: str, events: Iterable[Mapping[str, Any]]) -> Fault | None:
    """Why the controller of a workload cannot make pods: a quota, an admission controller, a service account that is not there."""
    failed = [event for event in events if event.get("reason") == "FailedCreate"]
    if not failed:
        return None
    words = str(failed[-1].get("message") or "")
    reason = QUOTA if QUOTA in words else "FailedCreate"
    return Fault("", "", reason, f"{workload}: no pod can be made: {' '.join(words.split())}", True)
