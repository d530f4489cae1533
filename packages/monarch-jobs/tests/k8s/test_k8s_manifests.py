"""Every manifest is accepted by a real API server, with strict validation: by its own schemas, nothing is stored.

JobSets are checked with a stand-in for their definition (jobset_crd.yaml), and what is in them as the Jobs that they become.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from eventually import eventually
from planned_jobs import CASES, arguments_of

from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.config import KubeConfig
from monarch.job.kubernetes.access.failures import ApiError
from monarch.job.kubernetes.manifests import install, job_objects, mesh_objects, names, rbac, secret_object, yaml_text
from tools.k8s.cluster import KubeCluster

Object = dict[str, Any]
JOB = "12345678-1234-1234-1234-123456789abc"
DEFINITION = "apiextensions.k8s.io/v1/CustomResourceDefinition"


@pytest.fixture
def api(cluster: KubeCluster, namespace: str) -> Iterator[Cluster]:
    client = Cluster(KubeConfig.from_path(str(cluster.kubeconfig)).load(), namespace)
    _define(client, install.crd())
    yield client
    client.connection.close()


def _define(client: Cluster, definition: Object) -> None:
    client.apply(definition, force=True)
    name = definition["metadata"]["name"]

    def established() -> bool:
        conditions = (client.get(DEFINITION, name) or {}).get("status", {}).get("conditions") or []
        return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)

    eventually(f"{name} is known", established)


def _try(cluster: KubeCluster, namespace: str, objects: list[Object]) -> None:
    placed = copy.deepcopy(objects)
    for item in placed:
        if "namespace" in item["metadata"]:
            item["metadata"]["namespace"] = namespace
    text = yaml_text.documents(placed)
    done = cluster.try_kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(objects)


@pytest.mark.parametrize("case", [case for case in CASES if case != "kubernetes_jobset"])
def test_server_accepts_the_plan(cluster: KubeCluster, api: Cluster, case: str) -> None:
    arguments = CASES[case]
    objects = [item for item in job_objects(arguments, JOB) if item["kind"] != "Secret"]
    _try(cluster, api.namespace, [*objects, secret_object(arguments, JOB, b"x" * 32)])


def test_server_accepts_jobs_of_a_gang(cluster: KubeCluster, api: Cluster) -> None:
    *others, gang = job_objects(CASES["kubernetes_jobset"], JOB)
    standin = yaml.safe_load(Path(__file__).with_name("jobset_crd.yaml").read_text())
    _define(api, standin)
    try:
        _try(cluster, api.namespace, [*others, gang])
    finally:
        api.delete(DEFINITION, standin["metadata"]["name"])
    jobs: list[Object] = []
    for part in gang["spec"]["replicatedJobs"]:
        metadata = {**part["template"]["metadata"], "name": f"{gang['metadata']['name']}-{part['name']}-0", "namespace": ""}
        jobs.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": part["template"]["spec"]})
    _try(cluster, api.namespace, jobs)


def test_pods_of_images_are_restricted(cluster: KubeCluster, api: Cluster) -> None:
    """The strictest of the Pod Security Standards lets them in; one that mounts is refused, which shows that the check is on."""
    cluster.kubectl("label", "namespace", api.namespace, "pod-security.kubernetes.io/enforce=restricted")
    pods: dict[str, Object] = {}
    for item in job_objects(CASES["kubernetes_meshes"], JOB):
        if item["kind"] == "Job":
            name = item["metadata"]["name"]
            metadata = {"name": name, "namespace": api.namespace, "labels": item["spec"]["template"]["metadata"]["labels"]}
            pods[name] = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": item["spec"]["template"]["spec"]}
    _try(cluster, api.namespace, [pods["trainers-12345678"]])
    text = yaml_text.document(pods["mounts-12345678"])
    refused = cluster.try_kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=text)
    assert "violates PodSecurity" in refused.stderr


def test_server_accepts_what_installs_the_operator(cluster: KubeCluster, api: Cluster) -> None:
    everything = {name: {"enable": True} for name in ("rbacHelpers", "clientRbac", "metrics")}
    # A ServiceMonitor needs the definition of the Prometheus operator.
    _try(cluster, api.namespace, install.operator_objects(everything, api.namespace))
    _try(cluster, api.namespace, install.operator_objects({"crd": {"keep": False}}, api.namespace))
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": api.namespace}
    _try(cluster, api.namespace, rbac.role_objects("client", api.namespace, subject, rbac.client_rules()))


def test_server_accepts_objects_of_a_mesh(cluster: KubeCluster, api: Cluster) -> None:
    api.apply(_mesh(api.namespace, replicas=2))
    stored = api.get(names.MESH_KIND, "workers")
    assert stored is not None
    _try(cluster, api.namespace, mesh_objects(stored))


USERS: dict[str, Object] = {
    "group": {"runAsUser": 1000, "runAsNonRoot": True, "fsGroup": 1000},
    "nogroup": {"runAsUser": 1000, "runAsGroup": 1000},
    "root": {"runAsUser": 0},
    "unknown": {},
}


def test_every_user_can_read_the_secret(api: Cluster, pod_template: Object) -> None:
    """Real workers, which listen only where they have read it."""
    meshes: list[Object] = []
    for user, context in USERS.items():
        template = copy.deepcopy(pod_template)
        template["spec"]["securityContext"] = context
        meshes.append({"name": user, "num_replicas": 1, "pod_template": template})
    arguments = arguments_of(*meshes, namespace=api.namespace)
    for item in job_objects(arguments, JOB):
        api.apply(secret_object(arguments, JOB, b"x" * 32) if item["kind"] == "Secret" else item)

    def ready() -> dict[str, str]:
        pods, _ = api.list("v1/Pod", f"{names.JOB_LABEL}={JOB}")
        conditions = {
            pod["metadata"]["labels"][names.MESH_LABEL]: one["status"]
            for pod in pods
            for one in pod.get("status", {}).get("conditions", [])
            if one["type"] == "Ready"
        }
        return conditions

    eventually("all workers listen", ready, lambda found: found == dict.fromkeys(USERS, "True"), 120)


def _mesh(namespace: str, name: str = "workers", **spec: Any) -> Object:
    template = {"spec": {"containers": [{"name": "worker", "image": "a:1"}]}}
    return {
        "apiVersion": "monarch.pytorch.org/v1alpha1",
        "kind": "MonarchMesh",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"podTemplate": template, **spec},
    }


BAD: dict[str, tuple[str, Object, str]] = {
    "no replicas": ("workers", {}, "spec.replicas: Required value"),
    "zero": ("workers", {"replicas": 0}, "spec.replicas: Invalid value: 0"),
    "text": ("workers", {"replicas": "2"}, "spec.replicas"),
    "no template": ("workers", {"replicas": 1, "podTemplate": None}, "spec.podTemplate"),
    "port": ("workers", {"replicas": 1, "port": 65536}, "spec.port: Invalid value: 65536"),
    "dash": ("a-b", {"replicas": 1}, "must start with a lowercase letter"),
    "digit": ("0a", {"replicas": 1}, "must start with a lowercase letter"),
    "long": ("a" * 64, {"replicas": 1}, "less than 64 characters"),
    "unknown": ("workers", {"replicas": 1, "replica": 1}, "replica"),
}


def test_bad_meshes_are_refused(api: Cluster) -> None:
    for case, (name, spec, text) in BAD.items():
        with pytest.raises(ApiError) as caught:
            api.apply(_mesh(api.namespace, name, **spec))
        assert text in str(caught.value), case
    assert api.list(names.MESH_KIND)[0] == []


def test_definition_of_a_mesh(cluster: KubeCluster, api: Cluster) -> None:
    mesh = api.apply(_mesh(api.namespace, replicas=2))
    assert mesh["spec"]["port"] == 26600
    # A status is written separately, and only by its owner.
    api.patch(names.MESH_KIND, "workers", {"status": {"readyReplicas": 9}})
    assert "status" not in (api.get(names.MESH_KIND, "workers") or {})
    condition = {"type": "Ready", "status": "False", "reason": "Waiting", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"replicas": 2, "readyReplicas": 1, "observedGeneration": 1, "conditions": [condition]}
    api.patch(names.MESH_KIND, "workers", {"status": status, "spec": {"replicas": 7}}, subresource="status")
    found = api.get(names.MESH_KIND, "workers") or {}
    assert (found["status"], found["spec"]["replicas"], found["metadata"]["generation"]) == (status, 2, 1)
    cluster.kubectl("-n", api.namespace, "scale", "monarchmesh/workers", "--replicas=3")
    found = api.get(names.MESH_KIND, "workers") or {}
    assert (found["spec"]["replicas"], found["metadata"]["generation"]) == (3, 2)
    head, line = cluster.kubectl("-n", api.namespace, "get", "monarchmeshes").splitlines()
    assert head.split() == ["NAME", "REPLICAS", "READY", "STATUS", "AGE"]
    assert line.split()[:4] == ["workers", "3", "1", "Waiting"]
