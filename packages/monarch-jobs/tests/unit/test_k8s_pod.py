"""Templates of pods: what an image becomes, and what is added to a template of the user."""

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import Any, cast

import pytest

from monarch.job.kubernetes.arguments import ImageSpec
from monarch.job.kubernetes.manifests import pod

Object = dict[str, Any]
WORKER = pod.Worker(26600, "the-secret")


def _completed(template: Object, worker: pod.Worker = WORKER, policy: str = "Never") -> Object:
    return pod.completed(template, worker, restart_policy=policy, labels={"ours": "1"}, annotations={})


def _of_image(**fields: Any) -> Object:
    return _completed(pod.image_template(asdict(ImageSpec("a:1", **fields))))


def _worker(template: Object) -> Object:
    return pod.worker_container(template)


def _includes(whole: Any, part: Any) -> bool:
    """Is everything of `part` in `whole`, in its order?"""
    if isinstance(part, dict):
        items = cast("Object", part).items()
        return isinstance(whole, dict) and all(key in whole and _includes(whole[key], value) for key, value in items)
    if isinstance(part, list):
        found = iter(whole)
        return all(any(_includes(one, item) for one in found) for item in cast("list[Any]", part))
    return bool(whole == part)


def test_nothing_of_a_template_is_lost() -> None:
    worker = {
        "name": "worker",
        "image": "mine:1",
        "args": ["serve"],
        "env": [{"name": "B", "value": "1"}, {"name": "A", "value": "$(B)"}],
        "ports": [{"name": "metrics", "containerPort": 9000}, {"name": "agent", "containerPort": 26600, "protocol": "TCP"}],
        "readinessProbe": {"exec": {"command": ["ready"]}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "resources": {"limits": {"cpu": 1}},
        "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
    }
    template: Object = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}, "finalizers": ["example.com/keep"]},
        "spec": {
            "containers": [{"name": "first", "image": "x"}, worker],
            "initContainers": [{"name": "worker-data", "image": "y"}],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "subdomain": "mine",
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {"fsGroup": 5},
        },
    }
    before = copy.deepcopy(template)
    found = _completed(template)
    assert template == before
    assert _includes(found, before)
    assert len(_worker(found)["ports"]) == 2


def test_template_without_command_runs_a_worker() -> None:
    found = _worker(_completed({"spec": {"containers": [{"name": "worker", "image": "a"}]}}))
    assert found["command"][4:] == ["monarch", "worker", "--listen", "tcp://*:26600", "--secret-file", "/dev/fd/3"]
    assert {"name": "MONARCH_PORT", "value": "26600"} in found["env"]


def test_command_of_the_image_gets_the_file() -> None:
    found = _worker(_completed({"spec": {"containers": [{"name": "worker", "image": "a", "args": ["x"]}]}}))
    assert "command" not in found
    assert {"name": "MONARCH_JOB_SECRET_FILE", "value": "/run/monarch/join/secret"} in found["env"]


def test_insecure_worker_has_no_secret() -> None:
    found = _completed({"spec": {"containers": [{"name": "worker", "image": "a"}]}}, pod.Worker(1, None, 2.5))
    assert "volumes" not in found["spec"]
    assert _worker(found)["command"][4:] == ["monarch", "worker", "--listen", "tcp://*:1", "--insecure", "--idle-timeout", "2.5"]


def test_restarted_containers_have_no_identity() -> None:
    for policy, expected in (("Never", True), ("Always", False)):
        found = _worker(_completed({"spec": {"containers": [{"name": "worker", "image": "a"}]}}, policy=policy))
        assert ("MONARCH_POD_UID" in [variable["name"] for variable in found["env"]]) is expected


@pytest.mark.parametrize(
    ("of_pod", "of_container", "mode"),
    [
        ({}, {}, 0o444),
        ({"fsGroup": 1}, {}, 0o400),
        ({"runAsUser": 0}, {}, 0o400),
        ({"runAsUser": 0}, {"runAsUser": 1}, 0o444),
        ({"runAsUser": 1}, {"runAsUser": 0}, 0o400),
    ],
)
def test_user_of_the_container_can_read_the_secret(of_pod: Object, of_container: Object, mode: int) -> None:
    container = {"name": "worker", "image": "a", "securityContext": of_container}
    found = _completed({"spec": {"securityContext": of_pod, "containers": [container]}})
    assert found["spec"]["volumes"][0]["secret"]["defaultMode"] == mode


def test_pod_of_an_image_has_no_rights() -> None:
    found = _of_image(resources={"cpu": 2})
    assert found["spec"]["securityContext"]["runAsNonRoot"] is True
    assert found["spec"]["automountServiceAccountToken"] is False
    assert _worker(found)["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert _worker(found)["resources"] == {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}


def test_mounts_need_a_privileged_pod_or_a_device() -> None:
    privileged, device = _of_image(enable_fuse=True), _of_image(enable_fuse=True, resources={"github.com/fuse": 1})
    assert _worker(privileged)["securityContext"] == {"privileged": True}
    assert [volume["hostPath"]["path"] for volume in privileged["spec"]["volumes"] if "hostPath" in volume] == ["/dev/fuse"]
    assert _worker(device)["securityContext"]["privileged"] is False
    assert not [volume for volume in device["spec"]["volumes"] if "hostPath" in volume]
    assert all("securityContext" not in found["spec"] for found in (privileged, device))


def test_shared_memory_is_a_volume() -> None:
    found = _of_image(shared_memory_size="16Gi")
    assert {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}} in found["spec"]["volumes"]
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in _worker(found)["volumeMounts"]


def test_secret_is_added_once() -> None:
    found = _of_image()
    again = copy.deepcopy(found)
    pod.add_secret(again, "other")
    assert again == found
