"""The objects of `monarch k8s install` and `rbac`, and their way into the cluster."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import click

from monarch.job._machine.commands import time_left
from monarch.job.kubernetes.access.failures import ApiError
from monarch.job.kubernetes.manifests import install, rbac
from monarch.job.kubernetes.pods.fields import part, rows, text

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.client import Cluster

Object = dict[str, Any]

SERVICE_ACCOUNT = "monarch-client"
_LONGEST_SUBJECT = 200
_ESTABLISHED_SECONDS = 30.0
_CRD = "apiextensions.k8s.io/v1/CustomResourceDefinition"


def objects(*, operator: bool, namespace: str | None = None, image: str | None = None) -> list[Object]:
    """The definition of MonarchMesh, and the operator with its namespace."""
    if not operator:
        return [install.crd()]
    place = namespace or install.NAMESPACE
    values: Object = {}
    if image is not None:
        repository, colon, tag = image.rpartition(":")
        if not colon or "/" in tag:
            raise click.UsageError(f"--image '{image}': expected REPOSITORY:TAG")
        values = {"manager": {"image": {"repository": repository, "tag": tag}}}
    return [install.namespace_object(place), *install.operator_objects(values, namespace=place, version=version("monarch-jobs"))]


def grant(
    namespace: str,
    rules: list[Object],
    *,
    service_account: str | None = None,
    user: str | None = None,
    group: str | None = None,
    mode: str = "native",
    workload: str = "job",
) -> list[Object]:
    """Role and binding, with the service account where the subject is one.

    Each subject has its own, and each mode and workload: what is granted takes nothing from whom it was granted before.
    """
    kinds = [mode] if mode != "native" else [workload] if workload != "job" else []
    if user is not None or group is not None:
        kind, who = ("User", user) if user is not None else ("Group", group or "")
        subject: Object = {"kind": kind, "name": who, "apiGroup": "rbac.authorization.k8s.io"}
        return rbac.role_objects("-".join([SERVICE_ACCOUNT, *kinds, kind.lower(), _path_segment(who)]), namespace, subject, rules)
    name = service_account or SERVICE_ACCOUNT
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    return [account, *rbac.role_objects("-".join([name, *kinds]), namespace, subject, rules)]


def _path_segment(who: str) -> str:
    """Part of the name of a Role. Names of users have any characters, those of Roles no slash and no percent sign."""
    if len(who) <= _LONGEST_SUBJECT and not set(who) & {"/", "%"} and who.isprintable():
        return who
    return hashlib.sha256(who.encode()).hexdigest()[:16]


def apply(cluster: Cluster, found: list[Object]) -> None:
    """Applies them one after the other, a line for each; waits until the definition of a kind is in use.

    Where there is an operator to install, a definition that others manage stays as it is, if it is of the kind and the version.
    """
    is_for_more = any(obj["kind"] == "Deployment" for obj in found)
    for obj in found:
        try:
            applied = cluster.apply(obj)
        except ApiError as error:
            if not (is_for_more and obj["kind"] == "CustomResourceDefinition" and error.reason == "Conflict"):
                raise
            applied = _existing(cluster, obj, error)
            click.echo(f"left {obj['kind']} {obj['metadata']['name']} as it is: {str(error).partition(chr(10))[0]}")
            _await_established(cluster, applied)
            continue
        metadata = obj["metadata"]
        place = f" in {metadata['namespace']}" if metadata.get("namespace") else ""
        click.echo(f"applied {obj['kind']} {metadata['name']}{place}")
        if obj["kind"] == "CustomResourceDefinition":
            _await_established(cluster, applied)


def _existing(cluster: Cluster, wanted: Object, error: ApiError) -> Object:
    """The definition that is there; raises `error` where it does not serve what the operator asks for."""
    found = cluster.get(_CRD, wanted["metadata"]["name"])
    listed = rows(found or {}, "spec", "versions")
    versions = [text(one, "name") for one in listed if one.get("served") and "status" in part(one, "subresources")]
    if found is None or wanted["spec"]["versions"][0]["name"] not in versions:
        raise error
    return found


def _await_established(cluster: Cluster, definition: Object) -> None:
    name = definition["metadata"]["name"]
    for change in cluster.watch(_CRD, fields=f"metadata.name={name}", timeout=time_left(_ESTABLISHED_SECONDS)):
        for one in [*change.items, change.object]:
            if any(
                text(condition, "type") == "Established" and text(condition, "status") == "True"
                for condition in rows(one, "status", "conditions")
            ):
                return
    raise click.ClickException(f"{name} is not in use after {_ESTABLISHED_SECONDS:.0f} s: `kubectl describe crd {name}` says why")
