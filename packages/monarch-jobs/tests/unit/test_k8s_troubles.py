"""What pods and nodes mean for a job, as `monarch diagnose` shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from memory_cluster import ended, running, waiting
from memory_job import JOB_KIND, Made, submitted

from monarch.job._job.launcher import Host, Trouble
from monarch.job.kubernetes.access.failures import ApiError

EVICTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "EvictionByEvictionAPI",
    "message": "Eviction API: evicting",
}


def found(made: Made) -> list[Trouble]:
    return made.launcher.troubles(made.ids)


def node(made: Made, **spec: Any) -> None:
    made.cluster.objects["v1/Node", "node1"] = {"metadata": {"name": "node1"}, "spec": spec}


def evict(made: Made) -> None:
    made.cluster.pod("trainers", 1, conditions=[EVICTED])["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:09Z"


def test_job_whose_pods_run_has_no_trouble() -> None:
    made = submitted().joined()
    node(made)
    before = json.dumps(made.ids)
    assert found(made) == [] and json.dumps(made.ids) == before


def test_evicted_pod_has_ended_its_host() -> None:
    made = submitted().joined()
    node(made)
    evict(made)
    [one] = found(made)
    assert (one.kind, one.hosts) == ("ended", (Host("trainers", 1),))
    assert one.text == "pod trainers-11111111-1-aaaaa on node1: EvictionByEvictionAPI: Eviction API: evicting (trainers[1])"
    assert one.command == "kubectl -n research describe pod trainers-11111111-1-aaaaa"


def test_evicted_pod_whose_worker_has_completed() -> None:
    made = submitted().joined()
    node(made)
    pod = made.cluster.pod("trainers", 1, phase="Succeeded", conditions=[EVICTED], containerStatuses=[ended(0, "Completed")])
    pod["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:09Z"
    [one] = found(made)
    assert one.kind == "ended" and "EvictionByEvictionAPI: Eviction API: evicting" in one.text


def test_reason_of_a_gone_pod_is_kept() -> None:
    made = submitted().joined()
    evict(made)
    made.poll()
    del made.cluster.objects["v1/Pod", "trainers-11111111-1-aaaaa"]
    made.cluster.pod("trainers", 1, name="trainers-11111111-1-bbbbb", created="2030-01-01T00:01:00Z")
    [one] = found(made)
    assert (
        one.kind == "ended" and "EvictionByEvictionAPI: Eviction API: evicting; the pod is gone; pod trainers-11111111-1-bbbbb" in one.text
    )
    assert "EvictionByEvictionAPI" in made.poll().hosts[1].detail
    made.launcher.renew(made.ids)
    assert found(made) == [] and made.ids["places"]["trainers"][1]["last"] == ""


def test_pods_without_an_image_are_one_trouble() -> None:
    made = submitted()
    back_off = [waiting("ImagePullBackOff", 'Back-off pulling image "none:1"')]
    for rank in range(2):
        made.cluster.pod("trainers", rank, phase="Pending", conditions=[], containerStatuses=back_off)
    [one] = found(made)
    assert one.kind == "stuck" and one.hosts == (Host("trainers", 0), Host("trainers", 1))
    place = "pod trainers-11111111-0-aaaaa on node1, container worker"
    assert one.text == f'{place}: ImagePullBackOff: Back-off pulling image "none:1" (trainers[0] and 1 more)'


def test_cordoned_node_is_leaving() -> None:
    made = submitted().joined()
    node(made, unschedulable=True)
    [one] = found(made)
    assert (one.kind, len(one.hosts), one.command) == ("leaving", 2, "kubectl describe node node1")
    evict(made)
    [gone] = [one for one in found(made) if one.kind == "ended"]
    assert "; node node1 is cordoned" in gone.text


def test_client_without_right_to_see_nodes() -> None:
    made = submitted().joined()

    def refuse(verb: str, kind: str, name: str) -> None:
        if kind == "v1/Node":
            raise ApiError("forbidden", status=403)

    made.cluster.refuse = refuse
    evict(made)
    assert [one.kind for one in found(made)] == ["ended"]


def test_pod_without_a_place_is_queued() -> None:
    made = submitted()
    made.cluster.pod("trainers", 0)
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"}
    made.cluster.pod("trainers", 1, phase="Pending", conditions=[waits], containerStatuses=[])["spec"]["nodeName"] = ""
    [one] = found(made)
    assert (one.kind, one.text) == ("queued", "pod trainers-11111111-1-aaaaa waits: Unschedulable: Insufficient cpu (trainers[1])")


def test_pods_that_are_refused_are_stuck() -> None:
    made = submitted()
    made.cluster.events_of["trainers-11111111"] = [{"reason": "FailedCreate", "message": "exceeded quota: small"}]
    [one] = found(made)
    assert one.kind == "stuck" and "exceeded quota: small" in one.text


def test_restarted_container_has_ended_its_host() -> None:
    made = submitted().joined()
    made.cluster.pod("trainers", 0, containerStatuses=[running(restarts=1, reason="OOMKilled", exitCode=137)])
    [one] = found(made)
    assert one.kind == "ended" and "was started again after OOMKilled" in one.text


@pytest.mark.parametrize("kind", [JOB_KIND])
def test_suspended_workload_is_queued(kind: str) -> None:
    made = submitted()
    made.cluster.objects[kind, "trainers-11111111"]["spec"]["suspend"] = True
    assert [one.kind for one in found(made)] == ["queued"]
