"""`serve` and `run_spmd` on a real SLURM: nodes reserved once, runs repeated, a failure, a new process, the end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from slurm_jobs import Jobs

from monarch.job.spmd import SPMDJob, serve
from monarch.spmd import SPMDFailure, run
from tools.slurm.cluster import SlurmCluster

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("sources")]

# Adds rank, world and node to a file of the shared directory.
TRAIN = """
import os
with open("notes", "a") as file:
    print(os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["GROUP_RANK"], os.environ["SLURMD_NODENAME"], file=file)
"""
LATER = """
from monarch.job.spmd import job_load
if __name__ == "__main__":
    job = job_load(".monarch/job_state.json")
    job.run_spmd()
    job.kill()
"""


@pytest.fixture
def job(cluster: SlurmCluster) -> Iterator[SPMDJob]:
    config: dict[str, Any] = {"python_exe": sys.executable, "exclusive": False, "mem": "300", "cpus_per_task": 1}
    Path("train.py").write_text(TRAIN)
    made = serve(["torchrun", "--nnodes=2", "--nproc-per-node=2", "train.py"], "slurm", config)
    yield made
    made.kill()


def notes() -> list[list[str]]:
    found = sorted(line.split() for line in Path("notes").read_text().splitlines())
    Path("notes").unlink()
    return found


# The first attempt waits for the loss of its second host.
WAITS = """
import os, signal
rank, count = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(f"draft.{count}.{rank}", "w") as file:
    print(os.environ["WORLD_SIZE"], os.environ["SLURMD_NODENAME"], file=file)
os.rename(f"draft.{count}.{rank}", f"{count}.{rank}")
if count == "0":
    signal.pause()
"""


def test_run_shrinks_when_a_node_dies(mortal: Jobs, capfd: pytest.CaptureFixture[str]) -> None:
    """Without a spare: SLURM's word decides, not the ten minutes that a run gives its job."""
    Path("train.py").write_text(WAITS)
    job = mortal({"a": 2}, python_exe=sys.executable)
    command = ["torchrun", "--nnodes=1:2", "--max-restarts=1", "--nproc-per-node=1", "train.py"]
    running = run(job.state(cached_path=None).a, command, workdir=os.getcwd())
    eventually("both ranks", lambda: Path("0.0").exists() and Path("0.1").exists())
    mortal.cluster.kill_node(1)
    result = running.result.get()
    assert (result.attempts, result.world_size, Path("1.0").read_text().split()) == (2, 1, ["1", "n0"])
    words = capfd.readouterr().err
    assert "a[1] (n1) is lost: " in words and "; waits for its worker to start again until " in words
    assert "the job could not replace lost hosts: a[1] (n1) is lost: " in words and "goes on with 1 host" in words
    job.kill()


def test_nodes_are_reserved_once(job: SPMDJob, cluster: SlurmCluster) -> None:
    job.run_spmd()
    first = notes()
    assert [line[:3] for line in first] == [[str(rank), "4", str(rank // 2)] for rank in range(4)]
    assert len({line[3] for line in first}) == 2
    job.run_spmd()
    assert notes() == first
    Path("train.py").write_text("raise ValueError('bad')")
    with pytest.raises(SPMDFailure, match="raised ValueError: bad"):
        job.run_spmd()
    Path("train.py").write_text(TRAIN)
    Path("later.py").write_text(LATER)
    done = subprocess.run([sys.executable, "later.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert notes() == first
    assert "RUNNING" not in cluster.run("squeue", "-h", "-o", "%T")
