"""A job that does not start, or is ended by SLURM under a script: the script gets SLURM's words, as the promised exception."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_jobs import Jobs

from monarch.actor import Actor, SupervisionError, endpoint
from monarch.job import JobEndedError, JobError, JobState, JoinTimeoutError, SlurmJob

pytestmark = pytest.mark.usefixtures("sources")


class Node(Actor):
    @endpoint
    def one(self) -> int:
        return 1

    @endpoint
    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def _called(state: JobState) -> object:
    return _spawned(state).one.call().get(20)


def _spawned(state: JobState) -> Node:
    return state.a.spawn_procs().spawn("node", Node)


def _cancelled(jobs: Jobs, job: SlurmJob) -> JobEndedError:
    """The error of a call that is pending when `scancel` ends the job."""
    nodes = _spawned(job.state(cached_path=None))
    nodes.one.call().get(20)
    assert job._ids is not None
    jobs.cluster.run("scancel", job._ids["job_id"])
    with pytest.raises(JobEndedError, match=r"\Aslurm job \w+: ended: CANCELLED") as caught:
        while True:
            nodes.one.call().get(20)
    return caught.value


USES: list[Callable[[JobState], object]] = [
    lambda state: state.a.initialized.get(20),
    lambda state: state.a.spawn_procs().initialized.get(20),
    _called,
]


@pytest.mark.parametrize("use", USES)
def test_workers_that_cannot_start_end_the_job(jobs: Jobs, use: Callable[[JobState], object]) -> None:
    job = jobs({"a": 2}, python_exe="/nowhere/python")
    state = job.state(cached_path=None)
    with pytest.raises(JobEndedError) as caught:
        use(state)
    first, *rest = str(caught.value).splitlines()
    assert first.startswith(f"{job._title}: ended: FAILED (NonZeroExitCode), exit code 127")
    assert (caught.value.state, caught.value.reason, caught.value.hint) == ("FAILED", "NonZeroExitCode", None)
    assert any("/nowhere/python: No such file" in line for line in rest)


@pytest.mark.parametrize("use", USES)
def test_job_cancelled_in_the_queue_ends_its_calls(jobs: Jobs, use: Callable[[JobState], object]) -> None:
    job = jobs({"a": 2}, python_exe=sys.executable, slurm_args=["--hold"])
    state = job.state(cached_path=None)
    waiting = _spawned(state).one.call()
    assert job._ids is not None
    jobs.cluster.run("scancel", job._ids["job_id"])
    for wait in (lambda: use(state), lambda: waiting.get(20)):
        with pytest.raises(JobError, match=r"\Aslurm job \w+: ended: CANCELLED") as caught:
            wait()
        assert isinstance(caught.value, JobEndedError)


def test_hosts_that_do_not_join_are_counted(jobs: Jobs, tmp_path: Path) -> None:
    python = tmp_path / "sleeps"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    state = jobs({"a": 2}, python_exe=str(python), join_timeout=1).state(cached_path=None)
    with pytest.raises(JoinTimeoutError, match=r"\Aslurm job \w+: 0 of 2 hosts joined within 1 s") as caught:
        _called(state)
    assert (caught.value.joined, caught.value.total, list(caught.value.hosts)) == (0, 2, ["a[0]", "a[1]"])


def test_script_is_notified_of_slurms_cancellation(jobs: Jobs) -> None:
    job = jobs({"a": 2}, python_exe=sys.executable)
    ended = _cancelled(jobs, job)
    assert isinstance(ended.__cause__, SupervisionError) and ended.state == "CANCELLED"
    assert [host.phase for host in jobs.until(job, lambda status: status.phase == "ended").hosts] == ["lost", "lost"]
    with pytest.raises(JobEndedError, match="ended: CANCELLED"):
        job.heal()


def test_cancelled_job_is_the_cause_of_ended_procs(jobs: Jobs, tmp_path: Path) -> None:
    # SLURM's SIGTERM reaches the procs, and not their agent.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec env --block-signal=TERM {sys.executable} "$@"\n')
    python.chmod(0o755)
    job = jobs({"a": 2}, python_exe=str(python))
    assert "Killed(sig=" in str(_cancelled(jobs, job).__cause__)


def test_killed_proc_of_running_job_is_supervision_error(jobs: Jobs) -> None:
    job = jobs({"a": 1}, python_exe=sys.executable)
    nodes = _spawned(job.state(cached_path=None))
    with pytest.raises(SupervisionError, match=r"Killed\(sig=15\)"):
        nodes.end.call_one().get(20)


def test_lost_host_of_running_job_is_supervision_error(jobs: Jobs) -> None:
    job = jobs({"a": 2}, python_exe=sys.executable)
    nodes = _spawned(job.state(cached_path=None))
    nodes.one.call().get(20)
    jobs.kill_worker(job, 1)
    with pytest.raises(SupervisionError):
        while True:
            nodes.one.call().get(20)
