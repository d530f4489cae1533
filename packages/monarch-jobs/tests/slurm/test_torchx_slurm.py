"""TorchXJob on a real SLURM, by TorchX's own scheduler: submitted, found again, killed; a worker that ends; a job that cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually
from torchx.specs import AppDef, Resource, Role

from monarch.actor import Actor, endpoint
from monarch.job import JobEndedError, SubmitError
from monarch.job.torchx import TorchXJob
from tools.slurm.cluster import SlurmCluster

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("sources")]

LATER = """
from monarch.job import job_load
if __name__ == "__main__":
    job = job_load("state.json")
    print(job.status().phase, len(job.state().trainers), job._where())
    job.kill()
    print(job.status().phase)
"""


class Node(Actor):
    @endpoint
    def name(self) -> str:
        return os.environ["SLURMD_NODENAME"]


@pytest.fixture
def job(cluster: SlurmCluster) -> Iterator[TorchXJob]:
    made = TorchXJob(application(), "slurm")
    yield made
    made.kill()


def application() -> AppDef:
    resource = Resource(cpu=2, gpu=0, memMB=300)
    trainers = Role("trainers", image="", entrypoint="train.py", env={"TOKEN": "a,b"}, num_replicas=2, resource=resource)
    return AppDef("app", [trainers, Role("ps", image="", entrypoint="serve.py", resource=resource)])


def joined(job: TorchXJob) -> None:
    eventually("hosts that listen", job.status, lambda status: all(host.phase == "joined" for host in status.hosts))


def test_replicas_are_nodes(job: TorchXJob, cluster: SlurmCluster, tmp_path: Path) -> None:
    state = job.state()
    trainers = state.trainers.spawn_procs().spawn("node", Node).name.call().get(90)
    (ps,) = state.ps.spawn_procs().spawn("node", Node).name.call().get(60).values()
    assert len({*trainers.values(), ps}) == 3
    status = job.status()
    assert (status.phase, status.detail) == ("running", "RUNNING")
    assert [host.name for host in status.hosts] == [*trainers.values(), ps]
    assert not list(tmp_path.glob("slurm-*")), "TorchX leaves files where it is"
    job.kill()
    assert "RUNNING" not in cluster.run("squeue", "-h", "-o", "%T")
    assert job.status().phase == "none"


def test_fresh_process_finds_it_again_and_kills_it(job: TorchXJob, cluster: SlurmCluster) -> None:
    job.apply()
    job.dump("state.json")
    joined(job)
    Path("later.py").write_text(LATER)
    done = subprocess.run([sys.executable, "later.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"running 2 {job._where()}\nnone\n"
    assert "slurm://monarch/" in job._where()
    assert "RUNNING" not in cluster.run("squeue", "-h", "-o", "%T")


def test_dead_worker_is_healed_on_its_node(job: TorchXJob) -> None:
    job.apply()
    joined(job)
    before = job.status().hosts[0]
    state = job.state()
    state.trainers.initialized.get(60)
    assert job._ids is not None
    folder = Path(job._ids["directory"], "hosts")
    # The heal itself ends a worker whose replacement is wanted.
    (folder.parent / "wanted" / "0").write_text("here\n")
    eventually("another worker", job.status, lambda status: status.hosts[0].address not in (None, before.address))
    assert job.status().hosts[0].name == before.name
    assert len(job.state().trainers.spawn_procs().spawn("node", Node).name.call().get(60)) == 2


def test_end_has_slurms_state_and_the_workers_output(cluster: SlurmCluster) -> None:
    job = TorchXJob(application(), "slurm", python_exe="/no/python")
    try:
        with pytest.raises(JobEndedError) as caught:
            job.state()["trainers"].initialized.get(90)
        assert caught.value.state == "FAILED"
        assert "its worker ended with exit code 127" in str(caught.value)
        assert "/no/python" in str(caught.value)
    finally:
        job.kill()


def test_refusal_is_in_the_words_of_sbatch(cluster: SlurmCluster) -> None:
    job = TorchXJob(application(), "slurm", {"partition": "nowhere"})
    with pytest.raises(SubmitError) as caught:
        job.apply()
    assert "invalid partition specified: nowhere" in str(caught.value)
    assert caught.value.command is not None
    assert caught.value.command.startswith("sbatch --parsable")
    assert caught.value.exit_code == 1
    assert os.listdir(".monarch/torchx") == []


def test_pending_job_is_cancelled(cluster: SlurmCluster) -> None:
    application_of_four = AppDef("app", [Role("a", image="", entrypoint="x", num_replicas=3, resource=Resource(2, 0, 300))])
    first, second = TorchXJob(application_of_four, "slurm"), TorchXJob(application_of_four, "slurm")
    try:
        first.apply()
        joined(first)
        second.apply()
        status = eventually("its reason", second.status, lambda status: status.detail.startswith("PENDING ("))
        assert status.phase == "pending"
        second.kill()
        assert "PENDING" not in cluster.run("squeue", "-h", "-o", "%T")
    finally:
        first.kill()
        second.kill()
