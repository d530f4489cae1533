"""The objects of an allocation in the cluster: made in an order in which each finds what it needs, and removed again.

The anchor, a ConfigMap, owns all others: whatever happens to the client, one deletion removes everything. Objects of one step are sent side
by side.
"""

from __future__ import annotations

import contextvars
import copy
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from monarch.job._machine.commands import time_left, time_limit
from monarch.job.errors import JobError, SubmitError
from monarch.job.kubernetes import manifests
from monarch.job.kubernetes.access.failures import ApiError
from monarch.job.kubernetes.manifests import names
from monarch.job.kubernetes.pods.fields import part, rows, text

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.client import Cluster, Object
    from monarch.job.kubernetes.arguments import KubernetesArguments

AT_ONCE = 8
FORBIDDEN, CONFLICT = 403, 409
# Indexed Jobs are stable from this release on.
OLDEST_FOR_JOBS = (1, 24)
# Seconds for the cancellation of a failed submission, for which its caller waits.
TAKE_BACK_S = 4.0
# Seconds for workers to end, which takes them a fraction of a second.
GRACE_S = 5
# Seconds from the deletion of pods to their removal by force: their node may be gone.
PODS_S = 20.0
FORCED_S = 10.0
# Seconds for the Job controller to count ended pods, which stay until then. After an outage of the API server that takes it half a minute.
COUNTED_S = 5.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.25

WORKLOADS = ("batch/v1/Job", "apps/v1/StatefulSet", names.JOB_SET_KIND, names.MESH_KIND)


def kind_of(obj: Object) -> str:
    """As `Cluster` names it, `batch/v1/Job`."""
    return f"{obj['apiVersion']}/{obj['kind']}"


def name_of(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _has_ended(pod: Object) -> bool:
    """Nothing of it runs any more, and its record is being deleted."""
    return bool(text(pod, "metadata", "deletionTimestamp")) and text(pod, "status", "phase") in ("Succeeded", "Failed")


def own_peer(cluster: Cluster) -> list[Object]:
    """The pod of this process as a peer of a NetworkPolicy, which would keep it away from the workers."""
    namespace = cluster.connection.namespace or cluster.namespace
    of_process = type(cluster)(cluster.connection, namespace, cluster.title)
    try:
        found, _ = of_process.list("v1/Pod", fields=f"metadata.name={os.uname().nodename}")
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        return []  # the label of clients is another permitted source
    labels = part(found[0] if found else {}, "metadata", "labels")
    if not labels or names.CLIENT_LABEL in labels:
        return []
    of_namespace = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    return [{"namespaceSelector": of_namespace, "podSelector": {"matchLabels": dict(labels)}}]


class Submission:
    """The objects of one allocation; `clients` are peers of its NetworkPolicy that are no pods of the job."""

    def __init__(self, arguments: KubernetesArguments, cluster: Cluster, apply_id: str, clients: Sequence[Object] = ()) -> None:
        self._arguments = arguments
        self._cluster = cluster
        self._apply_id = apply_id
        self.objects: list[Object] = manifests.job_objects(arguments, apply_id, clients)

    @property
    def workloads(self) -> list[Object]:
        """Jobs, StatefulSets, the JobSet or MonarchMeshes."""
        return [obj for obj in self.objects if kind_of(obj) in WORKLOADS]

    def submit(self, secret: bytes) -> Object:
        """Makes everything and gives the anchor. If it raises, nothing is left; a note on the error names what may be."""
        try:
            return self._submit(secret)
        except BaseException as error:
            try:
                with time_limit(TAKE_BACK_S):
                    self._delete_objects()
            except BaseException as second:
                anchor = f"ConfigMap {name_of(self.objects[0])} in namespace {self._cluster.namespace}"
                note = f"{anchor}, which owns the job, may be left: {str(second) or type(second).__name__}"
                if not isinstance(second, Exception):  # a second Ctrl-C
                    second.add_note(note)
                    raise
                error.add_note(note)
            raise

    def _submit(self, secret: bytes) -> Object:
        self._check_server()
        self._check_names()
        anchor = self._cluster.apply(self.objects[0])
        rest = manifests.owned(self.objects, anchor["metadata"]["uid"])[1:]
        by_name = {(kind_of(obj), name_of(obj)): obj for obj in rest}
        if ("v1/Secret", names.secret_name(self._apply_id)) in by_name:
            made = manifests.secret_object(self._arguments, self._apply_id, secret)
            made["metadata"] = by_name["v1/Secret", name_of(made)]["metadata"]
            by_name["v1/Secret", name_of(made)] = made
        before = [obj for (kind, _), obj in by_name.items() if kind not in WORKLOADS]
        self._of_all(before, self._cluster.apply)
        # Their pods need the objects that were made before.
        self._of_all([obj for (kind, _), obj in by_name.items() if kind in WORKLOADS], self._make_workload)
        return anchor

    def _make_workload(self, obj: Object) -> None:
        if kind_of(obj) != names.MESH_KIND:
            self._cluster.apply(obj)
            return
        try:
            # Two clients may have seen no mesh of this name: applying it would give one client the pods of the other.
            self._cluster.create(obj)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            self._check_names()
            if self._cluster.get(names.MESH_KIND, name_of(obj)) is None:  # it has been deleted since
                raise

    def _check_server(self) -> None:
        if self._arguments.provisioner == "native" and self._arguments.workload == "job":
            version = self._cluster.server_version()
            if version < OLDEST_FOR_JOBS:
                oldest = ".".join(map(str, OLDEST_FOR_JOBS))
                raise SubmitError(
                    f"Indexed Jobs need Kubernetes {oldest}, and the cluster has {version[0]}.{version[1]}",
                    title=self._cluster.title,
                    hint='workload="statefulset" works there',
                )

    def _check_names(self) -> None:
        """A MonarchMesh has the name of the mesh, so another job may have it."""
        for obj in self.workloads:
            if kind_of(obj) != names.MESH_KIND:
                continue
            found = self._cluster.get(names.MESH_KIND, name_of(obj))
            if found is None:
                continue
            owner = text(found, "metadata", "labels", names.JOB_LABEL)
            if owner != self._apply_id:
                whose = f"the job {owner}" if owner else "no job of monarch.job: it was made by other means"
                raise SubmitError(
                    f"MonarchMesh '{name_of(obj)}' in namespace '{self._cluster.namespace}' belongs to {whose}",
                    title=self._cluster.title,
                    hint="end that job, or give the mesh another name",
                )

    def supplement(self, anchor_uid: str, mesh: str, rank: int, number: int) -> None:
        """One more Job, for a rank whose index of the mesh's Job has completed: a completed index is never run again."""
        workload = names.workload_name(mesh, self._apply_id)
        made = copy.deepcopy(self._job_of(mesh, anchor_uid))
        made["metadata"]["name"] = f"{workload}-r{rank}-{number}"
        made["spec"] |= {"completions": 1, "parallelism": 1}
        template: Any = made["spec"]["template"]
        template.setdefault("metadata", {}).setdefault("labels", {})[names.RANK_LABEL] = str(rank)
        self._cluster.apply(made)

    def _job_of(self, mesh: str, anchor_uid: str) -> Object:
        """The Job of a mesh as it is applied; of a JobSet the one that its controller makes, but for the owner."""
        for obj in manifests.owned(self.objects, anchor_uid):
            if kind_of(obj) == "batch/v1/Job" and text(obj, "metadata", "labels", names.MESH_LABEL) == mesh:
                return obj
            for job in rows(obj, "spec", "replicatedJobs"):
                template = part(job, "template")
                if text(template, "metadata", "labels", names.MESH_LABEL) == mesh:
                    place = {key: obj["metadata"][key] for key in ("namespace", "ownerReferences")}
                    spec = {**template["spec"], "ttlSecondsAfterFinished": obj["spec"]["ttlSecondsAfterFinished"]}
                    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {**template["metadata"], **place}, "spec": spec}
        raise LookupError(f"mesh '{mesh}' has no Job")

    def remove(self) -> None:
        """Deletes everything and waits until it is gone; `JobError` names what stays."""
        self._delete_objects()
        selector = f"{names.JOB_LABEL}={self._apply_id}"
        if self._arguments.provisioner == "native":
            if self._arguments.workload == "jobset":
                jobs, _ = self._cluster.list("batch/v1/Job", selector)
                self._of_all(jobs, lambda job: self._cluster.delete("batch/v1/Job", name_of(job)))
            pods, _ = self._cluster.list("v1/Pod", selector)
            self._of_all([pod for pod in pods if not pod["metadata"].get("deletionTimestamp")], self._delete_pod)
        left = self._until_gone(selector, PODS_S)
        if left:
            # A node that does not answer never reports their end.
            self._of_all(left, lambda pod: self._cluster.delete("v1/Pod", name_of(pod), grace=0))
            left = self._until_gone(selector, FORCED_S)
        if left:
            found = ", ".join(f"{name_of(pod)} on {pod['spec'].get('nodeName') or 'no node'}" for pod in left[:8])
            raise JobError(
                "pods are left", title=self._cluster.title, cause=found, hint=f"kubectl -n {self._cluster.namespace} get pods -l {selector}"
            )

    def _delete_pod(self, pod: Object) -> object:
        return self._cluster.delete("v1/Pod", name_of(pod), grace=GRACE_S)

    def _delete_workload(self, obj: Object) -> None:
        kind, uid = kind_of(obj), None
        if kind == names.MESH_KIND:
            # The object has the name of the mesh: it may belong to another job.
            found = self._cluster.get(kind, name_of(obj))
            if found is None or text(found, "metadata", "labels", names.JOB_LABEL) != self._apply_id:
                return
            uid = text(found, "metadata", "uid")
        self._cluster.delete(kind, name_of(obj), uid=uid)

    def _delete_objects(self) -> None:
        # Workloads come first: their controllers would make pods again.
        workloads = self.workloads
        self._of_all(workloads, self._delete_workload)
        if any(kind_of(obj) == "batch/v1/Job" for obj in workloads):
            extra, _ = self._cluster.list("batch/v1/Job", f"{names.JOB_LABEL}={self._apply_id}")
            self._of_all(extra, lambda job: self._cluster.delete("batch/v1/Job", name_of(job)))
        others = [obj for obj in self.objects if kind_of(obj) not in WORKLOADS]
        self._of_all(others, lambda obj: self._cluster.delete(kind_of(obj), name_of(obj)))

    def _until_gone(self, selector: str, seconds: float) -> list[Object]:
        """The pods that are left when none has gone for so long: thousands of them take an API server minutes.

        Pods of which only the record is left do not count after a while.
        """
        end = time.monotonic() + time_left(seconds)
        pause, fewest, ended = _PAUSE_S, None, None
        while True:
            pods, _ = self._cluster.list("v1/Pod", selector)
            now = time.monotonic()
            if fewest is None or len(pods) < fewest:
                fewest, end = len(pods), now + time_left(seconds)
            ended = (now if ended is None else ended) if all(map(_has_ended, pods)) else None
            if ended is not None and now >= ended + COUNTED_S:
                return []
            if not pods or now >= end:
                return pods
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_S)

    def _of_all(self, objects: Iterable[Object], action: Callable[[Object], object]) -> None:
        """Does it for all of them, and then raises the first error of any."""
        objects = list(objects)
        if len(objects) < 2:
            for obj in objects:
                action(obj)
            return
        with ThreadPoolExecutor(min(AT_ONCE, len(objects)), thread_name_prefix="monarch-kubernetes") as pool:
            # Each call has a copy of the context, which has the time limit.
            started = [pool.submit(contextvars.copy_context().run, action, obj) for obj in objects]
        for future in started:
            future.result()
