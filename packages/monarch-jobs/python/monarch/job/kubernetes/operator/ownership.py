"""An object that has the name of one of a mesh's, and is not the mesh's yet: whether it can become the mesh's, and how it does.

An object without a controller becomes the mesh's: a manifest may bring the Service of its mesh. Fields that other field managers have set
become the operator's, so that the object then applied is all of it: a port of another name that stayed would be refused beside ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.client import Cluster

Object = dict[str, Any]

# Fields that the server never changes in an existing object, and their default values.
_FIXED: dict[str, tuple[tuple[str, Any], ...]] = {
    "Service": (("clusterIP", None),),
    "StatefulSet": (
        ("selector", None),
        ("serviceName", ""),
        ("podManagementPolicy", "OrderedReady"),
        ("volumeClaimTemplates", None),
    ),
}


class NotOwnedError(ValueError):
    """An object of this name is not the mesh's, and cannot be."""


def is_owned(mesh: Object, found: Object) -> bool:
    owner = controller(found)
    return owner is not None and owner.get("uid") == mesh["metadata"]["uid"]


def check(mesh: Object, found: Object, wanted: Object) -> None:
    """`NotOwnedError` names the object, and what is in the way."""
    what = f"{found['kind']} {found['metadata']['name']} exists already"
    owner = controller(found)
    if owner is not None:
        raise NotOwnedError(f"{what}, and is of {owner.get('kind')} {owner.get('name')} (uid {owner.get('uid')})")
    if found["metadata"].get("deletionTimestamp"):
        raise NotOwnedError(f"{what}, and is being deleted")
    different = [name for name, default in _FIXED[found["kind"]] if found["spec"].get(name, default) != wanted["spec"].get(name, default)]
    if different:
        words = ", ".join(f"spec.{name} is {found['spec'].get(name)!r}" for name in different)
        raise NotOwnedError(f"{what}, and cannot become the mesh's: {words}, which no server changes: delete it, or rename the mesh")


def is_changed(found: Object, manager: str) -> bool:
    """Has another than the operator set a field of its specification? What others note in its metadata is theirs."""
    entries = cast("list[Object]", found["metadata"].get("managedFields") or [])
    others = [one for one in entries if not one.get("subresource") and (one.get("manager"), one.get("operation")) != (manager, "Apply")]
    return any("f:spec" in (one.get("fieldsV1") or {}) for one in others)


def take_over(cluster: Cluster, kind: str, found: Object, manager: str) -> None:
    """Makes the operator the only manager of the object's fields. `ApiError` where the object has changed meanwhile."""
    metadata = found["metadata"]
    entries = cast("list[Object]", metadata.get("managedFields") or [])
    fields: Object = {}
    for entry in entries:
        if not entry.get("subresource"):
            _merge(fields, entry.get("fieldsV1") or {})
    ours = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": found["apiVersion"],
        "time": metadata["creationTimestamp"],
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    kept = [entry for entry in entries if entry.get("subresource")]
    changes = {"metadata": {"resourceVersion": metadata["resourceVersion"], "managedFields": [ours, *kept]}}
    cluster.patch(kind, metadata["name"], changes)


def controller(item: Object) -> Object | None:
    """The reference to the object that made this one."""
    references = cast("list[Object]", item["metadata"].get("ownerReferences") or [])
    return next((one for one in references if one.get("controller")), None)


def _merge(into: Object, fields: Object) -> None:
    for key, below in fields.items():
        _merge(into.setdefault(key, {}), below)
