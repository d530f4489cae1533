"""The pods of a mesh: one made from an image, or a template of the user, completed without losing anything that it has."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

from monarch.job.kubernetes.manifests import names, script

Object = dict[str, Any]

JOIN_VOLUME = "monarch-join"
SHARED_MEMORY_VOLUME = "shared-memory"
FUSE_VOLUME = "fuse"

# The user of pods from an image, who has no rights on the node and needs none; the slim image has an account of this number.
USER = 1000
# Seconds between two probes of the port: a pod counts as ready that much later.
READINESS_PERIOD_S = 1


class Worker(NamedTuple):
    """What the worker of a pod needs: its port, the Secret with the job's secret (None: insecure), seconds after which it ends unused."""

    port: int
    secret: str | None
    idle_timeout: float | None = None


def image_template(spec: Object) -> Object:
    """The template of an ImageSpec, of which `completed` makes a whole one."""
    container: Object = {"name": names.CONTAINER, "image": spec["image"]}
    pod: Object = {"automountServiceAccountToken": False, "enableServiceLinks": False, "containers": [container]}
    amounts: dict[str, str | int] = spec["resources"] or {}
    resources = {name: str(value) for name, value in amounts.items()}
    volumes: list[Object] = []
    mounts: list[Object] = []
    if spec["shared_memory_size"] is not None:
        volumes.append({"name": SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": str(spec["shared_memory_size"])}})
        mounts.append({"name": SHARED_MEMORY_VOLUME, "mountPath": "/dev/shm"})
    if not spec["enable_fuse"]:
        pod["securityContext"] = {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    elif any(_is_fuse_device(name) for name in resources):
        # The device comes from its plugin. A mount needs this capability anyway, within the container's own file systems.
        container["securityContext"] = {"privileged": False, "capabilities": {"add": ["SYS_ADMIN"]}}
    else:
        container["securityContext"] = {"privileged": True}
        volumes.append({"name": FUSE_VOLUME, "hostPath": {"path": "/dev/fuse", "type": "CharDevice"}})
        mounts.append({"name": FUSE_VOLUME, "mountPath": "/dev/fuse"})
    if resources:
        container["resources"] = {"requests": dict(resources), "limits": dict(resources)}
    if mounts:
        container["volumeMounts"] = mounts
        pod["volumes"] = volumes
    return {"spec": pod}


def _is_fuse_device(resource: str) -> bool:
    return "/" in resource and "fuse" in resource


def completed(template: Object, worker: Worker, *, restart_policy: str, labels: dict[str, str], annotations: dict[str, str]) -> Object:
    """The template with all that a worker needs; `labels` and `annotations` win over those of the template."""
    pod = deepcopy(template)
    metadata: Object = pod.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    if annotations or metadata.get("annotations"):
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    spec: Object = pod["spec"]
    spec["restartPolicy"] = restart_policy
    container = worker_container(pod)
    _set_command(container, worker)
    if restart_policy == "Never" and container.get("command"):
        # A container that is restarted in its pod would have the identity of the previous one.
        uid = {"fieldRef": {"fieldPath": "metadata.uid"}}
        container["env"] = [{"name": names.POD_UID_VARIABLE, "valueFrom": uid}, *(container.get("env") or [])]
    _listens(container, worker.port)
    if worker.secret is not None:
        add_secret(pod, worker.secret)
    return {"metadata": metadata, "spec": spec}


def worker_container(template: Object) -> Object:
    """The container `worker`; `ValueError` where there is none."""
    spec: Object = template.get("spec") or {}
    containers: list[Object] = spec.get("containers") or []
    for container in containers:
        if container.get("name") == names.CONTAINER:
            return container
    raise ValueError(f"the template of the pods has no container '{names.CONTAINER}'")


def _set_command(container: Object, worker: Worker) -> None:
    insecure = worker.secret is None
    if container.get("command"):
        container["command"] = script.wrapped_command(container["command"], insecure=insecure)
    elif container.get("args"):
        # The command is the image's, and unknown here.
        if not insecure:
            _set_variable(container, "MONARCH_JOB_SECRET_FILE", script.SECRET_PATH)
    else:
        container["command"] = script.worker_command(worker.port, insecure=insecure, idle_timeout=worker.idle_timeout)


def _listens(container: Object, port: int) -> None:
    _set_variable(container, "MONARCH_PORT", str(port))
    ports: list[Object] = container.get("ports") or []
    if not any(given.get("containerPort") == port and given.get("protocol", "TCP") == "TCP" for given in ports):
        container["ports"] = [*ports, {"name": names.PORT_NAME, "containerPort": port, "protocol": "TCP"}]
    if not container.get("readinessProbe"):
        container["readinessProbe"] = {"tcpSocket": {"port": port}, "periodSeconds": READINESS_PERIOD_S}


def _set_variable(container: Object, name: str, value: str) -> None:
    given: list[Object] = container.get("env") or []
    if not any(variable.get("name") == name for variable in given):
        # This comes first, so that variables of the user can refer to it.
        container["env"] = [{"name": name, "value": value}, *given]


def add_secret(template: Object, secret: str) -> None:
    """The Secret as a volume of the container `worker`, unless it is there already; changes the template."""
    container = worker_container(template)
    spec: Object = template["spec"]
    volumes: list[Object] = spec.get("volumes") or []
    if any(volume.get("name") == JOIN_VOLUME for volume in volumes):
        return
    source: Object = {"secretName": secret, "defaultMode": _mode(spec, container), "items": [{"key": names.SECRET_KEY, "path": "secret"}]}
    spec["volumes"] = [*volumes, {"name": JOIN_VOLUME, "secret": source}]
    mounts: list[Object] = container.get("volumeMounts") or []
    container["volumeMounts"] = [*mounts, {"name": JOIN_VOLUME, "mountPath": script.MOUNT_PATH, "readOnly": True}]


def _mode(spec: Object, container: Object) -> int:
    """The files are root's. With an fsGroup the kubelet lets that group read them; without one, only a mode for all lets another user.

    The mount is the container's only, so "all" is what runs in it.
    """
    of_pod: Object = spec.get("securityContext") or {}
    of_container: Object = container.get("securityContext") or {}
    user = of_container.get("runAsUser", of_pod.get("runAsUser"))
    return 0o400 if user == 0 or of_pod.get("fsGroup") is not None else 0o444
