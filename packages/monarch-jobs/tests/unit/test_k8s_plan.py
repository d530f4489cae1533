"""Plans of Kubernetes jobs, and the objects that they list. Nothing here asks an API server."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from monarch.job.kubernetes.arguments import ImageSpec, KubernetesArguments, checked, checked_mesh
from monarch.job.kubernetes.manifests import job_objects, names, owned, plan_text, secret_object

PLANS = Path(__file__).parent / "plans"
Object = dict[str, Any]

IMAGE = ImageSpec("registry.example.com/monarch:1")
GPUS = ImageSpec("registry.example.com/monarch:1-cuda", {"cpu": 16, "memory": "64Gi", "nvidia.com/gpu": 8}, shared_memory_size="32Gi")
MOUNTS = ImageSpec("registry.example.com/monarch:1", enable_fuse=True)
DEVICE = ImageSpec("registry.example.com/monarch:1", {"smarter-devices/fuse": 1}, enable_fuse=True)
QUEUE = {"kueue.x-k8s.io/queue-name": "research"}
TEMPLATE: Object = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"}},
    "spec": {
        "hostNetwork": True,
        "nodeSelector": {"gpu": "h100"},
        "securityContext": {"runAsUser": 2000},
        "initContainers": [{"name": "before", "image": "busybox:1"}],
        "containers": [
            {"name": "beside", "image": "logs:1"},
            {
                "name": "worker",
                "image": "mine:1",
                "command": ["python", "-m", "my_worker"],
                "args": ["--fast"],
                "env": [{"name": "OWN", "value": "$(MONARCH_PORT)"}],
                "ports": [{"name": "http", "containerPort": 8080}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    },
}


def _arguments(*meshes: Object, **arguments: Any) -> KubernetesArguments:
    found = {mesh["name"]: checked_mesh(mesh).model_dump() for mesh in meshes}
    return checked({"namespace": "research", **arguments, "meshes": found})


CASES: dict[str, KubernetesArguments] = {
    "kubernetes_least": _arguments({"name": "workers", "num_replicas": 2, "image_spec": IMAGE}),
    "kubernetes_template": _arguments({"name": "workers", "num_replicas": 2, "pod_template": TEMPLATE, "labels": QUEUE, "port": 31000}),
    "kubernetes_meshes": _arguments(
        {"name": "trainers", "num_replicas": 4, "image_spec": GPUS},
        {"name": "mounts", "num_replicas": 1, "image_spec": MOUNTS, "port": 26601},
        {"name": "devices", "num_replicas": 1, "image_spec": DEVICE},
        {"name": "there", "num_replicas": 2, "label_selector": "app=mine", "pod_rank_label": "rank"},
        attach_to="tcp://gateway.example.com:443",
        idle_timeout=600.0,
    ),
    "kubernetes_statefulset": _arguments({"name": "workers", "num_replicas": 2, "image_spec": IMAGE}, workload="statefulset"),
    "kubernetes_jobset": _arguments(
        {"name": "trainers", "num_replicas": 4, "image_spec": IMAGE, "labels": QUEUE, "annotations": {"note": "a"}},
        {"name": "rollout", "num_replicas": 2, "image_spec": IMAGE, "labels": QUEUE},
        workload="jobset",
    ),
    "kubernetes_monarchmesh": _arguments(
        {"name": "workers", "num_replicas": 2, "image_spec": IMAGE, "labels": QUEUE}, provisioner="monarchmesh"
    ),
    "kubernetes_insecure": _arguments(
        {"name": "workers", "num_replicas": 1, "image_spec": IMAGE}, insecure=True, network_policy=False, workload="statefulset"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_kubernetes_plan(name: str) -> None:
    """To take a change over: write plan_text(arguments) into the file, and read the difference."""
    text = plan_text(CASES[name])
    assert text == (PLANS / f"{name}.yaml").read_text()
    assert [*yaml.safe_load_all(text)] == job_objects(CASES[name], names.PLAN_ID)


@pytest.mark.parametrize("name", CASES)
def test_saved_arguments_have_the_same_plan(name: str) -> None:
    assert plan_text(checked(CASES[name].model_dump(mode="json"))) == plan_text(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_scripts_of_pods_are_valid(name: str) -> None:
    for container in _workers(job_objects(CASES[name], "12345678-1234")):
        shell, option, script, *_ = container["command"]
        assert (shell, option) == ("/bin/sh", "-c")
        done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert "$(" not in script


def test_anchor_is_first_and_owns_the_rest() -> None:
    anchor, *others = owned(job_objects(CASES["kubernetes_meshes"], "12345678-1234"), "the-uid")
    assert (anchor["kind"], anchor["metadata"]["name"]) == ("ConfigMap", "monarch-12345678")
    assert "ownerReferences" not in anchor["metadata"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "monarch-12345678", "uid": "the-uid"}
    assert others
    assert all(item["metadata"]["ownerReferences"] == [owner] for item in others)


def test_two_jobs_share_no_name() -> None:
    first, second = (
        {(item["kind"], item["metadata"]["name"]) for item in job_objects(CASES["kubernetes_least"], apply_id)}
        for apply_id in ("11111111-1111", "22222222-2222")
    )
    assert first and not first & second


def test_long_mesh_names_stay_apart_and_short() -> None:
    meshes = [{"name": "a" * 62 + last, "num_replicas": 1, "image_spec": IMAGE} for last in "bc"]
    for workload in ("job", "statefulset", "jobset"):
        objects = job_objects(_arguments(*meshes, workload=workload), "12345678-1234")
        found = [item["metadata"]["name"] for item in objects]
        assert len({(item["kind"], name) for item, name in zip(objects, found, strict=True)}) == len(objects)
        # 63 characters for the host name of a pod, with an index of five digits, or with the hash of a StatefulSet's revision.
        assert max(map(len, found)) <= 63 - 11
    for part in objects[-1]["spec"]["replicatedJobs"]:
        assert len(f"monarch-12345678-{part['name']}-0-12345-abcde") <= 63


def test_attached_meshes_make_nothing() -> None:
    arguments = _arguments({"name": "there", "num_replicas": 2})
    assert job_objects(arguments, "12345678-1234") == []
    assert plan_text(arguments).startswith("# Mesh 'there' is attached: 2 pods with app.kubernetes.io/name=monarch-worker,")


def test_secret_has_the_bytes_and_the_plan_not() -> None:
    made = secret_object(CASES["kubernetes_least"], "12345678-1234", b"\x00secret of the job")
    assert made["data"] == {"secret": "AHNlY3JldCBvZiB0aGUgam9i"}
    empty = next(item for item in job_objects(CASES["kubernetes_least"], "12345678-1234") if item["kind"] == "Secret")
    assert empty == {key: value for key, value in made.items() if key != "data"}


def test_secret_of_the_user_is_mounted() -> None:
    arguments = _arguments({"name": "workers", "num_replicas": 1, "image_spec": IMAGE}, join_secret="mine")
    objects = job_objects(arguments, "12345678-1234")
    assert "Secret" not in [item["kind"] for item in objects]
    volumes = objects[-1]["spec"]["template"]["spec"]["volumes"]
    assert [volume["secret"]["secretName"] for volume in volumes] == ["mine"]


def test_clients_of_the_cluster_pass_the_policy() -> None:
    peer = {"podSelector": {"matchLabels": {"app": "notebook"}}}
    policy = next(item for item in job_objects(CASES["kubernetes_least"], "1", [peer]) if item["kind"] == "NetworkPolicy")
    assert peer in policy["spec"]["ingress"][0]["from"]


def test_policy_leaves_other_ports_open() -> None:
    policy = next(item for item in job_objects(CASES["kubernetes_meshes"], "1") if item["kind"] == "NetworkPolicy")
    ports = [port for port in policy["spec"]["ingress"][1]["ports"] if port["protocol"] == "TCP"]
    allowed = {number for port in ports for number in range(port["port"], port.get("endPort", port["port"]) + 1)}
    assert allowed == set(range(1, 65536)) - {26600, 26601}


def _workers(objects: list[Object]) -> list[Object]:
    found: list[Object] = []
    for item in objects:
        spec = item.get("spec", {})
        jobs = [part["template"]["spec"] for part in spec.get("replicatedJobs", [])] or [spec]
        for job in jobs:
            template: Object = job.get("template") or job.get("podTemplate") or {"spec": {"containers": []}}
            found += [container for container in template["spec"]["containers"] if container["name"] == "worker"]
    return found
