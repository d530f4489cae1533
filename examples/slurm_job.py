"""Nodes of a SLURM cluster, reserved once and used by run after run of a script.

    python examples/slurm_job.py [--nodes N] [--quick]      reserves nodes, or finds those of the last run, and adds up on them
    python examples/slurm_job.py --kill                     releases them

`--on process` runs the same on processes of this machine, `--on ssh --hosts gpu1,gpu2` on machines that ssh reaches: only the job object
differs. Without SLURM's commands `--quick` uses processes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from monarch.actor import Actor, current_rank, endpoint
from monarch.job import JobTrait, ProcessJob, SlurmJob, SSHJob, job_load

STATE = ".monarch/slurm_job.json"


class Adder(Actor):
    def __init__(self) -> None:
        self._sum = 0

    @endpoint
    def add(self, first: int, last: int) -> int:
        """Adds its share of the numbers to its sum."""
        point = current_rank()
        self._sum += sum(range(first + point.rank, last, point.extent.nelements))
        return self._sum


def make_job(on: str, nodes: int, hosts: str) -> JobTrait:
    """The only function that depends on the place of the run."""
    if on == "slurm":
        return SlurmJob({"workers": nodes}, python_exe=sys.executable, time_limit="00:30:00", exclusive=False)
    if on == "ssh":
        job = SSHJob(python_exe=sys.executable)
        job.add_mesh("workers", hosts.split(","))
        return job
    return ProcessJob({"workers": nodes})


def main() -> None:
    parser = argparse.ArgumentParser(description="Nodes of a SLURM cluster, reserved once and used many times.")
    parser.add_argument("--on", choices=("slurm", "process", "ssh"), default="slurm")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--hosts", default="localhost")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.kill:
        job_load(STATE).kill()
        return
    on = "process" if options.quick and shutil.which("sbatch") is None else options.on
    if options.quick and on == "slurm" and "SLURM_CONF" not in os.environ:
        on = "process"  # SLURM's commands are installed, without a cluster
    job = make_job(on, options.nodes, options.hosts)
    workers = job.state(cached_path=STATE).workers
    for run in range(options.runs):
        procs = workers.spawn_procs(per_host={"procs": 2})
        adders = procs.spawn("adders", Adder)
        total = sum(adders.add.call(0, 1_000_000).get().values())
        print(f"run {run}: {total} on {procs.extent}")
        procs.stop().get()
    if options.quick:
        job.kill()


if __name__ == "__main__":
    main()
