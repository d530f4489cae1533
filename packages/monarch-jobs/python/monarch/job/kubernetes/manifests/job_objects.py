"""All objects of a job, in the order in which they are applied: the anchor, which owns the others, then what pods need, then the pods."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from monarch.job.kubernetes.manifests import names, network_policy, pod, workload
from monarch.job.kubernetes.manifests.mesh_objects import monarch_mesh

if TYPE_CHECKING:
    from monarch.job.kubernetes.arguments import KubernetesArguments, MeshArguments

Object = dict[str, Any]

_LEFT_OUT = "# The data of this Secret is left out: the secret of the job is made when it is submitted.\n"


def job_objects(arguments: KubernetesArguments, apply_id: str, clients: Sequence[Object] = ()) -> list[Object]:
    """Objects as they are applied; the Secret has no data yet.

    `clients` are peers of a NetworkPolicy that may connect to workers too: the pod of a client that runs in the cluster.
    """
    meshes = arguments.provisioned
    if not meshes:
        return []
    shared = _metadata(arguments, apply_id)
    objects: list[Object] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names.anchor_name(apply_id), **shared}, "data": {"job": apply_id}}
    ]
    secret = _secret(arguments, apply_id)
    if secret is not None and arguments.join_secret is None:
        objects.append({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret, **shared}, "type": "Opaque"})
    if arguments.network_policy:
        objects += network_policy.policies(arguments, apply_id, shared, clients)
    if arguments.provisioner == "monarchmesh":
        return objects + [_monarch_mesh(arguments, mesh, apply_id) for mesh in meshes]
    for mesh in meshes:
        labels = names.mesh_labels(mesh.name, apply_id)
        of_service = {"namespace": arguments.namespace, "labels": labels}
        objects.append(workload.service(_service(mesh, apply_id), mesh.name, labels, mesh.port, of_service))
    if arguments.workload == "jobset":
        return [*objects, _job_set(arguments, meshes, apply_id)]
    return objects + [_workload(arguments, mesh, apply_id) for mesh in meshes]


def owned(objects: list[Object], anchor_uid: str) -> list[Object]:
    """The same with the anchor as owner of the others: who deletes it removes all of them."""
    # Without blockOwnerDeletion: setting it is a right of its own in clusters that check it.
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": objects[0]["metadata"]["name"], "uid": anchor_uid}
    return [objects[0], *({**item, "metadata": {**item["metadata"], "ownerReferences": [dict(reference)]}} for item in objects[1:])]


def secret_object(arguments: KubernetesArguments, apply_id: str, secret: bytes) -> Object:
    """The Secret of the job with its data."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": names.secret_name(apply_id), **_metadata(arguments, apply_id)},
        "type": "Opaque",
        "data": {names.SECRET_KEY: b64encode(secret).decode()},
    }


def plan_text(arguments: KubernetesArguments) -> str:
    """The objects as YAML, the same for the same arguments; the apply id is all x, and the data of the Secret is left out."""
    # Only plans need the library of YAML.
    from monarch.job.kubernetes.manifests import yaml_text

    notes = [
        f"# Mesh '{mesh.name}' is attached: {mesh.num_replicas} pods with {mesh.selector}, rank by {mesh.pod_rank_label}\n"
        for mesh in arguments.meshes.values()
        if not mesh.provisioned
    ]
    parts = [(_LEFT_OUT if item["kind"] == "Secret" else "") + yaml_text.document(item) for item in job_objects(arguments, names.PLAN_ID)]
    return "".join(notes) + "---\n".join(parts)


def _metadata(arguments: KubernetesArguments, apply_id: str) -> Object:
    return {"namespace": arguments.namespace, "labels": {names.APP_LABEL: names.APP, names.JOB_LABEL: apply_id}}


def _secret(arguments: KubernetesArguments, apply_id: str) -> str | None:
    if arguments.insecure:
        return None
    return arguments.join_secret or names.secret_name(apply_id)


def _service(mesh: MeshArguments, apply_id: str) -> str:
    return names.service_name(names.workload_name(mesh.name, apply_id))


def _of_workload(arguments: KubernetesArguments, mesh: MeshArguments, apply_id: str) -> Object:
    metadata: Object = {"namespace": arguments.namespace, "labels": {**mesh.labels, **names.mesh_labels(mesh.name, apply_id)}}
    if mesh.annotations:
        metadata["annotations"] = dict(mesh.annotations)
    return metadata


def _template(arguments: KubernetesArguments, mesh: MeshArguments, apply_id: str) -> Object:
    given = pod.image_template(mesh.image_spec) if mesh.image_spec is not None else mesh.pod_template
    assert given is not None
    template = pod.completed(
        given,
        pod.Worker(mesh.port, _secret(arguments, apply_id), arguments.idle_timeout),
        restart_policy=arguments.restart_policy,
        labels={**mesh.labels, **names.mesh_labels(mesh.name, apply_id)},
        annotations=mesh.annotations,
    )
    if arguments.restart_policy == "Never":
        # The controller of StatefulSets does this by itself.
        template["spec"].setdefault("subdomain", _service(mesh, apply_id))
    return template


def _workload(arguments: KubernetesArguments, mesh: MeshArguments, apply_id: str) -> Object:
    name, template = names.workload_name(mesh.name, apply_id), _template(arguments, mesh, apply_id)
    metadata = _of_workload(arguments, mesh, apply_id)
    if arguments.workload == "job":
        return workload.indexed_job(name, mesh.num_replicas, template, metadata)
    selector = names.mesh_labels(mesh.name, apply_id)
    return workload.stateful_set(name, names.service_name(name), mesh.num_replicas, template, selector, metadata)


def _monarch_mesh(arguments: KubernetesArguments, mesh: MeshArguments, apply_id: str) -> Object:
    metadata = _of_workload(arguments, mesh, apply_id)
    secret = _secret(arguments, apply_id)
    if secret is not None:
        metadata["annotations"] = {**metadata.get("annotations", {}), names.JOIN_SECRET: secret}
    template = _template(arguments, mesh, apply_id)
    return monarch_mesh(mesh.name, mesh.num_replicas, mesh.port, template, metadata)


def _job_set(arguments: KubernetesArguments, meshes: list[MeshArguments], apply_id: str) -> Object:
    metadata = _metadata(arguments, apply_id)
    jobs: list[tuple[str, Object, Object]] = []
    annotations: dict[str, str] = {}
    for mesh in meshes:
        metadata["labels"] = {**mesh.labels, **metadata["labels"]}
        annotations |= mesh.annotations
        of_job = {key: value for key, value in _of_workload(arguments, mesh, apply_id).items() if key != "namespace"}
        jobs.append((names.short_mesh(mesh.name), workload.job_spec(mesh.num_replicas, _template(arguments, mesh, apply_id)), of_job))
    if annotations:
        metadata["annotations"] = annotations
    return workload.job_set(names.job_set_name(apply_id), jobs, metadata)
