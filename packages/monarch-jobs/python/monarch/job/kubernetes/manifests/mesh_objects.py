"""What a MonarchMesh stands for: a headless Service and a StatefulSet. Client and operator make them by the same functions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, cast

from monarch.job.kubernetes.manifests import names, pod, workload
from monarch.job.kubernetes.manifests.fields import mapping, mappings, text_map

Object = dict[str, Any]

DEFAULT_PORT = 26600
# No template of pods is nested so deep; copies, comparisons and encodings are recursive.
DEEPEST = 100


def monarch_mesh(name: str, replicas: int, port: int, template: Object, metadata: Object) -> Object:
    """The MonarchMesh itself, as a client applies it."""
    return {
        "apiVersion": "monarch.pytorch.org/v1alpha1",
        "kind": "MonarchMesh",
        "metadata": {"name": name, **metadata},
        "spec": {"replicas": replicas, "port": port, "podTemplate": template},
    }


def mesh_objects(mesh: Object) -> list[Object]:
    """Service `<name>-svc` and StatefulSet `<name>` of a MonarchMesh of the server.

    `ValueError` for a template that cannot be one of pods, or has no worker that a Secret could go to. The labels and annotations of the
    mesh go on the StatefulSet, where Kueue looks for its queue. The template is the user's, with the
    labels by which the pods are found, and the volume of the Secret that the annotation `monarch.pytorch.org/join-secret` names.
    """
    metadata, spec = mesh["metadata"], mesh["spec"]
    name: str = metadata["name"]
    port: int = spec.get("port") or DEFAULT_PORT
    try:
        _check_template(spec["podTemplate"])
    except TypeError as error:
        raise ValueError(str(error)) from None
    template = deepcopy(spec["podTemplate"])
    of_pod: Object = template.get("metadata") or {}
    template["metadata"] = of_pod
    selector = names.mesh_labels(name, None)
    of_pod["labels"] = {**(of_pod.get("labels") or {}), **selector}
    annotations: dict[str, str] = metadata.get("annotations") or {}
    if names.JOIN_SECRET in annotations:
        pod.add_secret(template, annotations[names.JOIN_SECRET])
    of_service: Object = {"namespace": metadata["namespace"], "labels": selector}
    shared: Object = {"namespace": metadata["namespace"], "labels": {**(metadata.get("labels") or {}), **selector}}
    copied = {key: value for key, value in annotations.items() if not key.startswith("kubectl.kubernetes.io/")}
    copied[names.TEMPLATE_HASH] = template_hash(template)
    of_set: Object = {**shared, "annotations": copied}
    return [
        workload.service(names.service_name(name), name, selector, port, of_service),
        workload.stateful_set(name, names.service_name(name), spec["replicas"], template, selector, of_set),
    ]


def _check_template(template: Any) -> None:
    """The definition of MonarchMesh lets any fields through: here are the types of those that are read or changed."""
    where = "spec.podTemplate"
    _check_depth(where, template)
    if "containers" in mapping(where, template):
        raise ValueError(f"{where} has 'containers', as that of monarch-operator 0.1 had: they belong to {where}.spec")
    metadata = mapping(f"{where}.metadata", template.get("metadata") or {})
    for name in ("labels", "annotations"):
        text_map(f"{where}.metadata.{name}", metadata.get(name) or {})
    spec = mapping(f"{where}.spec", template.get("spec") or {})
    mapping(f"{where}.spec.securityContext", spec.get("securityContext") or {})
    mappings(f"{where}.spec.volumes", spec.get("volumes") or [])
    for number, container in enumerate(mappings(f"{where}.spec.containers", spec.get("containers") or [])):
        place = f"{where}.spec.containers[{number}]"
        mappings(f"{place}.volumeMounts", container.get("volumeMounts") or [])
        mapping(f"{place}.securityContext", container.get("securityContext") or {})


def _check_depth(where: str, value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        if not level:
            return
        level = [item for one in level for item in _items(one)]
    raise ValueError(f"{where} is nested deeper than {DEEPEST} levels")


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("Object", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()


def template_hash(template: Object) -> str:
    """SHA-256 of the template as it is wanted: what webhooks make of it in the server does not count."""
    return hashlib.sha256(json.dumps(template, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
