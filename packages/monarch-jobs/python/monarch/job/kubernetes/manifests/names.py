"""Names of the objects of a job, and the labels and annotations by which they are found."""

from __future__ import annotations

import hashlib

CONTAINER = "worker"
PORT_NAME = "monarch"

APP_LABEL = "app.kubernetes.io/name"
APP = "monarch-worker"
MESH_LABEL = "monarch.pytorch.org/mesh-name"
JOB_LABEL = "monarch.pytorch.org/job"
# A label of pods of clients, which may then connect to the workers of every job of the namespace.
CLIENT_LABEL = "monarch.pytorch.org/client"
# A label of pods that replace a completed index; it has precedence over their own index.
RANK_LABEL = "monarch.pytorch.org/rank"
TEMPLATE_HASH = "monarch.pytorch.org/desired-pod-template-hash"
JOIN_SECRET = "monarch.pytorch.org/join-secret"
OUR_DOMAIN = "monarch.pytorch.org/"

# The label with the index of a pod, by the controller that made it; the second is an annotation too.
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"

GROUP = "monarch.pytorch.org"
MESH_KIND = "monarch.pytorch.org/v1alpha1/MonarchMesh"
JOB_SET_KIND = "jobset.x-k8s.io/v1alpha2/JobSet"

SECRET_KEY = "secret"
# The worker takes its identity from the pod's uid, so that a replacement pod never passes as the replaced one.
POD_UID_VARIABLE = "MONARCH_POD_UID"

# A workload's name is at most 40 characters: pods of a StatefulSet have it in a label, with 11 characters more, pods of a Job have it in
# their host names, with the index.
_LONGEST_MESH_PART = 31
_DIGEST = 8

# The apply id in a plan: the real one exists when the job is submitted.
PLAN_ID = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"


def short_id(apply_id: str) -> str:
    """The first eight characters, which names of objects have."""
    return apply_id[:8]


def anchor_name(apply_id: str) -> str:
    """The ConfigMap that owns all other objects of the job."""
    return f"monarch-{short_id(apply_id)}"


def secret_name(apply_id: str) -> str:
    return f"{anchor_name(apply_id)}-join"


def policy_name(apply_id: str) -> str:
    return f"{anchor_name(apply_id)}-agents"


def gateway_policy_name(apply_id: str) -> str:
    return f"{anchor_name(apply_id)}-gateway"


def job_set_name(apply_id: str) -> str:
    return anchor_name(apply_id)


def short_mesh(mesh: str) -> str:
    """The mesh's name, or its beginning and a digest where it is long: at most 31 characters."""
    if len(mesh) <= _LONGEST_MESH_PART:
        return mesh
    return mesh[: _LONGEST_MESH_PART - _DIGEST] + hashlib.sha256(mesh.encode()).hexdigest()[:_DIGEST]


def workload_name(mesh: str, apply_id: str) -> str:
    """The Job or StatefulSet of a mesh: two jobs of one namespace may have meshes of the same name."""
    return f"{short_mesh(mesh)}-{short_id(apply_id)}"


def service_name(workload: str) -> str:
    return f"{workload}-svc"


def mesh_labels(mesh: str, apply_id: str | None) -> dict[str, str]:
    """The labels of the pods of a mesh, and of its other objects; without an apply id those of a MonarchMesh that no client made."""
    labels = {APP_LABEL: APP, MESH_LABEL: mesh}
    return labels if apply_id is None else {**labels, JOB_LABEL: apply_id}


def selector(mesh: str, apply_id: str | None = None) -> str:
    """The label selector of the pods of a mesh."""
    return ",".join(f"{key}={value}" for key, value in mesh_labels(mesh, apply_id).items())
