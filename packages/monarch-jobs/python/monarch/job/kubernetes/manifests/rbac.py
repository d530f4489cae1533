"""The rights that each mode uses, and no others; the names and verbs are those of RBAC."""

from __future__ import annotations

from typing import Any, Literal

from monarch.job.kubernetes.manifests import names

Object = dict[str, Any]
Mode = Literal["attach", "native", "monarchmesh", "run", "operator"]
MODES: tuple[Mode, ...] = ("attach", "native", "monarchmesh", "run", "operator")

# Server-side apply of an object: `create` if it does not exist yet.
_APPLY = ("create", "patch")
_MADE = (*_APPLY, "delete")

_Rights = dict[tuple[str, str], tuple[str, ...]]

# The objects that every client reads: its pods, and the reasons why they do not start.
_LOOK: _Rights = {("", "pods"): ("list",), ("", "pods/log"): ("get",), ("", "events"): ("list",)}
# `get` is for the websocket, `create` for older protocols, and for the websocket too since Kubernetes 1.35.
_FORWARD: _Rights = {("", "pods/portforward"): ("create", "get")}
_JOIN_SECRET: _Rights = {("", "secrets"): ("get",)}
_OBJECTS: _Rights = {
    ("", "configmaps"): _MADE,
    ("", "secrets"): _MADE,
    ("", "pods"): ("delete",),
    ("networking.k8s.io", "networkpolicies"): _MADE,
}
_SERVICES: _Rights = {("", "services"): _MADE}
_WORKLOADS: dict[str, _Rights] = {
    "job": {("batch", "jobs"): (*_MADE, "list")},
    "statefulset": {("apps", "statefulsets"): (*_MADE, "list")},
    "jobset": {("jobset.x-k8s.io", "jobsets"): (*_MADE, "get"), ("batch", "jobs"): (*_MADE, "list")},
}
_MESHES: _Rights = {(names.GROUP, "monarchmeshes"): ("create", "delete", "get")}
# `monarch k8s run` gives its script the rights of a native client. The user must have them too, or no server permits the grant.
_RUN: _Rights = {
    ("", "serviceaccounts"): _APPLY,
    ("rbac.authorization.k8s.io", "roles"): _APPLY,
    ("rbac.authorization.k8s.io", "rolebindings"): _APPLY,
    ("apps", "statefulsets"): ("list",),
}
_OPERATOR: _Rights = {
    (names.GROUP, "monarchmeshes"): ("get", "list", "watch"),
    (names.GROUP, "monarchmeshes/status"): ("patch",),
    ("apps", "statefulsets"): (*_APPLY, "get", "list", "watch"),
    ("", "services"): (*_APPLY, "get", "list", "watch"),
    ("", "events"): ("create",),
}
_LEADER: _Rights = {("coordination.k8s.io", "leases"): ("create", "get", "update")}


def rules(mode: Mode, *, forward: bool = False, workload: str = "job", join_secret: bool = False) -> list[Object]:
    """The rules of a Role. `forward`: the client is outside of the cluster and uses the port-forward; `join_secret`: it reads that Secret.

    `workload` is that of the mode native. `ValueError` for a mode or workload that there is not.
    """
    if mode == "operator":
        return _rules(_OPERATOR)
    rights: list[_Rights] = [_LOOK]
    if mode in ("native", "run"):
        if workload not in _WORKLOADS:
            raise ValueError(f"there is no workload '{workload}': {', '.join(_WORKLOADS)}")
        rights += [_OBJECTS, _SERVICES, _WORKLOADS[workload], *([_RUN] if mode == "run" else [])]
    elif mode == "monarchmesh":
        rights += [_OBJECTS, _MESHES]
    elif mode != "attach":
        raise ValueError(f"there is no mode '{mode}': {', '.join(MODES)}")
    return _rules(*rights, *([_FORWARD] if forward else []), *([_JOIN_SECRET] if join_secret else []))


def client_rules() -> list[Object]:
    """All that clients can need, of any mode and workload."""
    return _rules(_LOOK, _OBJECTS, _SERVICES, *_WORKLOADS.values(), _MESHES, _FORWARD, _JOIN_SECRET)


def leader_rules() -> list[Object]:
    """Of the operator, in its own namespace."""
    return _rules(_LEADER)


def role_objects(name: str, namespace: str, subject: Object, found: list[Object]) -> list[Object]:
    """Role and RoleBinding; `subject` is a User, Group or ServiceAccount."""
    metadata = {"name": name, "namespace": namespace}
    return [
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": found},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": dict(metadata),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [subject],
        },
    ]


def _rules(*rights: _Rights) -> list[Object]:
    """One rule for the resources of a group that have the same verbs."""
    verbs: dict[tuple[str, str], set[str]] = {}
    for part in rights:
        for resource, allowed in part.items():
            verbs.setdefault(resource, set()).update(allowed)
    together: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, resource), allowed in sorted(verbs.items()):
        together.setdefault((group, tuple(sorted(allowed))), []).append(resource)
    return [{"apiGroups": [group], "resources": found, "verbs": list(allowed)} for (group, allowed), found in together.items()]
