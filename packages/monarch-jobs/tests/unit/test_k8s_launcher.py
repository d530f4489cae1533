"""What a KubernetesJob makes of the answers of an API server; a cluster in memory takes the place of one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from memory_cluster import JOB, ended, ready, running, waiting
from memory_job import IMAGE, JOB_KIND, SECRET, Made, arguments_of, submitted

from monarch.job import JobEndedError, JobError, JoinTimeoutError, SubmitError
from monarch.job.kubernetes import submission
from monarch.job.kubernetes.access.client import Object
from monarch.job.kubernetes.access.failures import ApiError, UnreachableError
from monarch.job.kubernetes.launcher import FAULT_S, SLOW_START_S, STUCK_S, KubernetesLauncher
from monarch.job.kubernetes.manifests import names
from monarch.job.kubernetes.manifests.names import JOB_LABEL, MESH_LABEL, RANK_LABEL


def test_submission_makes_owned_objects_with_anchor_first() -> None:
    made = submitted()
    applied = [(kind, name) for verb, kind, name in made.cluster.requests if verb == "apply"]
    assert applied[0] == ("v1/ConfigMap", "monarch-11111111")
    assert applied[-1] == (JOB_KIND, "trainers-11111111")
    uid = made.cluster.objects["v1/ConfigMap", "monarch-11111111"]["metadata"]["uid"]
    others = [obj for (kind, _), obj in made.cluster.objects.items() if kind != "v1/ConfigMap"]
    assert {obj["kind"] for obj in others} >= {"Secret", "Service", "Job", "NetworkPolicy"}
    assert {obj["metadata"]["ownerReferences"][0]["uid"] for obj in others} == {uid}
    assert made.ids["anchor_uid"] == uid


def test_secret_is_in_secret_object_and_nowhere_else() -> None:
    import base64
    import json

    made = submitted()
    text = base64.b64encode(SECRET).decode()
    having = [kind for (kind, _), obj in made.cluster.objects.items() if text in json.dumps(obj)]
    assert having == ["v1/Secret"]
    assert text not in json.dumps(made.ids) and text not in str(made.launcher.plan()) and made.launcher.plan().redacted


@pytest.mark.parametrize("kind", ["v1/ConfigMap", "v1/Service", JOB_KIND])
@pytest.mark.parametrize("error", [SubmitError("no"), KeyboardInterrupt()])
def test_failed_submission_leaves_nothing(kind: str, error: BaseException) -> None:
    made = Made(arguments_of())

    def refuse(verb: str, of: str, name: str) -> None:
        if verb == "apply" and of == kind:
            raise error

    made.cluster.refuse = refuse
    with pytest.raises(type(error)):
        made.submit()
    assert made.cluster.objects == {}


def test_objects_that_cannot_be_removed_are_named() -> None:
    made = Made(arguments_of())

    def refuse(verb: str, kind: str, name: str) -> None:
        if verb == "delete" or kind == JOB_KIND:
            raise SubmitError("no")

    made.cluster.refuse = refuse
    with pytest.raises(SubmitError) as raised:
        made.submit()
    assert "ConfigMap monarch-11111111 in namespace research, which owns the job, may be left" in raised.value.__notes__[0]


def test_old_server_is_refused_before_anything_is_made() -> None:
    made = Made(arguments_of())
    made.cluster.version = (1, 23)
    with pytest.raises(SubmitError, match=r"1\.24.*\n.*statefulset"):
        made.submit()
    assert made.cluster.objects == {}


def test_mesh_of_another_job_is_a_named_error() -> None:
    made = Made(arguments_of(provisioner="monarchmesh"))
    other: dict[str, Any] = {"metadata": {"name": "trainers", "labels": {"monarch.pytorch.org/job": "other-job"}}}
    made.cluster.objects["monarch.pytorch.org/v1alpha1/MonarchMesh", "trainers"] = other
    with pytest.raises(SubmitError, match="belongs to the job other-job"):
        made.submit()
    assert list(made.cluster.objects.values()) == [other]


def test_addresses_come_with_ready_pods() -> None:
    made = submitted()
    assert made.addresses() == [None, None]
    made.cluster.pod("trainers", 1, phase="Pending", conditions=[], containerStatuses=[])
    first = made.cluster.pod("trainers", 0, uid="a1000000-0")
    assert made.addresses() == ["worker<ga1gggggg>@tcp://10.0.0.1:26600", None]
    first["status"]["conditions"] = [ready("False")]
    first["status"]["containerStatuses"] = [running(is_ready=False)]
    # A worker that is busy for a second is not lost.
    assert made.addresses()[0] is not None and not made.ids["joined"]
    made.cluster.pod("trainers", 1)
    assert None not in made.addresses() and made.ids["joined"]


def test_poll_is_one_request_without_missing_pods() -> None:
    made = submitted().joined()
    made.cluster.requests.clear()
    made.addresses()
    assert made.cluster.requests == [("list", "v1/Pod", "")]


def test_pending_pods_have_the_schedulers_reason() -> None:
    made = submitted(timeout=None)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}
    for rank in range(2):
        made.cluster.pod("trainers", rank, phase="Pending", conditions=[condition], containerStatuses=[])
    made.clock.time += 7 * 24 * 3600
    status = made.poll()
    assert status.phase == "pending" and "Unschedulable: 0/2 nodes are available" in status.detail
    assert [host.phase for host in status.hosts] == ["waiting", "waiting"]


def test_suspended_job_is_pending_without_a_clock() -> None:
    made = submitted()
    made.set_job(spec={"suspend": True})
    made.cluster.objects[JOB_KIND, "trainers-11111111"]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "gpus"
    made.clock.time += 7 * 24 * 3600
    status = made.poll()
    assert status.phase == "pending" and "suspended" in status.detail and "queue 'gpus'" in status.detail


def test_running_pods_that_do_not_listen_are_running() -> None:
    made = submitted()
    for rank in range(2):
        made.cluster.pod("trainers", rank, conditions=[ready("False")], containerStatuses=[running(is_ready=False)])
    status = made.poll()
    assert status.phase == "running" and "does not listen yet" in status.hosts[0].detail


def test_own_time_limit_ends_job_and_names_pods() -> None:
    made = submitted(timeout=30)
    made.cluster.pod("trainers", 0)
    made.addresses()
    made.clock.time += 29
    assert made.poll().phase == "pending"
    made.clock.time += 1
    with pytest.raises(JoinTimeoutError, match=r"1 of 2 pods were ready within 30 s \(timeout\) and the job was removed") as raised:
        made.poll()
    assert list(raised.value.hosts) == ["trainers[1]"]
    assert made.cluster.objects == {}


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "CreateContainerConfigError"])
def test_lasting_fault_ends_a_job_that_never_joined(reason: str) -> None:
    made = submitted()
    name = made.cluster.pod("trainers", 0, phase="Pending", conditions=[], containerStatuses=[waiting(reason, "why")])["metadata"]["name"]
    made.cluster.events_of[name] = [{"type": "Warning", "reason": "Failed", "message": "not found"}]
    made.cluster.pod("trainers", 1)
    assert made.poll().phase == "pending"
    made.clock.time += FAULT_S - 1
    assert made.poll().phase == "pending"
    made.clock.time += 1
    status = made.poll()
    assert status.phase == "ended" and made.launcher.ending() == ("failed", reason)
    assert f"pod {name} on node1, container worker: {reason}: why" in status.detail and "events:\n  Failed: not found" in status.detail


def test_fault_that_passes_ends_nothing() -> None:
    made = submitted()
    made.cluster.pod("trainers", 0, phase="Pending", conditions=[], containerStatuses=[waiting("ErrImagePull")])
    made.poll()
    made.clock.time += FAULT_S - 1
    made.cluster.pod("trainers", 0)
    made.poll()
    made.cluster.pod("trainers", 0, phase="Pending", conditions=[], containerStatuses=[waiting("ErrImagePull")])
    made.clock.time += 2
    assert made.poll().phase == "pending"


def test_crash_loop_ends_with_last_lines() -> None:
    made = submitted()
    for number in range(2):
        made.cluster.pod(
            "trainers", 0, name=f"w-0-aaaa{number}", created=f"2030-01-01T00:0{number}:00Z", phase="Failed", containerStatuses=[ended(3)]
        )
    made.cluster.logs["w-0-aaaa1", False] = "\n".join(f"line {n}" for n in range(20))
    made.poll()
    made.clock.time += FAULT_S
    status = made.poll()
    assert status.phase == "ended" and "exit code 3" in status.detail
    assert "line 19" in status.detail and "line 10" in status.detail and "line 9\n" not in status.detail


def test_quota_ends_job_with_words_of_api_server() -> None:
    made = submitted()
    words = 'pods "trainers-0" is forbidden: exceeded quota: small, requested: pods=1'
    made.cluster.events_of["trainers-11111111"] = [{"type": "Warning", "reason": "FailedCreate", "message": words}]
    status = made.poll()
    assert status.phase == "pending" and words in status.detail
    made.clock.time += FAULT_S
    status = made.poll()
    assert made.launcher.ending() == ("failed", "exceeded quota") and words in status.detail


def test_missing_volume_is_found_in_events() -> None:
    made = submitted()
    name = made.cluster.pod("trainers", 0, phase="Pending", conditions=[], containerStatuses=[waiting("ContainerCreating")])["metadata"][
        "name"
    ]
    made.cluster.pod("trainers", 1)
    made.cluster.events_of[name] = [{"type": "Warning", "reason": "FailedMount", "message": 'configmap "data" not found'}]
    made.poll()
    made.clock.time += SLOW_START_S
    assert 'configmap "data" not found' in made.poll().hosts[0].detail
    made.clock.time += FAULT_S
    made.poll()
    assert made.launcher.ending() == ("failed", "FailedMount")


def test_job_whose_workers_have_all_ended_is_over() -> None:
    made = submitted().joined()
    for rank in range(2):
        made.cluster.pod("trainers", rank, phase="Succeeded", conditions=[ready("False")], containerStatuses=[ended(0, "Completed")])
    made.set_job(status={"completedIndexes": "0,1", "conditions": [{"type": "Complete", "status": "True"}]})
    status = made.poll()
    assert status.phase == "ended" and "all workers have ended with exit code 0" in status.detail
    assert made.launcher.ending()[0] == "complete"


def test_job_that_was_deleted_is_over() -> None:
    made = submitted().joined()
    made.cluster.objects.clear()
    status = made.poll()
    assert status.phase == "ended" and "is gone from namespace 'research'" in status.detail


def test_lost_pod_is_lost_until_it_is_healed() -> None:
    made = submitted().joined()
    made.cluster.pod("trainers", 1, phase="Failed", conditions=[], containerStatuses=[ended(137, "OOMKilled")])
    lost = made.poll().hosts[1]
    assert lost.phase == "lost" and "OOMKilled, exit code 137" in lost.detail
    assert made.addresses()[1] is None
    made.cluster.pod("trainers", 1, name="trainers-11111111-1-bbbbb", uid="b0000000-1", created="2030-01-01T00:05:00Z", ip="10.0.0.2")
    lost = made.poll().hosts[1]
    assert lost.phase == "lost" and "pod trainers-11111111-1-bbbbb takes its place" in lost.detail
    assert made.launcher.relaunch(made.ids, [("trainers", 1)]) == [("trainers", 1)]
    host, address = made.poll().hosts[1], made.addresses()[1]
    assert host.phase == "waiting" and host.name == "trainers-11111111-1-bbbbb"
    # The IP is the same, the host is another.
    assert address is not None and address.startswith("worker<gbggggggg>@")


def test_pod_lost_by_the_runtime_is_deleted() -> None:
    made = submitted().joined()
    made.launcher.relaunch(made.ids, [("trainers", 0)])
    assert made.cluster.names("v1/Pod") == ["trainers-11111111-1-aaaaa"]
    assert made.addresses() == [None, "worker<gggggggg1>@tcp://10.0.0.2:26600"]


def test_completed_index_gets_another_job() -> None:
    made = submitted().joined()
    made.cluster.pod("trainers", 1, phase="Succeeded", conditions=[], containerStatuses=[ended(0, "Completed")])
    made.set_job(status={"completedIndexes": "1"})
    assert made.launcher.relaunch(made.ids, [("trainers", 1)]) == [("trainers", 1)]
    extra = made.cluster.objects[JOB_KIND, "trainers-11111111-r1-1"]
    assert extra["spec"]["completions"] == extra["spec"]["parallelism"] == 1
    assert extra["spec"]["template"]["metadata"]["labels"]["monarch.pytorch.org/rank"] == "1"
    pod = made.cluster.pod("trainers", 0, name="trainers-11111111-r1-1-0-zzzzz", uid="c0000000-1", ip="10.0.0.9")
    pod["metadata"]["labels"]["monarch.pytorch.org/rank"] = "1"
    assert made.addresses()[1] == "worker<gcggggggg>@tcp://10.0.0.9:26600"
    # Its own Job replaces it from now on.
    pod["status"] |= {"phase": "Failed", "conditions": [], "containerStatuses": [ended(1)]}
    made.launcher.relaunch(made.ids, [("trainers", 1)])
    assert made.cluster.names(JOB_KIND) == ["trainers-11111111", "trainers-11111111-r1-1"]


def test_completed_index_of_a_job_set_gets_job() -> None:
    """Its controller makes no pod for an index that has completed."""
    meshes = {"trainers": {"num_replicas": 2, "image_spec": IMAGE}, "data": {"num_replicas": 1, "image_spec": IMAGE}}
    made = Made(arguments_of(meshes, workload="jobset")).submit()
    for mesh, count in (("trainers", 2), ("data", 1)):
        child = {
            "metadata": {"name": f"monarch-11111111-{mesh}-0", "uid": mesh, "labels": {MESH_LABEL: mesh, JOB_LABEL: JOB}},
            "status": {},
        }
        made.cluster.objects[JOB_KIND, f"monarch-11111111-{mesh}-0"] = child
        for rank in range(count):
            made.cluster.pod(mesh, rank)
    assert None not in made.addresses()
    made.cluster.pod("data", 0, phase="Succeeded", conditions=[], containerStatuses=[ended(0, "Completed")])
    assert made.launcher.relaunch(made.ids, [("data", 0)]) == [("data", 0)]
    extra = made.cluster.objects[JOB_KIND, "data-11111111-r0-1"]
    assert extra["metadata"]["labels"][MESH_LABEL] == "data" and extra["metadata"]["namespace"] == "research"
    assert extra["metadata"]["ownerReferences"][0]["uid"] == made.ids["anchor_uid"]
    assert extra["spec"]["completions"] == 1 and extra["spec"]["ttlSecondsAfterFinished"] == 600
    assert extra["spec"]["template"]["metadata"]["labels"][RANK_LABEL] == "0"
    template = made.cluster.objects[names.JOB_SET_KIND, "monarch-11111111"]["spec"]["replicatedJobs"][1]["template"]
    assert extra["spec"]["template"]["spec"] == template["spec"]["template"]["spec"]
    assert RANK_LABEL not in template["spec"]["template"]["metadata"]["labels"]


def test_renewal_takes_only_replaced_pods() -> None:
    made = submitted().joined()
    assert made.launcher.renew(made.ids) == []
    made.cluster.pod("trainers", 0, conditions=[ready("False")])
    assert made.poll().hosts[0].phase == "lost"
    # The node may come back.
    assert made.launcher.renew(made.ids) == []
    made.cluster.pod("trainers", 0, name="trainers-11111111-0-bbbbb", uid="b0000000-1", created="2030-01-01T00:05:00Z")
    assert made.launcher.renew(made.ids) == [("trainers", 0)]
    assert ("delete", "v1/Pod", "trainers-11111111-0-aaaaa") not in made.cluster.requests


@pytest.mark.parametrize("is_new", [False, True])
def test_stuck_pod_is_removed_while_healing(is_new: bool) -> None:
    made = submitted().joined()
    made.launcher.relaunch(made.ids, [("trainers", 0)])
    name = "trainers-11111111-0-bbbbb"
    pod = made.cluster.pod("trainers", 0, name=name, uid="b0000000-1", phase="Pending", conditions=[], containerStatuses=[])
    if not is_new:
        pod["metadata"]["deletionTimestamp"] = "2030-01-01T00:05:00Z"
    made.poll()
    made.clock.time += STUCK_S - 1
    made.poll()
    assert name in made.cluster.names("v1/Pod")
    made.clock.time += 1
    made.poll()
    assert name not in made.cluster.names("v1/Pod")


def test_loss_after_the_time_limit_keeps_joined_jobs(tmp_path: Path) -> None:
    made = Made(arguments_of(timeout=30)).submit()
    in_file = copy.deepcopy(made.ids)  # a state file is written before the workers are there
    made.launcher = made.another(tmp_path)
    made.joined()
    made.clock.time += 31
    del made.cluster.objects["v1/Pod", "trainers-11111111-1-aaaaa"]
    made.ids, made.launcher = in_file, made.another(tmp_path)
    assert made.poll().phase == "pending"
    assert made.cluster.names(JOB_KIND) != []


def test_ready_pod_has_no_words_about_its_start() -> None:
    made = Made(arguments_of()).submit()
    for rank in range(2):
        made.cluster.pod("trainers", rank)
    assert [host.detail for host in made.poll().hosts] == ["", ""]


def test_cancel_waits_while_pods_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(arguments_of()).submit()
    left = [made.cluster.pod("trainers", rank) for rank in range(6)]
    now = [0.0]

    def listed(kind: str, selector: str = "", *, fields: str = "") -> tuple[list[Object], str]:
        now[0] += submission.PODS_S - 1
        if kind == "v1/Pod" and left:
            left.pop()
        return list(left) if kind == "v1/Pod" else [], "1"

    monkeypatch.setattr(made.cluster, "list", listed)
    monkeypatch.setattr(submission, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=now.append))
    made.launcher.cancel(made.ids)
    assert left == []


@pytest.mark.parametrize(("phase", "is_left"), [("Succeeded", False), ("Failed", False), ("Running", True)])
def test_cancel_does_not_wait_for_pod_finalizers(monkeypatch: pytest.MonkeyPatch, phase: str, is_left: bool) -> None:
    made = Made(arguments_of()).submit()
    pod = made.cluster.pod("trainers", 0, phase=phase)
    pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["batch.kubernetes.io/job-tracking"]}
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(made.cluster, "list", lambda kind, selector="", *, fields="": ([pod] if kind == "v1/Pod" else [], "1"))
    monkeypatch.setattr(submission, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pause))
    if is_left:
        with pytest.raises(JobError, match="pods are left"):
            made.launcher.cancel(made.ids)
    else:
        made.launcher.cancel(made.ids)
        assert submission.COUNTED_S <= now[0] < submission.COUNTED_S + 1


def test_lasting_fault_of_replacement_leaves_the_others() -> None:
    made = submitted().joined()
    del made.cluster.objects["v1/Pod", "trainers-11111111-0-aaaaa"]
    made.launcher.relaunch(made.ids, [("trainers", 0)])
    made.cluster.pod("trainers", 0, name="w-0-bbbbb", phase="Pending", conditions=[], containerStatuses=[waiting("ErrImagePull")])
    made.poll()
    made.clock.time += FAULT_S
    # The wait of `heal` ends; the job continues without this host.
    with pytest.raises(JobEndedError, match="ErrImagePull"):
        made.poll()
    other = KubernetesLauncher(arguments_of(), cluster=lambda: made.cluster, apply_id=JOB, title="", now=made.clock)
    status = other.poll(made.ids)
    assert [host.phase for host in status.hosts] == ["lost", "waiting"] and "ErrImagePull" in status.hosts[0].detail
    assert status.phase != "ended"


@pytest.mark.parametrize("error", [UnreachableError("no answer", server="https://x"), ApiError("busy", status=503)])
def test_unanswered_poll_is_unknown_and_keeps_hosts(error: Exception) -> None:
    made = submitted().joined()
    before = made.addresses()

    def refuse(verb: str, kind: str, name: str) -> None:
        raise error

    made.cluster.refuse = refuse
    status = made.poll()
    assert status.phase == "unknown" and [host.address for host in status.hosts] == before


def test_missing_right_is_an_error() -> None:
    made = submitted()

    def refuse(verb: str, kind: str, name: str) -> None:
        raise ApiError("no right to list pods", status=403)

    made.cluster.refuse = refuse
    with pytest.raises(ApiError, match="no right to list pods"):
        made.poll()


def test_attached_pods_are_found_by_selector_and_stay() -> None:
    mesh = {"num_replicas": 2, "label_selector": "app=theirs", "pod_rank_label": "rank", "port": 7}
    made = Made(arguments_of({"workers": mesh}, join_secret="s")).submit()
    assert made.cluster.objects == {}
    for rank in range(2):
        pod = made.cluster.pod("other", rank)
        pod["metadata"]["labels"] = {"app": "theirs", "rank": str(1 - rank)}
        del pod["spec"]["containers"][0]["env"]
    assert made.addresses() == ["tcp://10.0.0.2:7", "tcp://10.0.0.1:7"]
    made.launcher.cancel(made.ids)
    assert len(made.cluster.names("v1/Pod")) == 2


def test_lost_attached_pod_is_missing_until_its_replacement() -> None:
    made = Made(arguments_of({"workers": {"num_replicas": 1, "label_selector": "app=theirs"}}, join_secret="s")).submit()
    pod = made.cluster.pod("other", 0)
    pod["metadata"]["labels"] = {"app": "theirs"}
    made.addresses()
    made.cluster.objects.clear()
    assert made.launcher.relaunch(made.ids, [("workers", 0)]) == []
    pod = made.cluster.pod("other", 0, name="other-0-bbbbb", uid="b-1")
    pod["metadata"]["labels"] = {"app": "theirs"}
    assert made.launcher.relaunch(made.ids, [("workers", 0)]) == [("workers", 0)]
    assert not any(verb == "delete" for verb, _, _ in made.cluster.requests)


def test_cancel_removes_all_and_waits_for_pods() -> None:
    made = submitted().joined()
    made.launcher.cancel(made.ids)
    assert made.cluster.objects == {}
    verbs = [(verb, kind) for verb, kind, _ in made.cluster.requests]
    # Controllers come first, or they would make pods again.
    assert verbs.index(("delete", JOB_KIND)) < verbs.index(("delete", "v1/Pod"))
    made.launcher.cancel(made.ids)


def test_cancel_names_pods_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch.job import JobError
    from monarch.job.kubernetes import submission

    for name in ("PODS_S", "FORCED_S"):
        monkeypatch.setattr(submission, name, 0.05)
    made = submitted().joined()
    delete: Callable[..., bool] = made.cluster.delete
    grace: list[int | None] = []

    def stays(kind: str, name: str, **options: Any) -> bool:
        if kind == "v1/Pod":
            grace.append(options.get("grace"))
            return True
        return delete(kind, name, **options)

    monkeypatch.setattr(made.cluster, "delete", stays)
    with pytest.raises(JobError, match="pods are left\n  trainers-11111111-0-aaaaa on node1"):
        made.launcher.cancel(made.ids)
    assert grace[-1] == 0
