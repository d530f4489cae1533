"""A pod of the API server: its rank, whether its worker can be dialled, what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest
from memory_cluster import MemoryCluster, ended, ready, running, waiting

from monarch.actor import ProcId
from monarch.job.kubernetes.manifests import names
from monarch.job.kubernetes.pods.diagnosis import Fault, crash_loop, event_lines, fault, mount_fault, refused
from monarch.job.kubernetes.pods.pod_view import PodView, current, identity, rank_of, view

LABEL = names.COMPLETION_INDEX


def _view(rank: int = 0, **arguments: Any) -> PodView:
    return view(MemoryCluster().pod("trainers", rank, **arguments), LABEL)


def _fault(**arguments: Any) -> Fault:
    found = fault(_view(**arguments))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("meta", "rank"),
    [
        ({"name": "x-7", "labels": {LABEL: "3"}, "annotations": {LABEL: "4"}}, 3),
        ({"name": "x-7", "annotations": {LABEL: "4"}}, 4),
        ({"name": "x-7"}, 7),
        ({"name": "x-12-a1b2c"}, 12),
        ({"name": "x-7-a1b2c", "labels": {LABEL: "0", names.RANK_LABEL: "5"}}, 5),
        ({"name": "x-7", "labels": {LABEL: "-1"}}, 7),
        ({"name": "x"}, None),
        ({"name": "x-1y"}, None),
    ],
)
def test_rank_comes_from_label_annotation_or_name(meta: dict[str, Any], rank: int | None) -> None:
    assert rank_of(meta, LABEL) == rank


def test_address_has_identity_of_pod() -> None:
    pod = _view(uid="0a0b0000-1111-2222-3333-444444444444")
    # The command of the container computes the same: see `manifests.script`.
    assert pod.address(26600) == "worker<ggagbgggg>@tcp://10.0.0.1:26600"
    # Core reads it as the identity of a process.
    assert ProcId.from_string(identity(pod.uid)).uid.is_instance
    assert identity(pod.uid) != identity("0a0b0001-1111-2222-3333-444444444444")


def test_pod_with_restarting_containers_has_no_identity() -> None:
    pod = MemoryCluster().pod("trainers", 0)
    pod["spec"]["restartPolicy"] = "Always"
    assert view(pod, LABEL).address(1) == "tcp://10.0.0.1:1"


def test_address_of_ipv6_pod_has_brackets() -> None:
    assert _view(ip="fd00::1").address(1).endswith("@tcp://[fd00::1]:1")


def test_running_pod_of_a_lost_node_is_unreachable() -> None:
    pod = _view(conditions=[ready("False")])
    assert pod.is_unreachable and pod.phase == "Running" and not pod.is_over
    # A failed probe is no lost node.
    assert not _view(conditions=[ready("False")], containerStatuses=[running(is_ready=False)]).is_unreachable


def test_pod_that_is_disrupted_is_over() -> None:
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "evicted"}
    pod = _view(conditions=[ready(), disrupted])
    assert pod.is_over
    assert "EvictionByEvictionAPI: evicted" in _fault(conditions=[ready(), disrupted]).text


def test_current_pod_of_a_rank_is_the_newest() -> None:
    old = _view(name="w-0-aaaaa", created="2030-01-01T00:00:00Z", phase="Failed", containerStatuses=[ended(1)])
    new = _view(name="w-0-bbbbb", created="2030-01-01T00:01:00Z", phase="Pending", conditions=[], containerStatuses=[])
    assert current([new, old]) is new
    assert current([old]) is old
    assert current([]) is None


def test_restarted_container_is_another_worker() -> None:
    before, after = _view(), _view(containerStatuses=[running(restarts=1)])
    assert before.uid == after.uid and before.worker != after.worker


def test_healthy_pod_has_no_fault() -> None:
    assert fault(_view()) is None
    assert fault(_view(phase="Succeeded", conditions=[ready("False")], containerStatuses=[ended(0, "Completed")])) is None


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError", "InvalidImageName"])
def test_container_that_cannot_start_is_a_lasting_fault(reason: str) -> None:
    found = _fault(phase="Pending", conditions=[], containerStatuses=[waiting(reason, "it says why")])
    assert found.is_lasting and found.reason == reason
    assert "pod trainers-11111111-0-aaaaa on node1, container worker" in found.text and "it says why" in found.text


def test_crash_loop_has_the_last_exit_code() -> None:
    last = {"lastState": {"terminated": {"reason": "Error", "exitCode": 3}}, "restartCount": 4}
    found = _fault(containerStatuses=[waiting("CrashLoopBackOff", "back-off", **last)], conditions=[ready("False")])
    assert found.is_lasting and found.has_run
    assert "4 restarts, the last end: exit code 3" in found.text


def test_container_that_starts_is_no_fault() -> None:
    assert fault(_view(phase="Pending", conditions=[], containerStatuses=[waiting("ContainerCreating")])) is None


def test_out_of_memory_is_named() -> None:
    found = _fault(phase="Failed", conditions=[], containerStatuses=[ended(137, "OOMKilled")])
    assert found.reason == "OOMKilled" and "OOMKilled, exit code 137 (signal 9)" in found.text and not found.is_lasting


def test_evicted_pod_has_the_reason() -> None:
    found = _fault(phase="Failed", conditions=[], containerStatuses=[ended(137)], reason="Evicted", message="The node was low on memory")
    assert found.reason == "Evicted" and "The node was low on memory" in found.text


def test_unschedulable_pod_waits_with_words_of_scheduler() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}
    found = _fault(phase="Pending", conditions=[condition], containerStatuses=[])
    assert not found.is_lasting and "Unschedulable: 0/2 nodes are available" in found.text


def test_two_failed_pods_of_a_rank_crash_loop() -> None:
    pods = [_view(name=f"w-0-aaaa{n}", created=f"2030-01-01T00:0{n}:00Z", phase="Failed", containerStatuses=[ended(n)]) for n in (2, 1)]
    assert crash_loop(pods[:1]) is None
    found = crash_loop(pods)
    assert found is not None and found.is_lasting and found.pod == "w-0-aaaa2" and "exit code 2" in found.text


def test_evictions_are_no_crash_loop() -> None:
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    pods = [_view(name=f"w-0-{n}", phase="Failed", conditions=[disrupted], containerStatuses=[ended(143)]) for n in range(3)]
    assert crash_loop(pods) is None


def test_quota_error_has_the_api_servers_text() -> None:
    found = refused("Job w", [{"reason": "FailedCreate", "message": 'pods "w-0" is forbidden: exceeded quota: small'}])
    assert found is not None and found.is_lasting and found.reason == "exceeded quota" and "Job w: no pod can be made" in found.text
    assert refused("Job w", [{"reason": "SuccessfulCreate"}]) is None


def test_volume_that_cannot_be_mounted_is_a_fault() -> None:
    pod = _view(phase="Pending", conditions=[], containerStatuses=[waiting("ContainerCreating")])
    found = mount_fault(pod, [{"type": "Warning", "reason": "FailedMount", "message": 'secret "join" not found'}])
    assert found is not None and 'secret "join" not found' in found.text
    assert mount_fault(_view(), [{"reason": "FailedMount", "message": "x"}]) is None


def test_event_lines_are_warnings_each_once() -> None:
    events = [
        {"type": "Normal", "reason": "Pulled", "message": "ok"},
        *[{"type": "Warning", "reason": "Failed", "message": "no\nimage"}] * 3,
    ]
    assert event_lines(events) == ["Failed: no image"]
    assert event_lines(events[:1]) == ["Pulled: ok"]
