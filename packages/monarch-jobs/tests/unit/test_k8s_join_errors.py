"""The error for pods whose workers are not joined: what the API server knows of them."""

from __future__ import annotations

from typing import Any

import pytest
from memory_cluster import MemoryCluster, running, waiting

from monarch.actor import AttachError
from monarch.job import JoinTimeoutError
from monarch.job._job.launcher import Host
from monarch.job.kubernetes import KubernetesJob

CRASHED: dict[str, Any] = {"exitCode": 3, "reason": "Error"}


def _job(timeout: int | None = None) -> tuple[KubernetesJob, MemoryCluster]:
    job = KubernetesJob("research", timeout, join_secret="s")
    job.add_mesh("trainers", 2, label_selector="monarch.pytorch.org/mesh-name=trainers")
    job.cluster_ = cluster = MemoryCluster()
    for rank in range(2):
        cluster.pod("trainers", rank, name=f"t-{rank}")
    job._ids = job._launcher().submit(job.plan(), b"")
    addresses = job._launcher().addresses(job._ids)["trainers"]
    job.attached_ = {Host("trainers", rank): str(address) for rank, address in enumerate(addresses)}
    return job, cluster


def _explained(job: KubernetesJob) -> JoinTimeoutError:
    assert job.attached_ is not None
    address = job.attached_[Host("trainers", 1)]
    found = job._explains_failure()(AttachError("text", {address: "connection refused"}))
    assert isinstance(found, JoinTimeoutError) and isinstance(found, AttachError)
    assert (found.joined, found.total, list(found.hosts)) == (1, 2, ["trainers[1]"])
    return found


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            waiting("CrashLoopBackOff", "back-off 10s", restartCount=2, lastState={"terminated": CRASHED}),
            "container worker: CrashLoopBackOff: back-off 10s after 2 restarts, the last end: exit code 3",
        ),
        (running(restarts=1, **CRASHED), "pod t-1, container worker, was started again after exit code 3"),
        (running(), "pod t-1 on node1 is ready"),
    ],
)
def test_failed_join_names_pod_fault_and_last_lines(status: dict[str, Any], words: str) -> None:
    job, cluster = _job()
    cluster.pod("trainers", 1, name="t-1", containerStatuses=[status])
    is_again = bool(status["restartCount"])
    cluster.logs["t-1", is_again] = "secret file: others may read it"
    cluster.events_of["t-1"] = [{"type": "Warning", "reason": "BackOff", "message": "restarting"}]
    text = str(_explained(job))
    assert words in text and "connection refused" in text
    assert "last lines:\n" in text and "others may read it" in text and "BackOff: restarting" in text


def test_limit_is_the_one_that_was_asked_for() -> None:
    assert "within 7 s (timeout)" in str(_explained(_job(7)[0]))
    assert "mesh_attach_config_timeout" in str(_explained(_job()[0]))
    job, _ = _job(3600)
    assert job._join_deadline() is not None and _job()[0]._join_deadline() is None
    assert job._ids is not None
    # The host has joined long ago, or was given up.
    job._ids["submitted"] -= 7200
    assert job._join_deadline() is None


def test_join_error_without_server_answer_has_addresses() -> None:
    job, cluster = _job()

    def refuse(verb: str, kind: str, name: str) -> None:
        raise OSError("away")

    cluster.refuse = refuse
    assert "connection refused" in str(_explained(job))
