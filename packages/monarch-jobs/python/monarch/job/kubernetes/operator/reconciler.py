"""One mesh at a time: its Service and StatefulSet as they should be, then its status.

The objects are applied with force: their fields are the operator's. The template is an exception: it is overwritten only when the wanted
one has changed, which its hash in an annotation shows, so that a webhook that rewrites images, or an admin who changes one, is not fought.

A failure is in the condition of the mesh and, when it is new, an event.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from monarch.job.errors import JobError
from monarch.job.kubernetes.access.client import MANAGER, Cluster
from monarch.job.kubernetes.access.failures import ApiError, UnreachableError
from monarch.job.kubernetes.manifests import mesh_objects, names
from monarch.job.kubernetes.operator import ownership
from monarch.job.kubernetes.operator.status import FAILED, INVALID_TEMPLATE, NOT_OWNED, REFUSED, Problem, mesh_status, ready_condition

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.connection import ApiConnection
    from monarch.job.kubernetes.operator.work_queue import Key

Object = dict[str, Any]

STATEFUL_SET, SERVICE = "apps/v1/StatefulSet", "v1/Service"
LONGEST_EVENT = 1024


class Reconciler:
    """For several threads, each with another key."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        # The state of each mesh and its StatefulSet after the last application of its objects. It excludes the numbers of pods.
        self._applied: dict[Key, object] = {}

    def forget(self, key: Key) -> None:
        """The objects are applied again at the next look, whatever they look like."""
        with self._lock:
            self._applied.pop(key, None)

    def reconcile(self, key: Key) -> bool | None:
        """Whether all pods are ready; None where there is no such mesh. Raises what the server answers, after it is in the status."""
        cluster = Cluster(self._connection, key.namespace, f"mesh {key.namespace}/{key.name}")
        mesh = cluster.get(names.MESH_KIND, key.name)
        if mesh is None or mesh["metadata"].get("deletionTimestamp"):
            self.forget(key)
            return None
        found = cluster.get(STATEFUL_SET, key.name)
        try:
            found = self._apply(cluster, key, mesh, found)
        except Exception as error:
            self.forget(key)
            if isinstance(error, UnreachableError) or (isinstance(error, ApiError) and error.reason == "Conflict"):
                raise  # the next reconciliation is another one
            try:
                _report(cluster, mesh, found, Problem(_reason(error), str(error) or type(error).__name__))
            except JobError as second:
                # A right may be missing, and a namespace that ends accepts no events.
                error.add_note(f"the mesh does not show it: {second}")
            raise
        return _report(cluster, mesh, found, None)

    def _apply(self, cluster: Cluster, key: Key, mesh: Object, found: Object | None) -> Object:
        is_ours = found is not None and ownership.is_owned(mesh, found)
        if found is not None and is_ours:
            with self._lock:
                if self._applied.get(key) == _look(mesh, found):
                    return found
        service, wanted = (_owned(item, mesh) for item in mesh_objects(mesh))
        there = cluster.get(SERVICE, service["metadata"]["name"])
        strange = [(kind, old, new) for kind, old, new in ((SERVICE, there, service), (STATEFUL_SET, found, wanted)) if old is not None]
        strange = [(kind, old, new) for kind, old, new in strange if not ownership.is_owned(mesh, old)]
        # All objects are checked before any is changed.
        for _, old, new in strange:
            ownership.check(mesh, old, new)
        taken = [(kind, old) for kind, old, _ in strange]
        if there is not None and ownership.is_owned(mesh, there) and ownership.is_changed(there, MANAGER):
            # A manifest that is applied again changes it in this way.
            taken.append((SERVICE, there))
        for kind, old in taken:
            ownership.take_over(cluster, kind, old, MANAGER)
        if found is not None and is_ours and _hash(found) == _hash(wanted):
            wanted["spec"]["template"] = found["spec"]["template"]
            # A template that changes meanwhile is a conflict, and the next reconciliation uses it.
            wanted["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        cluster.apply(service, force=True)
        made = cluster.apply(wanted, force=True)
        with self._lock:
            self._applied[key] = _look(mesh, made)
        return made


def _reason(error: Exception) -> str:
    if isinstance(error, ownership.NotOwnedError):
        return NOT_OWNED
    if isinstance(error, JobError):
        return REFUSED
    return INVALID_TEMPLATE if isinstance(error, ValueError) else FAILED


def _report(cluster: Cluster, mesh: Object, stateful_set: Object | None, problem: Problem | None) -> bool:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = mesh_status(mesh, stateful_set, problem, now)
    if not _is_known(status, mesh.get("status") or {}):
        cluster.patch(names.MESH_KIND, mesh["metadata"]["name"], {"status": status}, subresource="status", validation="Ignore")
    if problem is not None and ready_condition(mesh).get("message") != ready_condition({"status": status})["message"]:
        _notify(cluster, mesh, problem, now)
    return ready_condition({"status": status})["status"] == "True"


def _is_known(status: Object, before: Object) -> bool:
    """A definition of the kind that is not ours may have no field for the generation: the server drops it then."""
    kept = {key: value for key, value in status.items() if key in before or key != "observedGeneration"}
    return kept == before


def _notify(cluster: Cluster, mesh: Object, problem: Problem, now: str) -> None:
    metadata = mesh["metadata"]
    about = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion")}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": {"apiVersion": mesh["apiVersion"], "kind": mesh["kind"], **about},
        "type": "Warning",
        "reason": problem.reason,
        "message": problem.message[:LONGEST_EVENT],
        "source": {"component": "monarch-operator"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    cluster.create(event)


def _look(mesh: Object, stateful_set: Object) -> object:
    of_mesh, of_set = mesh["metadata"], stateful_set["metadata"]
    return (of_mesh["uid"], of_mesh["generation"], of_mesh.get("labels"), of_mesh.get("annotations"), of_set["uid"], of_set["generation"])


def _hash(stateful_set: Object) -> str | None:
    annotations: dict[str, str] = stateful_set["metadata"].get("annotations") or {}
    return annotations.get(names.TEMPLATE_HASH)


def _owned(item: Object, mesh: Object) -> Object:
    owner = {
        "apiVersion": "monarch.pytorch.org/v1alpha1",
        "kind": "MonarchMesh",
        "name": mesh["metadata"]["name"],
        "uid": mesh["metadata"]["uid"],
        "controller": True,
    }
    return {**item, "metadata": {**item["metadata"], "ownerReferences": [owner]}}
