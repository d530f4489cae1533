"""The workloads of an allocation as the cluster has them: suspended, over, gone, or without the right to make pods.

Asked for only while pods are missing: the rest is known by pods alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch.job.kubernetes.manifests import names
from monarch.job.kubernetes.pods.diagnosis import Fault, refused
from monarch.job.kubernetes.pods.fields import part, rows, text
from monarch.job.kubernetes.submission import name_of

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.client import Cluster, Object
    from monarch.job.kubernetes.arguments import KubernetesArguments

# The reasons of the condition of a MonarchMesh whose pods exist, or are being made.
_WELL = ("Waiting", "AllReady", "")
# The label for a queue, whose controller removes `suspend` from a job when it is its turn.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


class MeshWorkload(NamedTuple):
    """`waiting` is the reason for which pods are not there yet, `end` how the workload has ended.

    `is_complete` is an end without a failure. `completed` has the indexes that never run again.
    """

    waiting: str = ""
    is_suspended: bool = False
    end: str = ""
    is_complete: bool = False
    completed: frozenset[int] = frozenset()
    fault: Fault | None = None


def look(arguments: KubernetesArguments, cluster: Cluster, apply_id: str, missing: set[str]) -> dict[str, MeshWorkload]:
    """By mesh, for the meshes in `missing`."""
    selector = f"{names.JOB_LABEL}={apply_id}"
    found: dict[str, MeshWorkload] = {}
    gang: Object | None = None
    listed: dict[str, Object] = {}
    is_gang = arguments.provisioner == "native" and arguments.workload == "jobset"
    if is_gang:
        gang = cluster.get(names.JOB_SET_KIND, names.job_set_name(apply_id))
    if arguments.provisioner == "native":
        kind = "apps/v1/StatefulSet" if arguments.workload == "statefulset" else "batch/v1/Job"
        # Objects in a list have no kind of their own.
        listed = {name_of(obj): {**obj, **_of_kind(kind)} for obj in cluster.list(kind, selector)[0]}
    for mesh in sorted(missing):
        if arguments.provisioner == "monarchmesh":
            obj = cluster.get(names.MESH_KIND, mesh)
            obj = None if obj is None else {**obj, **_of_kind(names.MESH_KIND)}
        else:
            obj = next((one for one in listed.values() if _is_of(one, mesh)), None)
        if is_gang and gang is not None and (obj is None or part(gang, "spec").get("suspend")):
            obj = {**gang, **_of_kind(names.JOB_SET_KIND)}
        jobs = [one for one in listed.values() if _is_of(one, mesh)]
        found[mesh] = _mesh_workload(cluster, mesh, obj, jobs, arguments.meshes[mesh].num_replicas)
    return found


def _is_of(obj: Object, mesh: str) -> bool:
    return text(obj, "metadata", "labels", names.MESH_LABEL) == mesh


def _of_kind(kind: str) -> Object:
    version, _, word = kind.rpartition("/")
    return {"apiVersion": version, "kind": word}


def _mesh_workload(cluster: Cluster, mesh: str, obj: Object | None, all_jobs: list[Object], replicas: int) -> MeshWorkload:
    if obj is None:
        return MeshWorkload(end=f"the workload of mesh '{mesh}' is gone from namespace '{cluster.namespace}'")
    title = f"{obj['kind']} {name_of(obj)}"
    conditions = {text(one, "type"): one for one in rows(obj, "status", "conditions") if one.get("status") == "True"}
    if obj["metadata"].get("deletionTimestamp"):
        return MeshWorkload(end=f"{title} is being deleted")
    if part(obj, "spec").get("suspend"):
        queue = text(obj, "metadata", "labels", QUEUE_LABEL)
        return MeshWorkload(waiting=f"{title} is suspended" + (f", it waits in the queue '{queue}'" if queue else ""), is_suspended=True)
    if obj["kind"] == "MonarchMesh":
        return _of_operator(cluster, title, obj)
    completed = _completed(all_jobs, replicas)
    if all(_end(job) for job in all_jobs):
        ends = ((word, words) for word in ("Failed", "Complete", "Completed") if (words := _condition(title, conditions, word)))
        word, end = next(ends, ("", ""))
        if end:
            return MeshWorkload(end=end, is_complete=word != "Failed", completed=completed)
    events = cluster.events(name_of(obj), obj["kind"])
    return MeshWorkload(f"{title} has no pod yet", completed=completed, fault=refused(title, events))


def attached_mesh(cluster: Cluster, name: str) -> MeshWorkload | None:
    """The MonarchMesh of this name, for pods that it may stand for; None where there is none. `ApiError` where it cannot be looked at."""
    obj = cluster.get(names.MESH_KIND, name)
    return None if obj is None else _of_operator(cluster, f"MonarchMesh {name}", obj)


def _of_operator(cluster: Cluster, title: str, mesh: Object) -> MeshWorkload:
    """The operator's reason for a mesh without pods. An operator of another project reports none."""
    ready = next((one for one in rows(mesh, "status", "conditions") if one.get("type") == "Ready"), None)
    if ready is None:
        return MeshWorkload(
            f"{title} has no pod yet, and no operator has reported its status (`monarch k8s install --operator` installs one)"
        )
    if text(ready, "reason") in _WELL:
        name = name_of(mesh)
        return MeshWorkload(f"{title} has no pod yet", fault=refused(f"StatefulSet {name}", cluster.events(name, "StatefulSet")))
    reason = text(ready, "reason") or "NotReady"
    return MeshWorkload(fault=Fault("", "", reason, f"{title}: no pod can be made: {reason}: {text(ready, 'message')}", True))


def _completed(jobs: list[Object], replicas: int) -> frozenset[int]:
    """The ranks for which no Job makes a pod any more: one that has completed in the Job of the mesh may have a Job of its own."""
    # A complete Job is removed after a while, and others continue.
    has_main = any(not text(job, "spec", "template", "metadata", "labels", names.RANK_LABEL) for job in jobs)
    done = set[int]() if has_main or not jobs else set(range(replicas))
    served: set[int] = set()
    for job in jobs:
        rank = text(job, "spec", "template", "metadata", "labels", names.RANK_LABEL)
        if not rank:
            done.update(_indexes(text(job, "status", "completedIndexes")))
        elif not _end(job):
            served.add(int(rank))
    return frozenset(done - served)


def _end(job: Object) -> bool:
    found = rows(job, "status", "conditions")
    return any(one.get("status") == "True" and one["type"] in ("Failed", "Complete") for one in found)


def _condition(title: str, conditions: Mapping[str, Mapping[str, Any]], word: str) -> str:
    found = conditions.get(word)
    if found is None:
        return ""
    if word != "Failed":
        return f"{title} is complete: all workers have ended with exit code 0, as idle ones do"
    words = ": ".join(filter(None, (text(found, "reason"), text(found, "message"))))
    return f"{title} has failed{f': {words}' if words else ''}"


def _indexes(completed: str) -> list[int]:
    """`0,2-4` as numbers."""
    found: list[int] = []
    for indexes in filter(None, completed.split(",")):
        first, _, last = indexes.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
