"""Requests to a real API server: one owner of an object, strict fields, watches across expiry and restarts, and each right taken away."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually

from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.config import KubeConfig
from monarch.job.kubernetes.access.failures import ApiError
from monarch.job.kubernetes.access.forward import Forward
from monarch.job.kubernetes.access.watch import Change
from monarch.job.kubernetes.manifests import install, rbac
from tools.k8s.cluster import KubeCluster

TITLE = "kubernetes job j"


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@pytest.fixture
def api(cluster: KubeCluster, namespace: str) -> Iterator[Cluster]:
    made = Cluster(KubeConfig.from_path(str(cluster.kubeconfig)).load(), namespace, TITLE)
    yield made
    made.connection.close()


def test_objects_are_applied_listed_and_deleted(api: Cluster) -> None:
    made = api.apply(config_map("a", x="1"))
    assert made["metadata"]["managedFields"][0]["manager"] == "monarch"
    assert api.apply(config_map("a", y="2"))["data"] == {"y": "2"}
    items, version = api.list("v1/ConfigMap", fields="metadata.name=a")
    assert [one["data"] for one in items] == [{"y": "2"}] and items[0]["kind"] == "ConfigMap" and version
    assert not api.delete("v1/ConfigMap", "a", uid="another")
    assert api.delete("v1/ConfigMap", "a", uid=made["metadata"]["uid"])
    assert not api.delete("v1/ConfigMap", "a") and api.get("v1/ConfigMap", "a") is None


def test_list_of_several_pages_is_whole(api: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.job.kubernetes.access.client._PAGE", "2")
    for number in range(5):
        api.apply({**config_map(f"m{number}"), "metadata": {"name": f"m{number}", "labels": {"of": "us"}}})
    items, _ = api.list("v1/ConfigMap", "of=us")
    assert [one["metadata"]["name"] for one in items] == [f"m{number}" for number in range(5)]


def test_field_of_another_manager_is_a_conflict(api: Cluster, cluster: KubeCluster) -> None:
    cluster.kubectl("apply", "--server-side", "-n", api.namespace, "-f", "-", stdin=json.dumps(config_map("a", x="theirs")))
    with pytest.raises(ApiError, match=r"configmaps 'a' in namespace '.*' is managed by 'kubectl'\n  .data.x") as raised:
        api.apply(config_map("a", x="ours"))
    assert raised.value.status == 409
    assert api.apply(config_map("a", x="ours"), force=True)["data"] == {"x": "ours"}


def test_invalid_pod_fields_are_named_and_create_nothing(api: Cluster, pod_template: dict[str, Any]) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {**pod_template["spec"], "nodeSelectr": {}}}
    with pytest.raises(ApiError, match="nodeSelectr"):
        api.apply(pod)
    pod["spec"] = {"containers": [{"name": "UPPER", "image": "x"}], "restartPolicy": "Sometimes"}
    with pytest.raises(ApiError) as raised:
        api.apply(pod)
    assert "spec.containers[0].name" in str(raised.value) and "spec.restartPolicy" in str(raised.value)
    assert api.get("v1/Pod", "p") is None


def test_stale_update_is_none(api: Cluster) -> None:
    api.apply(config_map("a", x="1"))
    stale = api.get("v1/ConfigMap", "a")
    assert stale is not None
    fresh = api.update({**stale, "data": {"x": "2"}})
    assert fresh is not None and fresh["data"] == {"x": "2"}
    assert api.update({**stale, "data": {"x": "3"}}) is None


def test_version_and_events_are_read(api: Cluster) -> None:
    assert api.server_version() >= (1, 36) and api.events("nothing") == []


def test_missing_namespace_is_named(cluster: KubeCluster) -> None:
    api = Cluster(KubeConfig.from_path(str(cluster.kubeconfig)).load(), "no-such-namespace", TITLE)
    with pytest.raises(ApiError, match="there is no namespace 'no-such-namespace'"):
        api.apply(config_map("a"))


class Watched(threading.Thread):
    """Collects what a watch reports."""

    def __init__(self, api: Cluster) -> None:
        super().__init__(daemon=True)
        self.api = api
        self.seen: list[Change] = []
        self.start()

    def run(self) -> None:
        for change in self.api.watch("v1/ConfigMap", "of=us"):
            self.seen.append(change)

    def has(self, kind: str, name: str) -> bool:
        """Reported, or in a list."""
        return any(
            (one.type == kind and one.object["metadata"]["name"] == name)
            or (kind == "ADDED" and any(item["metadata"]["name"] == name for item in one.items))
            for one in list(self.seen)
        )


def ours(name: str) -> dict[str, Any]:
    return {**config_map(name), "metadata": {"name": name, "labels": {"of": "us"}}}


def test_watch_reports_changes(api: Cluster) -> None:
    api.apply(ours("before"))
    watched = Watched(api)
    eventually("the list", lambda: watched.has("ADDED", "before"))
    api.apply(ours("after"))
    eventually("the addition", lambda: watched.has("ADDED", "after"))
    api.delete("v1/ConfigMap", "before")
    eventually("the deletion", lambda: watched.has("DELETED", "before"))
    assert [one.type for one in watched.seen] == ["LISTED", "ADDED", "DELETED"]


def test_watch_of_an_expired_version_lists_again(api: Cluster, cluster: KubeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    # A server knows the changes since its start: the first version of a new cluster has expired only after another start.
    cluster.api_server_restart()
    real, versions = Cluster.list, iter(["1"])

    def stale(self: Cluster, *args: Any, **kwargs: Any) -> tuple[list[dict[str, Any]], str]:
        items, version = real(self, *args, **kwargs)
        return items, next(versions, version)

    monkeypatch.setattr(Cluster, "list", stale)
    watched = Watched(api)
    eventually("two lists", lambda: [one.type for one in watched.seen] == ["LISTED", "LISTED"])
    api.apply(ours("after"))
    eventually("the addition", lambda: watched.has("ADDED", "after"))


def test_watch_and_requests_survive_an_api_server_restart(api: Cluster, cluster: KubeCluster) -> None:
    watched = Watched(api)
    api.apply(ours("before"))
    eventually("the addition", lambda: watched.has("ADDED", "before"))
    restarting = threading.Thread(target=cluster.api_server_restart)
    restarting.start()
    eventually("the server has gone or is back", lambda: not restarting.is_alive() or not _is_up(cluster))
    restarting.join()
    # These requests use the connections from before the restart.
    api.apply(ours("after"))
    eventually("the addition after the restart", lambda: watched.has("ADDED", "after"))


def _is_up(cluster: KubeCluster) -> bool:
    return cluster.try_kubectl("get", "--raw", "/readyz", timeout=10).returncode == 0


def rights(mode: rbac.Mode) -> list[tuple[str, str, str]]:
    return [
        (group, resource, verb)
        for rule in rbac.rules(mode, forward=True, join_secret=True)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


_KINDS = {
    "configmaps": "v1/ConfigMap",
    "secrets": "v1/Secret",
    "services": "v1/Service",
    "pods": "v1/Pod",
    "events": "v1/Event",
    "jobs": "batch/v1/Job",
    "statefulsets": "apps/v1/StatefulSet",
    "networkpolicies": "networking.k8s.io/v1/NetworkPolicy",
    "monarchmeshes": "monarch.pytorch.org/v1alpha1/MonarchMesh",
}
_SPECS: dict[str, dict[str, Any]] = {
    "services": {"spec": {"clusterIP": "None", "selector": {"a": "b"}}},
    "jobs": {"spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}}},
    "networkpolicies": {"spec": {"podSelector": {}}},
    "monarchmeshes": {"spec": {"replicas": 1, "podTemplate": {"spec": {"containers": [{"name": "worker", "image": "x"}]}}}},
}


def use(api: Cluster, resource: str, verb: str) -> None:
    """A request that needs this right."""
    base, _, sub = resource.partition("/")
    kind = _KINDS[base]
    if sub == "log":
        api.pod_log("none")
    elif sub == "portforward":
        Forward(api, "none", 1).start()
    elif verb in ("create", "patch"):
        version, _, name = kind.rpartition("/")
        # A mesh has a name of the user's, so clients make it only if there is none.
        make = api.create if base == "monarchmeshes" else api.apply
        make({"apiVersion": version, "kind": name, "metadata": {"name": "one"}, **_SPECS.get(base, {})})
    elif verb == "delete":
        api.delete(kind, "one")
    elif verb == "list":
        api.list(kind)
    else:
        assert verb == "get"
        api.get(kind, "one")


@pytest.mark.parametrize("mode", ["attach", "native", "monarchmesh"])
def test_each_right_that_is_taken_away_is_named(mode: rbac.Mode, api: Cluster, cluster: KubeCluster, tmp_path: Path) -> None:
    namespace = api.namespace
    if mode == "monarchmesh":
        cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(install.crd()))
        cluster.kubectl("wait", "--for=condition=Established", "crd/monarchmeshes.monarch.pytorch.org", "--timeout=30s")
    client = Cluster(KubeConfig.from_path(str(cluster.user_kubeconfig(tmp_path / "ada", "ada"))).load(), namespace, TITLE)
    everything = rights(mode)

    def grant(allowed: list[tuple[str, str, str]]) -> None:
        rules = [{"apiGroups": [group], "resources": [resource], "verbs": [verb]} for group, resource, verb in allowed]
        subject = {"kind": "User", "name": "ada", "apiGroup": "rbac.authorization.k8s.io"}
        for obj in rbac.role_objects("ada", namespace, subject, rules):
            api.apply(obj)

    assert len(everything) > 3
    for missing in everything:
        group, resource, verb = missing
        base, slash, sub = resource.partition("/")
        name = (f"{base}.{group}" if group else base) + slash + sub
        grant([one for one in everything if one != missing])
        eventually(f"{verb} {name} is denied", lambda verb=verb, name=name: not client.can_i(verb, name))  # type: ignore[misc]
        eventually("another right is granted", lambda missing=missing: _has_another(client, everything, missing))  # type: ignore[misc]
        if sub == "portforward" and verb == "create" and client.server_version() < (1, 35):
            continue  # the websocket needs `get` alone there
        with pytest.raises(ApiError) as raised:
            use(client, resource, verb)
        text = str(raised.value)
        assert f"no right to {verb} {name} in namespace '{namespace}'" in text, text
        assert f"hint: `monarch k8s rbac --namespace {namespace}`" in text
    client.connection.close()


def _has_another(client: Cluster, everything: list[tuple[str, str, str]], missing: tuple[str, str, str]) -> bool:
    group, resource, verb = next(one for one in everything if one != missing and "/" not in one[1])
    return client.can_i(verb, f"{resource}.{group}" if group else resource)


def test_client_of_a_job_loads_in_little_time(cluster: KubeCluster) -> None:
    """Nothing of the official client's thousand models is imported by requests."""
    code = (
        "import sys\nfrom monarch.job.kubernetes.access.config import KubeConfig\n"
        "from monarch.job.kubernetes.access.client import Cluster\n"
        "print(Cluster(KubeConfig().load(), 'default').server_version()[0], 'kubernetes' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("1 False\n", "")
