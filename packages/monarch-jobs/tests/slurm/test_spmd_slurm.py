"""`serve` and `run_spmd` on a real SLURM: nodes reserved once, runs repeated, a failure, a new process, the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.job.spmd import SPMDJob, serve
from monarch.spmd import SPMDFailure
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
