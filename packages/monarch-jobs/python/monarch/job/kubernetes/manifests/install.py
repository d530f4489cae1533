"""What `monarch k8s install --operator` applies, and the Helm chart makes: the same objects from the same values."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, cast

from monarch.job.kubernetes.manifests import names, rbac

Object = dict[str, Any]

NAME = "monarch-operator"
NAMESPACE = "monarch-system"
HEALTH_PORT = 8081
_RBAC = "rbac.authorization.k8s.io/v1"
_LABELS = {"app.kubernetes.io/name": NAME}
# `helm uninstall` would remove the definition, and with it every mesh.
_KEEP = {"helm.sh/resource-policy": "keep"}

# The defaults of the chart (values.yaml); an empty tag is the version of the chart.
VALUES: Object = {
    "manager": {
        "replicas": 1,
        "image": {"repository": "monarch-operator", "tag": "", "pullPolicy": "IfNotPresent"},
        "args": ["--leader-elect"],
        "env": [],
        "podSecurityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
    },
    "rbacHelpers": {"enable": False},
    "clientRbac": {"enable": False},
    "crd": {"enable": True, "keep": True},
    "metrics": {"enable": False, "port": 8080},
    "prometheus": {"enable": False},
}


# Names below these belong to Kubernetes.
_OPEN = ("manager.podSecurityContext", "manager.securityContext", "manager.resources")


def with_defaults(values: Mapping[str, Any] | None) -> Object:
    """`VALUES` with these in their places, merged as Helm does; `ValueError` for a name that there is not."""
    return _merged("", VALUES, values or {})


def _merged(path: str, default: Object, given: Mapping[str, Any]) -> Object:
    found = copy.deepcopy(default)
    for key, value in given.items():
        place = f"{path}.{key}".lstrip(".")
        if key not in default and not path.startswith(_OPEN):
            known = ", ".join(f"{path}.{name}".lstrip(".") for name in default)
            raise ValueError(f"there is no value '{place}': {known}")
        before = default.get(key)
        if isinstance(value, Mapping) and isinstance(before, dict):
            found[key] = _merged(place, cast("Object", before), cast("Mapping[str, Any]", value))
        else:
            found[key] = value
    return found


def crd() -> Object:
    """The definition of MonarchMesh."""
    import yaml

    return cast("Object", yaml.safe_load(files("monarch.job.kubernetes.manifests").joinpath("crd.yaml").read_text(encoding="utf-8")))


def operator_objects(values: Mapping[str, Any] | None = None, namespace: str = NAMESPACE, version: str = "latest") -> list[Object]:
    """What the chart makes of these values in this namespace, in the order in which it can be applied.

    `version` is the tag of the image where the values have none. The namespace itself is not among them.
    """
    given = with_defaults(values)
    objects: list[Object] = []
    if given["crd"]["enable"]:
        definition = crd()
        if given["crd"]["keep"]:
            definition["metadata"]["annotations"] = dict(_KEEP)
        objects.append(definition)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(NAME, namespace)}
    objects += [account, *_cluster_role(NAME, rbac.rules("operator"), namespace), *_leader_role(namespace)]
    if given["rbacHelpers"]["enable"]:
        objects += _helpers()
    if given["clientRbac"]["enable"]:
        objects.append(_role("ClusterRole", _metadata("monarch-client"), rbac.client_rules()))
    objects.append(_deployment(given, namespace, version))
    if given["metrics"]["enable"]:
        objects.append(_metrics_service(given, namespace))
        if given["prometheus"]["enable"]:
            objects.append(_service_monitor(namespace))
    return objects


def namespace_object(name: str = NAMESPACE) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _metadata(name: str, namespace: str | None = None, **labels: str) -> Object:
    place = {} if namespace is None else {"namespace": namespace}
    return {"name": name, **place, "labels": {**_LABELS, **labels}}


def _role(kind: str, metadata: Object, rules: list[Object]) -> Object:
    return {"apiVersion": _RBAC, "kind": kind, "metadata": metadata, "rules": rules}


def _binding(kind: str, metadata: Object, role: str, namespace: str) -> Object:
    return {
        "apiVersion": _RBAC,
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind.removesuffix("Binding"), "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}],
    }


def _cluster_role(name: str, rules: list[Object], namespace: str) -> list[Object]:
    return [_role("ClusterRole", _metadata(name), rules), _binding("ClusterRoleBinding", _metadata(name), name, namespace)]


def _leader_role(namespace: str) -> list[Object]:
    metadata = _metadata(f"{NAME}-lease", namespace)
    return [
        _role("Role", metadata, rbac.leader_rules()),
        _binding("RoleBinding", copy.deepcopy(metadata), f"{NAME}-lease", namespace),
    ]


def _helpers() -> list[Object]:
    """MonarchMeshes for the roles that every cluster has: view, edit and admin."""
    look, change = ["get", "list", "watch"], ["create", "delete", "deletecollection", "patch", "update"]
    found: list[Object] = []
    for word, verbs in (("view", look), ("edit", [*look, *change])):
        rules = [{"apiGroups": [names.GROUP], "resources": ["monarchmeshes"], "verbs": verbs}]
        if word == "edit":
            rules.append({"apiGroups": [names.GROUP], "resources": ["monarchmeshes/scale"], "verbs": ["get", "patch", "update"]})
        labels = {f"rbac.authorization.k8s.io/aggregate-to-{role}": "true" for role in (("view",) if word == "view" else ("edit", "admin"))}
        found.append(_role("ClusterRole", _metadata(f"{NAME}-{word}", **labels), rules))
    return found


def _deployment(given: Object, namespace: str, version: str) -> Object:
    manager, image = given["manager"], given["manager"]["image"]
    arguments = [*manager["args"], *([f"--metrics-bind-address=:{given['metrics']['port']}"] if given["metrics"]["enable"] else [])]
    ports = [{"name": "health", "containerPort": HEALTH_PORT}]
    if given["metrics"]["enable"]:
        ports.append({"name": "metrics", "containerPort": given["metrics"]["port"]})
    container = {
        "name": "manager",
        "image": f"{image['repository']}:{image['tag'] or version}",
        "imagePullPolicy": image["pullPolicy"],
        "command": ["python", "-m", "monarch.job.kubernetes.operator"],
        "args": [f"--health-probe-bind-address=:{HEALTH_PORT}", *arguments],
        "env": manager["env"],
        "ports": ports,
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "health"}, "periodSeconds": 20},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "health"}, "periodSeconds": 5},
        "securityContext": manager["securityContext"],
        "resources": manager["resources"],
    }
    pod = {
        "serviceAccountName": NAME,
        "securityContext": manager["podSecurityContext"],
        "terminationGracePeriodSeconds": 20,
        "containers": [container],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(NAME, namespace),
        "spec": {
            "replicas": manager["replicas"],
            "selector": {"matchLabels": dict(_LABELS)},
            "template": {"metadata": {"labels": dict(_LABELS)}, "spec": pod},
        },
    }


def _metrics_service(given: Object, namespace: str) -> Object:
    ports = [{"name": "metrics", "port": given["metrics"]["port"], "targetPort": "metrics"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(f"{NAME}-metrics", namespace),
        "spec": {"selector": dict(_LABELS), "ports": ports},
    }


def _service_monitor(namespace: str) -> Object:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": _metadata(NAME, namespace),
        "spec": {"selector": {"matchLabels": dict(_LABELS)}, "endpoints": [{"port": "metrics", "path": "/metrics"}]},
    }
