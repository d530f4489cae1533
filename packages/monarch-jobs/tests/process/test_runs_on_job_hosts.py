"""`monarch.spmd.run` on the mesh of a job, or a slice of it: lost hosts are replaced by that job."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import monarch
from eventually import eventually

from monarch.job import JobTrait, ProcessJob, job_load
from monarch.spmd import RestartPolicy, SPMDFailure, run

# The first attempt waits; when all its ranks are there, those of VICTIMS kill the worker of their host, which is one of WORKERS.
PROGRAM = """
import json, os, signal
count, rank, world = (os.environ[name] for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE"))
pid, workers = os.getpid(), json.loads(os.environ["WORKERS"])
while pid not in workers and pid > 1:
    with open(f"/proc/{pid}/stat") as file:
        pid = int(file.read().rpartition(")")[2].split()[1])
with open(f"draft{rank}", "w") as file:
    json.dump([int(world), pid], file)
os.makedirs(count, exist_ok=True)
os.rename(f"draft{rank}", f"{count}/{rank}")
if count == "0":
    if rank in os.environ["VICTIMS"].split():
        while len(os.listdir(count)) < int(world):  # polls: ranks have no other way to meet here
            pass
        os.kill(pid, signal.SIGKILL)
    signal.pause()
"""
ONCE = RestartPolicy(max_restarts=1, backoff=(0.0, 0.0))


@pytest.fixture
def job(folder: Path) -> Iterator[ProcessJob]:
    (folder / "train.py").write_text(PROGRAM)
    made = ProcessJob({"others": 1, "hosts": 3})
    yield made
    made.kill()


def workers(job: JobTrait) -> list[int]:
    """The pids of the workers, in the order of the hosts."""
    return [int(word) for word in job._where().replace(",", "").split() if word.isdigit()]


def started(hosts: Any, job: JobTrait, place: Path, victims: str, *options: str, policy: RestartPolicy = ONCE) -> Any:
    place.mkdir(exist_ok=True)
    env = {"WORKERS": json.dumps(workers(job)), "VICTIMS": victims}
    return run(hosts, ["torchrun", *options, "../train.py"], policy=policy, env=env, workdir=str(place))


def attempt(place: Path, number: int) -> list[list[int]]:
    """World size and worker of each rank; a worker that came later is process 1 here."""
    found = {int(path.name): json.loads(path.read_text()) for path in (place / str(number)).iterdir()}
    return [found[rank] for rank in sorted(found)]


def test_lost_host_of_a_mesh_is_replaced(job: ProcessJob, folder: Path) -> None:
    hosts = job.state().hosts
    before = workers(job)
    result = started(hosts, job, folder / "run", "1").result.get()
    assert (result.attempts, result.world_size) == (2, 3)
    assert attempt(folder / "run", 0) == [[3, pid] for pid in before[1:]]
    assert attempt(folder / "run", 1) == [[3, before[1]], [3, 1], [3, before[3]]]
    # The other workers are the same as before.
    assert [pid for pid in workers(job) if pid in before] == [before[0], before[1], before[3]]


def test_lost_host_of_a_slice_is_replaced(job: ProcessJob, folder: Path) -> None:
    job.state().hosts.initialized.get()
    loaded = job_load()
    hosts = loaded.state().hosts.slice(hosts=slice(1, 3))
    before = workers(job)
    result = started(hosts, job, folder / "run", "0").result.get()
    assert (result.attempts, result.world_size) == (2, 2)
    assert attempt(folder / "run", 1) == [[2, 1], [2, before[3]]]


def test_runs_on_slices_heal_at_the_same_time(job: ProcessJob, folder: Path) -> None:
    hosts = job.state().hosts
    before = workers(job)
    first = started(hosts.slice(hosts=slice(0, 2)), job, folder / "first", "1")
    second = started(hosts.slice(hosts=2), job, folder / "second", "0")
    assert (first.result.get().world_size, second.result.get().world_size) == (2, 1)
    assert attempt(folder / "first", 1) == [[2, before[1]], [2, 1]]
    assert attempt(folder / "second", 1) == [[1, 1]]


def test_spare_host_comes_before_the_job(job: ProcessJob, folder: Path) -> None:
    hosts = job.state().hosts
    before = workers(job)
    result = started(hosts, job, folder / "run", "0", "--nnodes=2").result.get()
    assert (result.attempts, result.world_size) == (2, 2)
    assert attempt(folder / "run", 1) == [[2, before[3]], [2, before[2]]]
    assert [host.phase for host in job.status().hosts if host.mesh == "hosts"] == ["lost", "joined", "joined"]


def test_command_has_the_current_job_healed(folder: Path) -> None:
    job = ProcessJob({"hosts": 2})
    try:
        job.state()
        before = workers(job)
        text = PROGRAM.replace('json.loads(os.environ["WORKERS"])', str(before)).replace('os.environ["VICTIMS"]', '"1"')
        (folder / "train.py").write_text(text)
        code, _, err = monarch("run", "--max-restarts=1", "train.py")
        assert code == 0 and "monarch: all 2 hosts are there\n" in err
        assert attempt(folder, 1) == [[2, before[0]], [2, 1]]
    finally:
        job.kill()


def test_job_that_was_killed_is_not_healed(job: ProcessJob, folder: Path) -> None:
    hosts = job.state().hosts
    running = started(hosts, job, folder / "run", "", policy=RestartPolicy(max_restarts=3, backoff=(0.0, 0.0)))
    eventually("all ranks", lambda: (folder / "run" / "0").exists() and len(os.listdir(folder / "run" / "0")) == 3)
    job.kill()
    with pytest.raises(SPMDFailure, match="the job could not replace lost hosts: JobEndedError: process job .*: has ended"):
        running.result.get()
    assert not job.active
