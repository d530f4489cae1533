"""What SLURM does to a job of a client that goes on: the facts that `monarch diagnose` has of it, and its first cause."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from eventually import eventually
from slurm_jobs import Jobs

from monarch.actor import Actor, endpoint
from monarch.job import SlurmJob
from monarch.job._job.launcher import Trouble

pytestmark = pytest.mark.usefixtures("sources")


class Node(Actor):
    @endpoint
    def one(self) -> int:
        return 1


def _working(jobs: Jobs, **arguments: Any) -> tuple[SlurmJob, str]:
    """A job of two nodes, and its number."""
    job = jobs({"a": 2}, python_exe=sys.executable, **arguments)
    job.state(cached_path=None).a.spawn_procs().spawn("node", Node).one.call().get(20)
    assert job._ids is not None
    return job, job._ids["job_id"]


def _troubles(job: SlurmJob) -> list[Trouble]:
    return job._launcher().troubles(job._ids or {})


def test_preempted_job_is_the_first_cause(jobs: Jobs) -> None:
    telemetry = pytest.importorskip("monarch.telemetry")
    job, number = _working(jobs, partition="low")
    assert _troubles(job) == []
    jobs.cluster.run("sbatch", "-p", "main", "-N3", "--exclusive", "--wrap", "sleep 60", "-o", "/dev/null")

    def first() -> str:
        causes = telemetry.diagnose().causes
        return causes[0].sentence if causes else ""

    eventually("the cause", first, lambda text: text.startswith(f"SLURM has preempted job {number} (PREEMPTED"))


def test_node_that_administrator_takes_is_known(mortal: Jobs) -> None:
    job, number = _working(mortal)
    mortal.cluster.run("scontrol", "update", "nodename=n1", "state=drain", "reason=bad disk")
    [one] = _troubles(job)
    assert (one.kind, one.text, one.hosts) == ("leaving", "node n1 is draining: 'bad disk'", (("a", 1),))
    mortal.cluster.run("scontrol", "update", "nodename=n1", "state=down", "reason=bad disk")
    # The job goes on without the node, which returns to service by itself here.
    [one] = eventually("the loss of the node", lambda: _troubles(job), lambda found: [one.kind for one in found] == ["ended"])
    assert one.hosts == (("a", 1),) and one.text.startswith(f"SLURM has taken node n1 from job {number}")


def test_requeued_job_is_no_job_in_the_queue(jobs: Jobs) -> None:
    job, number = _working(jobs, requeue=True)
    jobs.cluster.run("scontrol", "requeue", number)
    found = eventually("the job in the queue", lambda: _troubles(job), lambda found: found and "PENDING" in found[0].text)
    assert found[0].kind == "ended" and found[0].text.startswith(f"SLURM has put job {number} back into the queue (PENDING")
