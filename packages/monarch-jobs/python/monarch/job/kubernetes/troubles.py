"""The troubles of a job by its pods, their workloads and their nodes: a pure function over views of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from monarch.job._job.launcher import Host, Trouble

if TYPE_CHECKING:
    from typing import Literal

    from monarch.job.kubernetes.pods.diagnosis import Fault
    from monarch.job.kubernetes.pods.place import Place
    from monarch.job.kubernetes.workloads import MeshWorkload

_SOURCE = "API server"


class _One(NamedTuple):
    """What is wrong with one host; those with the same reason are one trouble."""

    kind: Literal["ended", "stuck", "leaving", "queued"]
    reason: str
    text: str
    host: Host
    command: str


def troubles(
    namespace: str,
    places: Sequence[Place],
    workloads: Mapping[str, MeshWorkload],
    slow: Mapping[str, Fault | None],
    cordoned: Collection[str],
) -> list[Trouble]:
    """`workloads` are those of meshes that lack a pod, `slow` has the faults that only events show, by the uids of pods."""
    groups: dict[tuple[str, str], list[_One]] = {}
    for place in places:
        one = _of_place(namespace, place, workloads.get(place.host.mesh), slow, cordoned)
        if one is not None:
            groups.setdefault((one.kind, one.reason), []).append(one)
    return [_trouble(group) for group in groups.values()]


def _trouble(group: list[_One]) -> Trouble:
    first = group[0]
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return Trouble(first.kind, f"{first.text} ({first.host}{more})", tuple(one.host for one in group), _SOURCE, first.command)


def _of_place(
    namespace: str, place: Place, workload: MeshWorkload | None, slow: Mapping[str, Fault | None], cordoned: Collection[str]
) -> _One | None:
    own, latest, loss = place.own, place.latest, place.loss
    if loss is not None:
        fault = place.own_fault
        reason = fault.reason if fault is not None else place.record.get("last") or "gone"
        node = f"; node {own.node} is cordoned" if own is not None and own.node in cordoned else ""
        return _One("ended", reason, f"{loss}{node}", place.host, f"kubectl -n {namespace} describe pod {place.record['name']}")
    if place.is_given:
        if own is None or own.node not in cordoned:
            return None
        text = f"node {own.node} is cordoned: a drain would evict pod {own.name}"
        return _One("leaving", own.node, text, place.host, f"kubectl describe node {own.node}")
    if latest is None:
        if workload is None:
            return None
        fault = workload.fault
        text = fault.text if fault is not None else workload.end or workload.waiting
        kind = "queued" if fault is None and not workload.end else "stuck"
        return _One(kind, text, text, place.host, f"kubectl -n {namespace} get events") if text else None
    fault = place.fault or slow.get(latest.uid)
    if fault is None:
        return None
    command = f"kubectl -n {namespace} describe pod {latest.name}"
    return _One("stuck" if fault.is_lasting else "queued", fault.reason, fault.text, place.host, command)
