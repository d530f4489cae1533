"""What a client makes of what an operator reports of a MonarchMesh whose pods do not come."""

from __future__ import annotations

from typing import Any

import pytest
from memory_job import IMAGE, Made, arguments_of

from monarch.job.kubernetes.access.failures import ApiError
from monarch.job.kubernetes.launcher import FAULT_S
from monarch.job.kubernetes.manifests import names

WORDS = "Service trainers-svc exists already, and is of Deployment x (uid 1)"
PROVISIONED: dict[str, Any] = {"num_replicas": 1, "image_spec": IMAGE}
ATTACHED: dict[str, Any] = {"num_replicas": 1}


def _made(mesh: dict[str, Any]) -> Made:
    made = Made(arguments_of({"trainers": mesh}, provisioner="monarchmesh", join_secret="s")).submit()
    if mesh is ATTACHED:
        made.cluster.objects[names.MESH_KIND, "trainers"] = {"metadata": {"name": "trainers"}, "spec": {}}
    return made


def _report(made: Made, status: str, reason: str, message: str) -> None:
    condition = {"type": "Ready", "status": status, "reason": reason, "message": message}
    made.cluster.objects[names.MESH_KIND, "trainers"]["status"] = {"conditions": [condition]}


@pytest.mark.parametrize("mesh", [PROVISIONED, ATTACHED])
def test_reason_of_the_operator_ends_the_wait(mesh: dict[str, Any]) -> None:
    made = _made(mesh)
    assert "no operator has reported its status" in made.poll().detail
    _report(made, "False", "NotAdopted", WORDS)
    status = made.poll()
    assert status.phase == "pending" and WORDS in status.detail
    made.clock.time += FAULT_S
    status = made.poll()
    assert status.phase == "ended" and made.launcher.ending() == ("failed", "NotAdopted") and WORDS in status.detail


@pytest.mark.parametrize("mesh", [PROVISIONED, ATTACHED])
def test_mesh_without_pods_is_pending(mesh: dict[str, Any]) -> None:
    made = _made(mesh)
    _report(made, "False", "Waiting", "0 of 1 pods are ready")
    for _ in range(2):
        status = made.poll()
        assert status.phase == "pending" and "MonarchMesh trainers has no pod yet" in status.detail
        made.clock.time += FAULT_S
    made.cluster.events_of["trainers"] = [{"type": "Warning", "reason": "FailedCreate", "message": "exceeded quota: small"}]
    assert "StatefulSet trainers: no pod can be made: exceeded quota: small" in made.poll().detail


def test_client_without_the_right_to_see_meshes_waits() -> None:
    made = _made(ATTACHED)

    def refuse(verb: str, kind: str, name: str) -> None:
        if kind == names.MESH_KIND:
            raise ApiError("no right to get monarchmeshes", status=403, reason="Forbidden")

    made.cluster.refuse = refuse
    for _ in range(2):
        assert "no pod has rank 0" in made.poll().detail
    assert [kind for _, kind, _ in made.cluster.requests].count(names.MESH_KIND) == 1
