"""What the runtime of a process knows about hosts counts for `status` and `heal`, and so does what other processes have healed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually

from monarch.actor import Actor, HostMesh, SupervisionError, endpoint
from monarch.actor.testing import fault
from monarch.job import HealReport, JobEndedError, ProcessJob, job_load
from tools.frozen import freeze

MONARCH = (sys.executable, "-c", "from monarch.extension.cli import main; main()")


class Pid(Actor):
    @endpoint
    def agent(self) -> int:
        return os.getsid(0)


def _agents(hosts: HostMesh) -> list[int]:
    """The workers, each of which leads the session of its procs."""
    return list(hosts.spawn_procs().spawn("pid", Pid).agent.call().get(20).values())


def _marked(apply_id: str | None) -> list[int]:
    """The living processes of an allocation."""
    assert apply_id is not None
    found: list[int] = []
    for path in Path("/proc").iterdir():
        try:
            is_dead = (path / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            if path.name.isdigit() and not is_dead and f"MONARCH_APPLY_ID={apply_id}".encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


@pytest.fixture
def job() -> Iterator[ProcessJob]:
    made = ProcessJob({"a": 2})
    yield made
    made.kill()


def _lost(hosts: HostMesh) -> None:
    """Returns when the second host is lost."""
    procs = hosts.slice(hosts=1).spawn_procs().spawn("pid", Pid)
    with pytest.raises(SupervisionError):
        while True:
            procs.agent.call_one().get(20)


def test_frozen_host_is_lost_and_restarted(job: ProcessJob) -> None:
    hosts = job.state().a
    before = _agents(hosts)
    freeze(before[1])
    _lost(hosts)
    status = job.status()
    assert [host.phase for host in status.hosts] == ["joined", "lost"] and status.hosts[1].detail
    report = job.heal()
    assert (len(report.restarted) + len(report.replaced), report.missing) == (1, [])
    after = _agents(job.state().a)
    assert after[0] == before[0] and after[1] != before[1] and before[1] not in _marked(job.apply_id)
    with pytest.raises(SupervisionError):
        hosts.slice(hosts=1).spawn_procs().spawn("pid", Pid).agent.call().get(20)


def test_host_lost_by_the_client_alone_is_replaced(job: ProcessJob) -> None:
    """As after a network that was away: the worker lives, and the client that has lost it cannot use it any more."""
    hosts = job.state().a
    before = _agents(hosts)
    with fault(hosts.slice(hosts=1), "cut"):
        _lost(hosts)
    report = job.heal()
    assert (len(report.restarted) + len(report.replaced), report.missing) == (1, [])
    after = _agents(job.state().a)
    assert after[0] == before[0] and after[1] != before[1] and job.heal() == HealReport([], [], [])


def test_all_workers_are_started_again(job: ProcessJob) -> None:
    """This machine is there; the allocation, with its credentials and its file, is the same."""
    hosts = job.state().a
    before, apply_id = _agents(hosts), job.apply_id
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    _lost(hosts)
    eventually("the end of both workers", lambda: job.status().phase == "ended")
    report = job.heal()
    assert ([host.rank for host in report.replaced + report.restarted], report.missing) == ([0, 1], [])
    after = _agents(job.state().a)
    assert not set(before) & set(after) and job.apply_id == apply_id and job.active
    assert job.heal() == HealReport([], [], []) and _agents(job_load().state().a) == after


def test_job_that_was_killed_elsewhere_is_not_healed(job: ProcessJob) -> None:
    job.state()
    assert subprocess.run([*MONARCH, "kill"], check=False, timeout=25).returncode == 0
    with pytest.raises(JobEndedError, match="ended"):
        job.heal()
    assert _marked(job.apply_id) == []


def _healed_elsewhere(job: ProcessJob, processes: int = 1) -> None:
    hosts = job.state().a
    os.kill(_agents(hosts)[1], signal.SIGKILL)
    _lost(hosts)
    healing = [subprocess.Popen([*MONARCH, "heal"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(processes)]
    done = [process.communicate(timeout=25) for process in healing]
    assert [process.returncode for process in healing] == [0] * processes, done


def test_script_finds_worker_that_another_process_started(job: ProcessJob) -> None:
    before = _agents(job.state().a)
    _healed_elsewhere(job)
    assert job.heal() == HealReport([], [], []), "it is healed"
    after = _agents(job.state().a)
    assert after[0] == before[0] and after[1] != before[1]
    assert [host.phase for host in job.status().hosts] == ["joined", "joined"]
    assert _agents(job_load().state().a) == after


@pytest.mark.parametrize("by", ["the script", "the command"])
def test_worker_healed_elsewhere_does_not_survive_kill(job: ProcessJob, by: str) -> None:
    _healed_elsewhere(job)
    job.state()  # writes the state file
    apply_id = job.apply_id
    assert _marked(apply_id)
    if by == "the script":
        job.kill()
    else:
        assert subprocess.run([*MONARCH, "kill"], check=False, timeout=25).returncode == 0
    assert _marked(apply_id) == []


def test_two_processes_that_heal_start_one_worker(job: ProcessJob) -> None:
    _healed_elsewhere(job, processes=2)
    sessions = {os.getsid(pid) for pid in _marked(job.apply_id)}
    assert sessions == set(_agents(job.state().a))
