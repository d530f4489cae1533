"""One mesh at a time: its Service and StatefulSet as they should be, then its status.

The objects are applied with force: their fields are the operator's. The template is an exception: it is overwritten only when the wanted
one has changed, which its hash in an annotation shows, so that a webhook that rewrites images, or an admin who changes one, is not fought.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.failures import ApiError
from monarch.job.kubernetes.manifests import mesh_objects, names
from monarch.job.kubernetes.operator.status import mesh_status

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.connection import ApiConnection
    from monarch.job.kubernetes.operator.work_queue import Key

Object = dict[str, Any]

STATEFUL_SET = "apps/v1/StatefulSet"


class Reconciler:
    """For several threads, each with another key."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        # What each mesh and its StatefulSet looked like after the objects were applied last: a change of numbers of pods is none of these.
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
        except (ApiError, ValueError) as error:
            self.forget(key)
            _report(cluster, mesh, found, str(error))
            raise
        return _report(cluster, mesh, found, "")

    def _apply(self, cluster: Cluster, key: Key, mesh: Object, found: Object | None) -> Object:
        if found is not None:
            _check_owner(mesh, found)
            with self._lock:
                if self._applied.get(key) == _look(mesh, found):
                    return found
        service, wanted = (_owned(item, mesh) for item in mesh_objects(mesh))
        if found is not None and _hash(found) == _hash(wanted):
            wanted["spec"]["template"] = found["spec"]["template"]
            # A template that changes meanwhile is a conflict, and the next look has it.
            wanted["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        _check_service(cluster, mesh, service)
        cluster.apply(service, force=True)
        made = cluster.apply(wanted, force=True)
        with self._lock:
            self._applied[key] = _look(mesh, made)
        return made


def _report(cluster: Cluster, mesh: Object, stateful_set: Object | None, problem: str) -> bool:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = mesh_status(mesh, stateful_set, problem, now)
    if status != mesh.get("status"):
        cluster.patch(names.MESH_KIND, mesh["metadata"]["name"], {"status": status}, subresource="status")
    return status["conditions"][-1]["status"] == "True"


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


def _check_service(cluster: Cluster, mesh: Object, service: Object) -> None:
    found = cluster.get("v1/Service", service["metadata"]["name"])
    if found is not None:
        _check_owner(mesh, found)


def _check_owner(mesh: Object, found: Object) -> None:
    """`ValueError` for an object of this name that is not the mesh's."""
    owner = controller(found)
    if owner is not None and owner.get("uid") == mesh["metadata"]["uid"]:
        return
    what = f"{found['kind']} {found['metadata']['name']} exists already"
    if owner is None:
        raise ValueError(f"{what}, and is not of this mesh: remove it, or give the mesh another name")
    raise ValueError(f"{what}, and is of {owner.get('kind')} {owner.get('name')} (uid {owner.get('uid')})")


def controller(item: Object) -> Object | None:
    """The reference to the object that made this one."""
    references = cast("list[Object]", item["metadata"].get("ownerReferences") or [])
    return next((one for one in references if one.get("controller")), None)
