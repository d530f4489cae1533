"""Plans of Kubernetes jobs, and the objects that they list. Nothing here asks an API server."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from planned_jobs import CASES, IMAGE, arguments_of

from monarch.job.kubernetes.arguments import checked
from monarch.job.kubernetes.manifests import job_objects, names, owned, plan_text, secret_object

PLANS = Path(__file__).parent / "plans"
Object = dict[str, Any]


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
        objects = job_objects(arguments_of(*meshes, workload=workload), "12345678-1234")
        found = [item["metadata"]["name"] for item in objects]
        assert len({(item["kind"], name) for item, name in zip(objects, found, strict=True)}) == len(objects)
        # 63 characters for the host name of a pod, with an index of five digits, or with the hash of a StatefulSet's revision.
        assert max(map(len, found)) <= 63 - 11
    for part in objects[-1]["spec"]["replicatedJobs"]:
        assert len(f"monarch-12345678-{part['name']}-0-12345-abcde") <= 63


def test_attached_meshes_make_nothing() -> None:
    arguments = arguments_of({"name": "there", "num_replicas": 2})
    assert job_objects(arguments, "12345678-1234") == []
    assert plan_text(arguments).startswith("# Mesh 'there' is attached: 2 pods with app.kubernetes.io/name=monarch-worker,")


def test_secret_has_the_bytes_and_the_plan_not() -> None:
    made = secret_object(CASES["kubernetes_least"], "12345678-1234", b"\x00secret of the job")
    assert made["data"] == {"secret": "AHNlY3JldCBvZiB0aGUgam9i"}
    empty = next(item for item in job_objects(CASES["kubernetes_least"], "12345678-1234") if item["kind"] == "Secret")
    assert empty == {key: value for key, value in made.items() if key != "data"}


def test_secret_of_the_user_is_mounted() -> None:
    arguments = arguments_of({"name": "workers", "num_replicas": 1, "image_spec": IMAGE}, join_secret="mine")
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
