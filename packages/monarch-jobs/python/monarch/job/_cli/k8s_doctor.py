"""`monarch k8s doctor`: the way to a cluster, the rights of this client, and what the cluster offers, one check after the other."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from monarch.job.errors import JobError
from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.kinds import parse
from monarch.job.kubernetes.manifests import rbac

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.config import KubeConfig

OK, FAILED, INFO = "ok", "FAIL", "info"
# Indexed Jobs are stable since this version.
_LEAST_VERSION = (1, 24)
_MOST_SKEW_S = 60.0
# Network plug-ins by the names of their DaemonSets, with whether they enforce a NetworkPolicy.
_PLUGINS = {
    "calico": True,
    "cilium": True,
    "antrea": True,
    "kube-router": True,
    "weave": True,
    "ovnkube": True,
    "azure-npm": True,
    "aws-node": True,
    "canal": True,
    "flannel": False,
    "kindnet": True,
}
_KINDS = (("monarch.pytorch.org/v1alpha1", "MonarchMesh"), ("jobset.x-k8s.io/v1alpha2", "JobSet"), ("kueue.x-k8s.io/v1beta1", "Kueue"))


class Check(NamedTuple):
    """One line: `state` is "ok", "FAIL", or "info" for what is no fault."""

    state: str
    name: str
    detail: str


def checks(config: KubeConfig, namespace: str | None, mode: rbac.Mode, workload: str) -> Iterator[Check]:
    """All checks, in order; those that need an answer of the server are left out where there is none."""
    try:
        connection = config.load()
    except JobError as e:
        yield Check(FAILED, "kubeconfig", _line(e))
        return
    place = namespace or connection.namespace or "default"
    cluster = Cluster(connection, place)
    yield Check(OK, "kubeconfig", f"{connection.source}, server {connection.server}, namespace {place}")
    try:
        version = cluster.server_version()
    except JobError as e:
        yield Check(FAILED, "server", _line(e))
        return
    is_old = mode == "native" and workload == "job" and version < _LEAST_VERSION
    words = "; Indexed Jobs need 1.24: use workload='statefulset'" if is_old else ""
    yield Check(FAILED if is_old else OK, "server", f"Kubernetes {version[0]}.{version[1]}{words}")
    parts: tuple[Callable[[], Iterator[Check]], ...] = (
        lambda: _clock(cluster),
        lambda: _user(cluster),
        lambda: _place(cluster),
        lambda: _rights(cluster, mode, workload, forward=config.out_of_cluster),
        lambda: _kinds(cluster, mode, workload),
        lambda: _network(cluster),
        lambda: _quota(cluster, mode, workload),
    )
    for part in parts:
        try:
            yield from part()
        except JobError as e:
            yield Check(FAILED, "server", _line(e))
    connection.close()


def _line(error: JobError) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines())


def _clock(cluster: Cluster) -> Iterator[Check]:
    before = time.time()
    with cluster.connection.stream("GET", "/version") as incoming:
        date = incoming.answer.getheader("Date")
        incoming.answer.read()
    if not date:
        return
    now = (before + time.time()) / 2
    # The header has whole seconds.
    skew = now - parsedate_to_datetime(date).timestamp() - 0.5
    is_off = abs(skew) > _MOST_SKEW_S
    words = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server: certificates may seem expired" if is_off else "agrees"
    yield Check(FAILED if is_off else OK, "clock", words)


def _user(cluster: Cluster) -> Iterator[Check]:
    review: dict[str, Any] = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        found = cluster.create(review)
    except JobError as e:
        if getattr(e, "status", 0) not in (403, 404):
            raise
        yield Check(INFO, "user", "accepted; the server does not tell the name")  # older than 1.28
        return
    info = found.get("status", {}).get("userInfo", {})
    yield Check(OK, "user", f"{info.get('username')} ({', '.join(info.get('groups') or ()) or 'no groups'})")


def _place(cluster: Cluster) -> Iterator[Check]:
    status, _ = cluster.get_path(parse("v1/Namespace").path("", cluster.namespace))
    if status == 404:
        yield Check(FAILED, "namespace", f"there is no namespace '{cluster.namespace}': `kubectl create namespace {cluster.namespace}`")
    elif status == 200:
        yield Check(OK, "namespace", cluster.namespace)
    else:
        yield Check(INFO, "namespace", f"{cluster.namespace}; this client may not look at it")


def _rights(cluster: Cluster, mode: rbac.Mode, workload: str, *, forward: bool) -> Iterator[Check]:
    for rule in rbac.rules(mode, forward=forward, workload=workload):
        for resource in cast("list[str]", rule["resources"]):
            group = rule["apiGroups"][0]
            base, slash, sub = resource.partition("/")
            name = (f"{base}.{group}" if group else base) + slash + sub
            missing = [verb for verb in rule["verbs"] if not cluster.can_i(verb, name)]
            if missing:
                hint = f"`monarch k8s rbac --mode {mode} --namespace {cluster.namespace}` grants it"
                yield Check(FAILED, f"right {name}", f"no right to {', '.join(missing)}; {hint}")
            else:
                yield Check(OK, f"right {name}", ", ".join(rule["verbs"]))


def _kinds(cluster: Cluster, mode: rbac.Mode, workload: str) -> Iterator[Check]:
    needed = {"MonarchMesh": mode == "monarchmesh", "JobSet": mode == "native" and workload == "jobset"}
    for version, kind in _KINDS:
        is_known = cluster.get_path(f"/apis/{version}")[0] == 200
        if not is_known and needed.get(kind):
            hint = "`monarch k8s install --operator`" if kind == "MonarchMesh" else f"install what provides {version.partition('/')[0]}"
            yield Check(FAILED, kind, f"the cluster does not have it: {hint}")
        else:
            yield Check(OK if is_known else INFO, kind, version if is_known else "not installed")


def _network(cluster: Cluster) -> Iterator[Check]:
    status, data = cluster.get_path("/apis/apps/v1/daemonsets")
    if status != 200:
        yield Check(INFO, "network plug-in", "not known: this client may not list the DaemonSets of the cluster")
        return
    found = [str(one["metadata"]["name"]) for one in json.loads(data).get("items", ())]
    known = {word: does for word, does in _PLUGINS.items() if any(word in name for name in found)}
    if any(known.values()):
        yield Check(OK, "network plug-in", f"{', '.join(known)}: enforces NetworkPolicies")
    elif known:
        yield Check(INFO, "network plug-in", f"{', '.join(known)}: NetworkPolicies are not enforced; workers admit their own job only")
    else:
        yield Check(INFO, "network plug-in", "not recognised: NetworkPolicies may not be enforced")


def _quota(cluster: Cluster, mode: rbac.Mode, workload: str) -> Iterator[Check]:
    status, data = cluster.get_path(parse("v1/ResourceQuota").path(cluster.namespace))
    if status != 200:
        yield Check(INFO, "quota", "not known: this client may not list the quotas of the namespace")
        return
    found = json.loads(data).get("items", ())
    made = _made(mode, workload)
    for quota in found:
        hard, used = quota.get("status", {}).get("hard", {}), quota.get("status", {}).get("used", {})
        full = [name for name in hard if used.get(name) == hard[name] and _is_used(name, made)]
        words = ", ".join(f"{name} {used.get(name, '?')}/{hard[name]}" for name in hard)
        yield Check(FAILED if full else OK, f"quota {quota['metadata']['name']}", words + (f"; used up: {', '.join(full)}" if full else ""))
    if not found:
        yield Check(OK, "quota", "none")


def _made(mode: rbac.Mode, workload: str) -> set[str]:
    """What a job, or the operator for it, makes in its namespace: as quotas name it."""
    rules = rbac.rules(mode, workload=workload) + (rbac.rules("operator") if mode == "monarchmesh" else [])
    found = {
        ".".join(filter(None, (resource, one["apiGroups"][0])))
        for one in rules
        if "create" in one["verbs"]
        for resource in one["resources"]
    }
    # Controllers make the pods.
    return {"pods", *found}


def _is_used(name: str, made: set[str]) -> bool:
    """Can a job be refused because of this entry of a quota? Load balancers, volumes and the like are not for jobs."""
    if name.removeprefix("count/") in made:
        return True
    resource = name.removeprefix("requests.").removeprefix("limits.")
    # GPUs are the only devices: a job that requests others is the exception.
    return resource in ("cpu", "memory") or (
        name.startswith("requests.") and "/" in resource and ("gpu" in resource or "/mig-" in resource)
    )
