"""Hosts that the runtime has lost and SLURM has not, and workers that SLURM or another process has replaced."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from slurm_jobs import Jobs

from monarch.actor import Actor, HostMesh, SupervisionError, endpoint
from monarch.job import JobEndedError, JobError, SlurmJob

pytestmark = pytest.mark.usefixtures("sources")


class Node(Actor):
    @endpoint
    def name(self) -> str:
        return os.environ["SLURMD_NODENAME"]


def _names(hosts: HostMesh) -> list[str]:
    return list(hosts.spawn_procs().spawn("node", Node).name.call().get(20).values())


def _frozen(jobs: Jobs, job: SlurmJob) -> None:
    """Freezes the second host, and returns when the runtime of this process has lost it."""
    nodes = job.state(cached_path=None).a.spawn_procs().spawn("node", Node)
    assert list(nodes.name.call().get(20).values()) == ["n0", "n1"]
    jobs.kill_worker(job, 1, "STOP")
    with pytest.raises(SupervisionError):
        nodes.slice(hosts=1).name.call_one().get(20)
    status = job._launcher().poll(job._ids or {})
    assert status.hosts[1].phase == "waiting", "SLURM takes it for fine"
    status = job.status()
    assert [host.phase for host in status.hosts] == ["joined", "lost"] and status.hosts[1].detail


def test_spare_replaces_host_that_slurm_believes_alive(jobs: Jobs) -> None:
    job = jobs({"a": 2}, python_exe=sys.executable, spares=1)
    _frozen(jobs, job)
    report = job.heal()
    assert ([host.name for host in report.replaced], report.restarted, report.missing) == (["n2"], [], [])
    assert _names(job.state(cached_path=None).a) == ["n0", "n2"] and job.heal() == ([], [], [])


def test_frozen_worker_without_spare_is_restarted_in_place(jobs: Jobs) -> None:
    """The frozen one is killed; it does not report how the new one ended."""
    job = jobs({"a": 2}, python_exe=sys.executable)
    _frozen(jobs, job)
    before = jobs.worker_pid(job, 1)
    assert jobs.runs(job, 1, before)
    report = job.heal()
    assert ([host.name for host in report.restarted], report.replaced, report.missing) == (["n1"], [], [])
    assert _names(job.state(cached_path=None).a) == ["n0", "n1"]
    assert not jobs.runs(job, 1, before) and job.heal() == ([], [], [])


def test_worker_that_does_not_come_back_is_missing(jobs: Jobs, tmp_path: Path) -> None:
    """It is named, and stays lost; the handles of the other hosts go on."""
    python = tmp_path / "later_python"
    python.write_text(f'#!/bin/sh\n[ -e "{tmp_path}/broken" ] && exec sleep 60\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    job = jobs({"a": 2}, python_exe=str(python))
    _frozen(jobs, job)
    (tmp_path / "broken").touch()
    report = job.heal(timeout=4)
    assert [(host.rank, host.name, host.phase) for host in report.missing] == [(1, "n1", "lost")]
    # On a busy machine SLURM may have noticed the frozen node by then.
    assert report.missing[0].detail in ("its worker was started again and does not listen", "SLURM says that the node does not answer")
    assert _names(job.state(cached_path=None).a.slice(hosts=slice(0, 1))) == ["n0"]


def test_running_script_finds_hosts_after_requeue(jobs: Jobs) -> None:
    job = jobs({"a": 2}, python_exe=sys.executable, requeue=True)
    nodes = job.state(cached_path="state.json").a.spawn_procs().spawn("node", Node)
    assert list(nodes.name.call().get(20).values()) == ["n0", "n1"]
    assert job._ids is not None
    jobs.cluster.run("scontrol", "requeue", job._ids["job_id"])
    jobs.until(job, lambda status: status.phase == "pending")
    with pytest.raises(JobError, match="was requeued, its hosts are given back: PENDING") as found:
        while True:
            nodes.name.call().get(20)
    assert not isinstance(found.value, JobEndedError)
    assert job.heal() == ([], [], []), "nothing to heal while SLURM starts it again"
    jobs.start_again(job)
    jobs.joined(job)
    assert _names(job.state(cached_path="state.json").a) == ["n0", "n1"] and job.heal() == ([], [], [])
