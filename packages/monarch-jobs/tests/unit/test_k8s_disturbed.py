"""A Kubernetes job whose pods, server or other clients do what is rare: a cluster in memory takes the place of a real one."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest
from memory_cluster import ended, running, waiting
from memory_job import JOB_KIND, Made, arguments_of, submitted

from monarch.job import SubmitError
from monarch.job.kubernetes.access.failures import ApiError, UnreachableError
from monarch.job.kubernetes.launcher import FAULT_S, REFUSED_S, SLOW_START_S
from monarch.job.kubernetes.manifests import names
from monarch.job.kubernetes.manifests.names import JOB_LABEL, RANK_LABEL
from monarch.job.kubernetes.pods.output import copy_logs


def test_logs_are_those_of_existing_pods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = submitted()
    made.cluster.pod("trainers", 0)
    # A pod that has never been Ready, and whose container has another name.
    crashed = {"name": "main", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    made.cluster.pod("trainers", 1, phase="Failed", conditions=[], containerStatuses=[crashed])
    made.cluster.logs = {("trainers-11111111-0-aaaaa", False): "zero\n", ("trainers-11111111-1-aaaaa", False): "no module\n"}

    def logs() -> dict[str, str]:
        """Of a process that has not looked at the job before."""
        printing = made.another(tmp_path).printing(copy.deepcopy(made.ids))
        found = copy_logs(made.cluster, printing, str(tmp_path / "logs"))
        return {f"{log.mesh}[{log.rank}] {Path(log.path).name}": Path(log.path).read_text() for log in found if os.path.exists(log.path)}

    first = {"trainers[0] trainers-11111111-0-aaaaa.log": "zero\n", "trainers[1] trainers-11111111-1-aaaaa.log": "no module\n"}
    assert logs() == first
    made.cluster.pod("trainers", 1, name="trainers-11111111-1-bbbbb", uid="b0000000-1", created="2030-01-01T00:05:00Z")
    made.cluster.logs["trainers-11111111-1-bbbbb", False] = "one\n"
    second = {"trainers[0] trainers-11111111-0-aaaaa.log": "zero\n", "trainers[1] trainers-11111111-1-bbbbb.log": "one\n"}
    assert logs() == second
    made.addresses()
    # The pod that clients knew is gone: its output up to the last read is there.
    del made.cluster.objects["v1/Pod", "trainers-11111111-1-bbbbb"]
    del made.cluster.logs["trainers-11111111-1-bbbbb", False]
    assert logs() == {**first, **second}

    def refuse(verb: str, kind: str, name: str) -> None:
        raise UnreachableError("no route", server="https://memory.example")

    made.cluster.refuse = refuse
    assert logs() == second
    assert capsys.readouterr().err == ""


def test_logs_leave_out_pods_that_have_not_begun(tmp_path: Path) -> None:
    made = submitted()
    made.cluster.pod("trainers", 0, phase="Pending", conditions=[], containerStatuses=[waiting("ContainerCreating")])
    made.cluster.pod("trainers", 1, phase="Pending", conditions=[], containerStatuses=[])
    assert copy_logs(made.cluster, made.launcher.printing(made.ids), str(tmp_path)) == []


def _starting(made: Made, events: list[dict[str, str]]) -> None:
    pod = made.cluster.pod("trainers", 0, phase="Pending", conditions=[], containerStatuses=[waiting("ContainerCreating")])
    made.cluster.pod("trainers", 1)
    made.cluster.events_of[pod["metadata"]["name"]] = [{"type": "Warning", "message": "not initialized", **event} for event in events]


@pytest.mark.parametrize(("after", "phase"), [([], "ended"), ([{"reason": "Pulling"}], "pending"), ([{"reason": "Pulling"}, {}], "ended")])
def test_past_fault_of_a_sandbox_is_ignored(after: list[dict[str, str]], phase: str) -> None:
    """A fresh node has no network at first, and then takes minutes for an image."""
    made = submitted()
    failed = {"reason": "FailedCreatePodSandBox"}
    _starting(made, [failed, *({**failed, **event} for event in after)])
    made.poll()
    for seconds in (SLOW_START_S, FAULT_S):
        made.clock.time += seconds
        made.poll()
    made.clock.time += 1
    assert made.poll().phase == phase


def test_container_beside_the_worker_may_be_started_again() -> None:
    made = submitted(workload="statefulset")

    def pods(of_worker: int, beside: int) -> None:
        for rank in range(2):
            statuses = [{**running(restarts=beside), "name": "beside"}, running(restarts=of_worker)]
            pod = made.cluster.pod("trainers", rank, name=f"trainers-11111111-{rank}", containerStatuses=statuses)
            pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] = str(rank)
            pod["spec"]["restartPolicy"] = "Always"

    pods(0, 0)
    assert None not in made.addresses()
    pods(0, 3)
    assert made.launcher.lost(made.ids) == [] and {host.phase for host in made.poll().hosts} == {"waiting"}
    pods(1, 3)
    assert len(made.launcher.lost(made.ids)) == 2 and "container worker, was started again" in made.poll().hosts[0].detail


def test_completed_ranks_are_known_after_their_jobs_removal() -> None:
    """A complete Job is removed after its time to live; the Jobs of ranks that were made again go on."""
    made = submitted().joined()
    made.cluster.pod("trainers", 0, phase="Succeeded", conditions=[], containerStatuses=[ended(0, "Completed")])
    made.set_job(status={"completedIndexes": "0"})
    made.launcher.relaunch(made.ids, [("trainers", 0)])
    pod = made.cluster.pod("trainers", 0, name="trainers-11111111-r0-1-0-zzzzz", uid="c0000000-1", created="2030-01-02T00:00:00Z")
    pod["metadata"]["labels"][RANK_LABEL] = "0"
    assert None not in made.addresses()
    for name in ("trainers-11111111-0-aaaaa", "trainers-11111111-1-aaaaa"):
        del made.cluster.objects["v1/Pod", name]
    del made.cluster.objects[JOB_KIND, "trainers-11111111"]
    assert made.launcher.lost(made.ids) == [("trainers", 1)]
    assert made.launcher.renew(made.ids) == [("trainers", 1)]
    assert made.cluster.names(JOB_KIND) == ["trainers-11111111-r0-1", "trainers-11111111-r1-2"]


@pytest.mark.parametrize("error", [UnreachableError("no answer", server="https://x"), ApiError("busy", status=503)])
def test_server_that_is_away_is_an_error_nowhere(error: Exception) -> None:
    made = submitted().joined()
    known = made.addresses()

    def refuse(verb: str, kind: str, name: str) -> None:
        raise error

    made.cluster.refuse = refuse
    status = made.poll()
    assert status.phase == "unknown"
    lost = status._replace(hosts=[host._replace(phase="lost") for host in status.hosts])
    assert made.launcher.last_words(made.ids, lost) == lost
    assert made.launcher.lost(made.ids) == []
    assert made.launcher.addresses(made.ids) == {"trainers": known}


def test_events_refused_by_a_busy_server_are_retried() -> None:
    made = submitted()
    _starting(made, [{"reason": "FailedMount"}])

    def refuse(verb: str, kind: str, name: str) -> None:
        if verb == "events":
            raise ApiError("busy", status=503)

    made.poll()
    made.clock.time += SLOW_START_S
    made.cluster.refuse = refuse
    assert made.poll().phase == "unknown"
    made.cluster.refuse = lambda verb, kind, name: None
    assert made.poll().phase == "pending"


def test_temporarily_missing_right_is_waited_for() -> None:
    """A server that starts knows no roles; a right that was never there is an error at once."""
    made = submitted().joined()

    def refuse(verb: str, kind: str, name: str) -> None:
        raise ApiError("no right to list pods", status=403)

    made.cluster.refuse = refuse
    assert made.poll().phase == "unknown"
    made.clock.time += REFUSED_S / 2
    assert made.poll().phase == "unknown"
    made.clock.time += REFUSED_S / 2
    with pytest.raises(ApiError):
        made.poll()
    fresh = submitted()
    fresh.cluster.refuse = refuse
    with pytest.raises(ApiError):
        fresh.poll()


def test_second_interrupt_of_a_submission_names_remaining_objects() -> None:
    made = Made(arguments_of())

    def refuse(verb: str, kind: str, name: str) -> None:
        if verb == "delete" or kind == JOB_KIND:
            raise KeyboardInterrupt

    made.cluster.refuse = refuse
    with pytest.raises(KeyboardInterrupt) as caught:
        made.submit()
    assert "ConfigMap monarch-11111111 in namespace research, which owns the job, may be left" in caught.value.__notes__[0]


def test_concurrently_made_mesh_belongs_to_its_client() -> None:
    made = Made(arguments_of(provisioner="monarchmesh"))
    others = {"metadata": {"name": "trainers", "uid": "u", "labels": {JOB_LABEL: "of-another"}}}

    def refuse(verb: str, kind: str, name: str) -> None:
        # The request comes after the check of the names, and before the mesh.
        if kind == "v1/Secret":
            made.cluster.objects[names.MESH_KIND, "trainers"] = copy.deepcopy(others)

    made.cluster.refuse = refuse
    with pytest.raises(SubmitError, match="MonarchMesh 'trainers' in namespace 'research' belongs to the job of-another"):
        made.submit()
    assert made.cluster.objects == {(names.MESH_KIND, "trainers"): others}


def test_mesh_missing_after_a_conflict_is_an_error() -> None:
    """Without a mesh no pod would ever come."""
    made = Made(arguments_of(provisioner="monarchmesh"))
    other = {"metadata": {"name": "trainers", "uid": "u", "labels": {JOB_LABEL: "of-another"}}}
    looks: list[str] = []

    def refuse(verb: str, kind: str, name: str) -> None:
        if (verb, kind) == ("apply", "v1/Secret"):
            made.cluster.objects[names.MESH_KIND, "trainers"] = copy.deepcopy(other)
        if kind == names.MESH_KIND and verb == "get":
            looks.append(name)
            if len(looks) > 1:
                made.cluster.objects.pop((names.MESH_KIND, "trainers"), None)

    made.cluster.refuse = refuse
    with pytest.raises(ApiError, match="exists"):
        made.submit()
    assert made.cluster.objects == {}
