"""Pod templates that users give: as plain JSON, and what a template of ours may not have already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from monarch.job.kubernetes import rules
from monarch.job.kubernetes.manifests import names
from monarch.job.kubernetes.manifests.fields import mapping, mappings, text_map
from monarch.job.kubernetes.manifests.pod import JOIN_VOLUME, worker_container
from monarch.job.kubernetes.manifests.script import MOUNT_PATH

Object = dict[str, Any]

# Labels that the controllers of Kubernetes set on pods, and those by which Monarch's are found.
_TAKEN_DOMAINS = ("batch.kubernetes.io/", "apps.kubernetes.io/", "statefulset.kubernetes.io/", "jobset.sigs.k8s.io/", names.OUR_DOMAIN)
_TAKEN = (names.APP_LABEL, "controller-revision-hash", "job-name", "controller-uid")


def plain(value: Any) -> Any:
    """Objects of the official client as JSON; what is JSON stays."""
    fields: Mapping[str, str] | None = getattr(cast("object", type(value)), "attribute_map", None)
    if fields is not None:
        found = {key: plain(getattr(value, name)) for name, key in fields.items()}
        return {key: item for key, item in found.items() if item is not None}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Any]", value)]
    return value


def check_free(what: str, keys: Mapping[str, str]) -> None:
    """Labels or annotations of users leave ours, and those of the controllers, alone."""
    for key in keys:
        if key in _TAKEN or key.startswith(_TAKEN_DOMAINS):
            raise ValueError(f"{what} '{key}' is set by monarch or by a controller of Kubernetes: leave it out")


def check_template(template: Object, port: int, restart_policy: str) -> None:
    """`ValueError` names what no server accepts, and what collides with what is added; `TypeError` what is no JSON."""
    _check_json("pod_template", template)
    unknown = [key for key in template if key not in ("metadata", "spec")]
    if unknown:
        raise ValueError(f"pod_template has '{unknown[0]}': a template of pods has metadata and spec only")
    metadata = mapping("pod_template.metadata", template.get("metadata", {}))
    for name, check in (("labels", rules.check_labels), ("annotations", rules.check_annotations)):
        found = text_map(f"pod_template.metadata.{name}", metadata.get(name) or {})
        check(found)
        check_free(f"pod_template: {name.removesuffix('s')}", found)
    spec = mapping("pod_template.spec", template.get("spec", {}))
    policy = spec.get("restartPolicy", restart_policy)
    if policy != restart_policy:
        raise ValueError(f"pod_template.spec.restartPolicy is {policy!r}: this workload needs {restart_policy!r}, or none given")
    containers = mappings("pod_template.spec.containers", spec.get("containers") or [])
    ours = [container for container in containers if container.get("name") == names.CONTAINER]
    if len(ours) != 1:
        there = ", ".join(repr(container.get("name")) for container in containers) or "none"
        wrong = "no container" if not ours else f"{len(ours)} containers"
        raise ValueError(f"pod_template has {wrong} named '{names.CONTAINER}', and needs exactly one; its containers: {there}")
    if any(volume.get("name") == JOIN_VOLUME for volume in mappings("pod_template.spec.volumes", spec.get("volumes") or [])):
        raise ValueError(f"pod_template has a volume '{JOIN_VOLUME}', which is the name of the one with the secret of the job")
    _check_worker(ours[0], port)


def is_started_by_us(template: Object) -> bool:
    """Has the container neither a command nor arguments? `monarch worker` then runs in it."""
    worker = worker_container(template)
    return not worker.get("command") and not worker.get("args")


def _check_worker(worker: Object, port: int) -> None:
    where = f"pod_template: container '{names.CONTAINER}'"
    if not worker.get("image"):
        raise ValueError(f"{where} has no image")
    for mount in mappings(f"{where}: volumeMounts", worker.get("volumeMounts") or []):
        path = str(mount.get("mountPath", "")).rstrip("/")
        if path == MOUNT_PATH or path.startswith(f"{MOUNT_PATH}/"):
            raise ValueError(f"{where} mounts '{path}', where the secret of the job is")
    for variable in mappings(f"{where}: env", worker.get("env") or []):
        if variable.get("name") == names.POD_UID_VARIABLE:
            raise ValueError(f"{where} sets {names.POD_UID_VARIABLE}, which is set by monarch: leave it out")
        if variable.get("name") == "MONARCH_PORT" and variable.get("value") != str(port):
            raise ValueError(
                f"{where} has MONARCH_PORT={variable.get('value')!r}, and the port of the mesh is {port}: say port={port} only once"
            )
    for given in mappings(f"{where}: ports", worker.get("ports") or []):
        if given.get("name") == names.PORT_NAME and given.get("containerPort") != port:
            raise ValueError(f"{where} has a port '{names.PORT_NAME}' {given.get('containerPort')}, and the port of the mesh is {port}")
    for field in ("command", "args"):
        words: Any = worker.get(field) or []
        if not isinstance(words, list) or not all(isinstance(word, str) for word in cast("list[Any]", words)):
            raise TypeError(f"{where}: {field} is a list of texts, not {words!r}")


def _check_json(where: str, value: Any) -> None:
    if isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            if not isinstance(key, str):
                raise TypeError(f"{where}: the key {key!r} is no text")
            _check_json(f"{where}.{key}", item)
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            _check_json(f"{where}[{index}]", item)
    elif value is not None and not isinstance(value, str | int | float | bool):
        raise TypeError(f"{where} is a {type(value).__name__}, which JSON does not have")
