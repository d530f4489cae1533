"""What a MonarchMesh stands for: a headless Service and a StatefulSet. Client and operator make them by the same functions."""

from __future__ import annotations

import hashlib
import json
from copy import deepcopy
from typing import Any

from monarch.job.kubernetes.manifests import names, pod, workload

Object = dict[str, Any]

DEFAULT_PORT = 26600


def monarch_mesh(name: str, replicas: int, port: int, template: Object, metadata: Object) -> Object:
    """The MonarchMesh itself, as a client applies it."""
    return {
        "apiVersion": "monarch.pytorch.org/v1alpha1",
        "kind": "MonarchMesh",
        "metadata": {"name": name, **metadata},
        "spec": {"replicas": replicas, "port": port, "podTemplate": template},
    }


def mesh_objects(mesh: Object) -> list[Object]:
    """Service `<name>-svc` and StatefulSet `<name>` of a MonarchMesh of the server; `ValueError` where a Secret has no worker to go to.

    The labels and annotations of the mesh go on the StatefulSet, where Kueue looks for its queue. The template is the user's, with the
    labels by which the pods are found, and the volume of the Secret that the annotation `monarch.pytorch.org/join-secret` names.
    """
    metadata, spec = mesh["metadata"], mesh["spec"]
    name: str = metadata["name"]
    port: int = spec.get("port", DEFAULT_PORT)
    template = deepcopy(spec["podTemplate"])
    of_pod: Object = template.setdefault("metadata", {})
    selector = names.mesh_labels(name, None)
    of_pod["labels"] = {**(of_pod.get("labels") or {}), **selector}
    annotations: dict[str, str] = metadata.get("annotations") or {}
    if names.JOIN_SECRET in annotations:
        pod.add_secret(template, annotations[names.JOIN_SECRET])
    shared: Object = {"namespace": metadata["namespace"], "labels": {**(metadata.get("labels") or {}), **selector}}
    copied = {key: value for key, value in annotations.items() if not key.startswith("kubectl.kubernetes.io/")}
    copied[names.TEMPLATE_HASH] = template_hash(template)
    of_set: Object = {**shared, "annotations": copied}
    return [
        workload.service(names.service_name(name), name, selector, port, shared),
        workload.stateful_set(name, names.service_name(name), spec["replicas"], template, selector, of_set),
    ]


def template_hash(template: Object) -> str:
    """SHA-256 of the template as it is wanted: what webhooks make of it in the server does not count."""
    return hashlib.sha256(json.dumps(template, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
