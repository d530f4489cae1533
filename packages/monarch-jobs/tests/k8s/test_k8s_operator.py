"""The operator as a process, with a real API server and real pods."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command import ARGV
from eventually import eventually
from operator_process import OperatorProcess

from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.config import KubeConfig
from monarch.job.kubernetes.manifests import install, names, rbac, yaml_text
from tools.k8s.cluster import KubeCluster

Object = dict[str, Any]
Start = Callable[..., OperatorProcess]

SET, SERVICE, LEASE = "apps/v1/StatefulSet", "v1/Service", "coordination.k8s.io/v1/Lease"


@pytest.fixture
def api(cluster: KubeCluster, namespace: str) -> Iterator[Cluster]:
    """An administrator's requests, in the namespace of the test; MonarchMeshes are known."""
    client = Cluster(KubeConfig.from_path(str(cluster.kubeconfig)).load(), namespace)
    client.apply(install.crd(), force=True)
    eventually("MonarchMeshes are known", lambda: _is_known(client))
    yield client
    client.connection.close()


def _is_known(client: Cluster) -> bool:
    definition = client.get("apiextensions.k8s.io/v1/CustomResourceDefinition", "monarchmeshes.monarch.pytorch.org")
    conditions = (definition or {}).get("status", {}).get("conditions") or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


@pytest.fixture
def start(cluster: KubeCluster, namespace: str, tmp_path: Path) -> Iterator[Start]:
    """Starts an operator for the namespace of the test."""
    with contextlib.ExitStack() as stack:
        count = 0

        def started(*options: str, kubeconfig: Path = cluster.kubeconfig) -> OperatorProcess:
            nonlocal count
            count += 1
            return stack.enter_context(OperatorProcess(tmp_path / f"operator{count}.log", kubeconfig, "--namespace", namespace, *options))

        yield started


@pytest.fixture
def template(pod_template: Object) -> Object:
    """Pods that do nothing, and are ready at once."""
    pod_template["spec"]["containers"][0]["command"] = ["/usr/bin/sleep", "infinity"]
    return pod_template


def _mesh(api: Cluster, template: Object, name: str = "workers", replicas: int = 1, **metadata: Any) -> Object:
    return {
        "apiVersion": "monarch.pytorch.org/v1alpha1",
        "kind": "MonarchMesh",
        "metadata": {"name": name, "namespace": api.namespace, **metadata},
        "spec": {"replicas": replicas, "podTemplate": template},
    }


def _condition(api: Cluster, name: str = "workers") -> Object:
    mesh = api.get(names.MESH_KIND, name) or {}
    conditions: list[Object] = mesh.get("status", {}).get("conditions", [])
    current = mesh.get("status", {}).get("observedGeneration") == mesh.get("metadata", {}).get("generation")
    return conditions[0] if conditions and current else {}


def _await_ready(api: Cluster, name: str = "workers") -> Object:
    eventually(f"all pods of mesh {name} are ready", lambda: _condition(api, name), lambda found: found.get("status") == "True", 120)
    return api.get(names.MESH_KIND, name) or {}


def _set(api: Cluster, name: str = "workers") -> Object:
    found = api.get(SET, name)
    assert found is not None
    return found


def _await_set(api: Cluster, what: str, holds: Callable[[Object], object]) -> Object:
    return eventually(what, lambda: api.get(SET, "workers"), lambda found: found is not None and holds(found), 60)


def _worker(stateful_set: Object) -> Object:
    return next(one for one in stateful_set["spec"]["template"]["spec"]["containers"] if one["name"] == "worker")


def _changed(template: Object, value: str) -> Object:
    """The same with another environment."""
    (container,) = template["spec"]["containers"]
    return {"spec": {**template["spec"], "containers": [{**container, "env": [*container["env"], {"name": "STEP", "value": value}]}]}}


def _step(stateful_set: Object) -> str | None:
    return next((variable["value"] for variable in _worker(stateful_set)["env"] if variable["name"] == "STEP"), None)


def test_mesh_is_made_scaled_changed_and_removed(api: Cluster, start: Start, template: Object) -> None:
    operator = start("--metrics-bind-address", "127.0.0.1:0").await_ready()
    queue = {"kueue.x-k8s.io/queue-name": "research"}
    api.apply(_mesh(api, template, replicas=2, labels=queue, annotations={"note": "a"}))
    mesh = _await_ready(api)
    assert (mesh["spec"]["port"], mesh["status"]["replicas"], mesh["status"]["readyReplicas"]) == (26600, 2, 2)
    made, service = _set(api), api.get(SERVICE, "workers-svc")
    assert service is not None
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert made["metadata"]["labels"].items() >= queue.items()
    assert made["metadata"]["annotations"]["note"] == "a"
    for item in (made, service):
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (mesh["metadata"]["uid"], True)
    pods, _ = api.list("v1/Pod", names.selector("workers"))
    assert sorted(pod["metadata"]["name"] for pod in pods) == ["workers-0", "workers-1"]

    api.patch(names.MESH_KIND, "workers", {"spec": {"replicas": 1}}, subresource="scale")
    _await_set(api, "one replica is wanted", lambda found: found["spec"]["replicas"] == 1)
    assert _await_ready(api)["status"]["readyReplicas"] == 1

    before = _set(api)["metadata"]["annotations"][names.TEMPLATE_HASH]
    api.apply(_mesh(api, _changed(template, "2"), labels=queue))
    found = _await_set(api, "the template is the new one", lambda found: _step(found) == "2")
    assert found["metadata"]["annotations"][names.TEMPLATE_HASH] != before
    assert "note" not in found["metadata"]["annotations"]
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    _await_ready(api)

    assert 'monarch_operator_reconciles_total{result="ok"}' in operator.get("/metrics", "metrics")[1]
    eventually("the ready mesh is counted", lambda: "monarch_operator_meshes_ready 1\n" in operator.get("/metrics", "metrics")[1])
    api.delete(names.MESH_KIND, "workers")
    eventually("all of the mesh is gone", lambda: _left(api), lambda left: not left, 90)
    eventually("no mesh is counted", lambda: "monarch_operator_meshes 0\n" in operator.get("/metrics", "metrics")[1])
    assert operator.end() == 0


def _left(api: Cluster) -> list[str]:
    kinds = (names.MESH_KIND, SET, SERVICE, "v1/Pod")
    return [item["metadata"]["name"] for kind in kinds for item in api.list(kind)[0]]


def test_objects_removed_by_others_are_restored(api: Cluster, start: Start, template: Object) -> None:
    start().await_ready()
    api.apply(_mesh(api, template))
    _await_ready(api)
    uid = _set(api)["metadata"]["uid"]
    api.delete(SERVICE, "workers-svc")
    eventually("the Service is there again", lambda: api.get(SERVICE, "workers-svc"))
    api.patch(SET, "workers", {"spec": {"replicas": 0}})
    _await_set(api, "one replica is wanted again", lambda found: found["spec"]["replicas"] == 1)
    api.delete(SET, "workers")
    _await_set(api, "the StatefulSet is there again", lambda found: found["metadata"]["uid"] != uid)
    _await_ready(api)


def test_changed_image_is_not_fought(api: Cluster, cluster: KubeCluster, start: Start, template: Object) -> None:
    start().await_ready()
    api.apply(_mesh(api, template))
    _await_ready(api)
    # A webhook that takes images from a mirror does this.
    mirrored = "mirror.example.com/host:1"
    cluster.kubectl("-n", api.namespace, "set", "image", "statefulset/workers", f"worker={mirrored}", "--field-manager=mirror")
    api.apply(_mesh(api, template, labels={"step": "2"}, replicas=2))
    found = _await_set(api, "the label is there", lambda found: found["metadata"]["labels"].get("step") == "2")
    assert (found["spec"]["replicas"], _worker(found)["image"]) == (2, mirrored)
    api.apply(_mesh(api, _changed(template, "3")))
    found = _await_set(api, "the template is the new one", lambda found: _step(found) == "3")
    assert _worker(found)["image"] == _worker({"spec": {"template": template}})["image"]
    assert "step" not in found["metadata"]["labels"]


STEPS: dict[str, Callable[[Cluster, Object], object]] = {
    "made": lambda api, template: None,
    "scaled": lambda api, template: api.apply(_mesh(api, template, replicas=2)),
    "changed": lambda api, template: api.apply(_mesh(api, _changed(template, "2"))),
    "deleted": lambda api, template: api.delete(names.MESH_KIND, "workers"),
}


@pytest.mark.parametrize("step", STEPS)
def test_killed_operator_goes_on_where_it_was(api: Cluster, start: Start, template: Object, step: str) -> None:
    first = start().await_ready()
    api.apply(_mesh(api, template))
    if step != "made":
        _await_ready(api)
    STEPS[step](api, template)
    first.kill()
    start().await_ready()
    if step == "deleted":
        eventually("all of the mesh is gone", lambda: _left(api), lambda left: not left, 90)
        return
    mesh = _await_ready(api)
    assert mesh["status"]["readyReplicas"] == mesh["spec"]["replicas"] == (2 if step == "scaled" else 1)
    assert _step(_set(api)) == ("2" if step == "changed" else None)


def test_existing_meshes_are_served_after_a_start(api: Cluster, start: Start, template: Object) -> None:
    api.apply(_mesh(api, template))
    start().await_ready()
    _await_ready(api)


def test_second_operator_takes_over(api: Cluster, start: Start, template: Object) -> None:
    first = start("--leader-elect").await_ready()
    holder = _holder(api)
    second = start("--leader-elect")
    second.await_log(f"waiting: {holder} is the leader")
    assert second.get("/readyz")[0] == 200
    assert first.end() == 0
    # The lease is released, so that nothing waits for its expiry.
    second.await_ready()
    assert _holder(api) not in ("", holder)
    api.apply(_mesh(api, template))
    _await_ready(api)
    third = start("--leader-elect")
    third.await_log("waiting: ")
    second.kill()
    third.await_ready()
    api.patch(names.MESH_KIND, "workers", {"spec": {"replicas": 2}})
    eventually("two pods are ready", lambda: _await_ready(api)["status"]["readyReplicas"], lambda ready: ready == 2)


def test_operator_that_loses_the_lease_ends(api: Cluster, start: Start) -> None:
    operator = start("--leader-elect").await_ready()

    def take() -> bool:
        lease = api.get(LEASE, "monarch-operator")
        assert lease is not None
        lease["spec"] |= {"holderIdentity": "another", "leaseDurationSeconds": 3600}
        return api.update(lease) is not None

    eventually("the lease is another's", take)
    operator.await_log("the lease is lost")
    assert operator.end(0) == 1


def _holder(api: Cluster) -> str:
    lease = api.get(LEASE, "monarch-operator")
    assert lease is not None
    return str(lease["spec"]["holderIdentity"])


def _headless(api: Cluster, name: str = "workers") -> Object:
    """A Service as a manifest brings it beside its mesh; one port is not as the operator has it."""
    selector = {"app.kubernetes.io/name": "monarch-worker", "monarch.pytorch.org/mesh-name": name}
    ports = [{"name": "monarch", "port": 26600, "targetPort": 26600}, {"name": "second", "port": 1}]
    metadata = {"name": f"{name}-svc", "namespace": api.namespace, "labels": {"theirs": "1"}}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"clusterIP": "None", "selector": selector, "ports": ports},
    }


def _stateful_set(api: Cluster, template: Object, name: str = "workers") -> Object:
    selector = {"app.kubernetes.io/name": "monarch-worker", "monarch.pytorch.org/mesh-name": name}
    (container,) = template["spec"]["containers"]
    second = {**container, "name": "second"}
    spec: Object = {
        "replicas": 1,
        "serviceName": f"{name}-svc",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": selector},
        "template": {"metadata": {"labels": selector}, "spec": {**template["spec"], "containers": [container, second]}},
    }
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name, "namespace": api.namespace}, "spec": spec}


@pytest.mark.parametrize("way", ["apply", "create"])
def test_objects_of_a_manifest_are_taken_over(api: Cluster, cluster: KubeCluster, start: Start, template: Object, way: str) -> None:
    objects = [_headless(api), _stateful_set(api, template), _mesh(api, template, replicas=2)]
    cluster.kubectl(way, "-n", api.namespace, "-f", "-", stdin=yaml_text.documents(objects))
    uids = {kind: (api.get(kind, name) or {})["metadata"]["uid"] for kind, name in ((SET, "workers"), (SERVICE, "workers-svc"))}
    start().await_ready()
    mesh = _await_ready(api)
    assert mesh["status"]["readyReplicas"] == 2
    made, service = _set(api), api.get(SERVICE, "workers-svc")
    assert service is not None
    for kind, item in ((SET, made), (SERVICE, service)):
        assert item["metadata"]["uid"] == uids[kind]
        assert [owner["uid"] for owner in item["metadata"]["ownerReferences"]] == [mesh["metadata"]["uid"]]
    # The ports are those that the operator makes, and no others.
    assert [port["port"] for port in service["spec"]["ports"]] == [26600] and "theirs" not in service["metadata"]["labels"]
    assert [container["name"] for container in made["spec"]["template"]["spec"]["containers"]] == ["worker"]
    if way == "apply":
        # The manifest may be applied again: it is the mesh that counts.
        cluster.kubectl("apply", "-n", api.namespace, "-f", "-", stdin=yaml_text.documents(objects))
        eventually("the Service has one port", lambda: len((api.get(SERVICE, "workers-svc") or {})["spec"]["ports"]) == 1)
    api.patch(names.MESH_KIND, "workers", {"spec": {"port": 26601}})
    eventually("the port is new", lambda: [port["port"] for port in (api.get(SERVICE, "workers-svc") or {})["spec"]["ports"]] == [26601])
    api.delete(names.MESH_KIND, "workers")
    eventually("all of the mesh is gone", lambda: _left(api), lambda left: not left, 90)


def test_operator_is_installed_over_the_definition_of_others(api: Cluster, cluster: KubeCluster, start: Start, template: Object) -> None:
    other = install.crd()
    schema = other["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    # This is the state of an operator without a generation.
    del schema["properties"]["status"]["properties"]["observedGeneration"]
    schema["description"] = "Theirs."
    cluster.kubectl("replace", "--field-manager=helm", "-f", "-", stdin=json.dumps(other))
    try:
        command = [*ARGV, "k8s", "install", "--operator", "-n", api.namespace, "--image", "localhost/operator:1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done
        assert "left CustomResourceDefinition monarchmeshes.monarch.pytorch.org as it is" in done.stdout and "'helm'" in done.stdout
        assert api.get("apps/v1/Deployment", "monarch-operator") is not None
        start().await_ready()
        api.apply(_mesh(api, template))
        eventually("the pod is ready", lambda: (api.get(names.MESH_KIND, "workers") or {}).get("status", {}).get("readyReplicas") == 1)
    finally:
        for kind in ("clusterrole", "clusterrolebinding"):
            cluster.kubectl("delete", kind, "monarch-operator", "--ignore-not-found")
        api.apply(install.crd(), force=True)


def test_metadata_goes_where_upstream_has_it(api: Cluster, start: Start, template: Object) -> None:
    start().await_ready()
    template["metadata"] = {"labels": {"pod-label": "a"}, "annotations": {"pod-annotation": "b"}}
    api.apply(_mesh(api, template, labels={"mesh-label": "c"}, annotations={"mesh-annotation": "d"}))
    _await_ready(api)
    made, service = _set(api), api.get(SERVICE, "workers-svc") or {}
    ((pod,), _) = api.list("v1/Pod", f"{names.selector('workers')},pod-label=a")
    assert pod["metadata"]["annotations"]["pod-annotation"] == "b" and "mesh-label" not in pod["metadata"]["labels"]
    assert made["metadata"]["labels"]["mesh-label"] == "c" and made["metadata"]["annotations"]["mesh-annotation"] == "d"
    assert "pod-label" not in made["metadata"]["labels"] and "pod-annotation" not in made["metadata"]["annotations"]
    assert service["metadata"]["labels"] == dict(part.split("=") for part in names.selector("workers").split(","))
    assert "annotations" not in service["metadata"]


def test_bad_meshes_do_not_stop_others(api: Cluster, cluster: KubeCluster, start: Start, template: Object) -> None:
    operator = start("--metrics-bind-address", "127.0.0.1:0").await_ready()
    other = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "taken-svc"}, "spec": {"ports": [{"port": 1}]}}
    api.create(other)
    empty = {"spec": {"containers": []}}
    unknown = {"spec": {**template["spec"], "nodeName": 7}}
    meshes = {
        "invalid": _mesh(api, empty, "invalid"),
        "unknown": _mesh(api, unknown, "unknown"),
        "taken": _mesh(api, template, "taken"),
        "typed": _mesh(api, {"spec": {"containers": "worker"}}, "typed", annotations={names.JOIN_SECRET: "a"}),
        "secretless": _mesh(
            api, {"spec": {"containers": [{"name": "main", "image": "a"}]}}, "secretless", annotations={names.JOIN_SECRET: "a"}
        ),
    }
    for mesh in meshes.values():
        api.apply(mesh)
    # The nesting is deeper than a recursive decoder can follow.
    deep = json.dumps(_mesh(api, {"spec": {"containers": []}}, "deep")).replace("[]", "[" * 3000 + "]" * 3000)
    path = f"/apis/monarch.pytorch.org/v1alpha1/namespaces/{api.namespace}/monarchmeshes"
    cluster.kubectl("create", "--raw", path, "-f", "-", stdin=deep)
    api.apply(_mesh(api, template))
    _await_ready(api)
    expected = {
        "invalid": "spec.template.spec.containers: Required value",
        "unknown": "nodeName",
        "taken": "Service taken-svc exists already, and cannot become the mesh's: spec.clusterIP is",
        "secretless": "no container 'worker'",
        "typed": "spec.podTemplate.spec.containers is a list, not str",
        "deep": "spec.podTemplate is nested deeper than 100 levels",
    }
    reasons = (
        dict.fromkeys(expected, "Refused") | {"taken": "NotAdopted"} | dict.fromkeys(["secretless", "typed", "deep"], "InvalidTemplate")
    )
    for name, text in expected.items():
        found = eventually(f"mesh {name} has a condition", lambda name=name: _condition(api, name))
        assert found["status"] == "False" and text in found["message"]
        assert found["reason"] == reasons[name]
        (event,) = eventually(f"mesh {name} has an event", lambda name=name: api.events(name, "MonarchMesh"))
        assert (event["type"], event["reason"]) == ("Warning", found["reason"]) and text in event["message"]
    assert "Traceback" not in operator.log()
    assert 'monarch_operator_reconciles_total{result="error"}' in operator.get("/metrics", "metrics")[1]
    # The corrected mesh is served.
    api.apply(_mesh(api, template, "invalid"), force=True)
    _await_ready(api, "invalid")


def test_secret_of_the_client_is_mounted(api: Cluster, start: Start, template: Object) -> None:
    start().await_ready()
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mine"}, "stringData": {"secret": "x" * 32}}
    api.create(secret)
    (container,) = template["spec"]["containers"]
    container["readinessProbe"] = {"exec": {"command": ["/usr/bin/test", "-r", "/run/monarch/join/secret"]}, "periodSeconds": 1}
    api.apply(_mesh(api, template, annotations={names.JOIN_SECRET: "mine"}))
    _await_ready(api)


def test_operator_needs_no_other_rights(api: Cluster, cluster: KubeCluster, start: Start, template: Object, tmp_path: Path) -> None:
    kubeconfig = cluster.user_kubeconfig(tmp_path / "kubeconfig", "operator")
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "operator"}
    roles = rbac.role_objects("operator", api.namespace, user, [*rbac.rules("operator"), *rbac.leader_rules()])
    cluster.kubectl("apply", "-f", "-", stdin=yaml_text.documents(roles))
    operator = start("--leader-elect", kubeconfig=kubeconfig).await_ready()
    api.apply(_mesh(api, template))
    _await_ready(api)
    api.apply(_mesh(api, _changed(template, "2"), replicas=2))
    _await_set(api, "the template is the new one", lambda found: _step(found) == "2")
    api.delete(names.MESH_KIND, "workers")
    eventually("all of the mesh is gone", lambda: _left(api), lambda left: not left, 90)
    assert operator.end(signal.SIGINT) == 0
    assert "no right to" not in operator.log()


def test_missing_rights_are_named(api: Cluster, cluster: KubeCluster, start: Start, tmp_path: Path) -> None:
    kubeconfig = cluster.user_kubeconfig(tmp_path / "kubeconfig", "stranger")
    operator = start(kubeconfig=kubeconfig)
    operator.await_log(f"no right to list monarchmeshes.monarch.pytorch.org in namespace '{api.namespace}'")
    operator.await_log(f"no right to list statefulsets.apps in namespace '{api.namespace}'")
    assert operator.get("/readyz")[0] == 500
    assert operator.end() == 0
