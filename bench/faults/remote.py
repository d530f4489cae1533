"""Programs whose ranks are on another machine than their client, a host in a network namespace, and lack a processor. They need root."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import monarch.actor
from bench.faults.actors import Trainer
from bench.faults.machine import cgroup
from bench.faults.networks import job
from bench.faults.program import Fault, until_closed
from monarch.actor import attach_to_workers
from tools.netns.cluster import Cluster

_CPU = "/sys/fs/cgroup/cpu"


def client(*workers: str) -> None:
    """The script of the job: three ranks on the second host work for as long."""
    monarch.actor.unhandled_fault_hook = lambda failure: None
    hosts = attach_to_workers(workers=list(workers), secret=os.environ["TEST_SECRET"])
    trainers = hosts.slice(hosts=1).spawn_procs({"gpus": 3}, name="workers").spawn("trainer", Trainer)
    print("up", os.getpid(), *trainers.pid.call().get().values(), flush=True)
    until_closed()
    trainers.step.call(120.0).get()


def _move(cluster: Cluster, group: Path, pid: int) -> None:
    """Puts a process of the second host into a cgroup; the host has numbers of processes of its own."""
    cluster.hosts[1].run("sh", "-c", 'echo "$1" >"$2/cgroup.procs"', "sh", str(pid), str(group))


def _limited(cluster: Cluster, pids: list[int]) -> None:
    """One rank may use a twentieth of a processor."""
    group = cgroup(_CPU)
    (group / "cpu.cfs_period_us").write_text("100000")
    (group / "cpu.cfs_quota_us").write_text("5000")
    _move(cluster, group, pids[1])


def _robbed(cluster: Cluster, pids: list[int]) -> None:
    """A neighbour takes the processor of one rank, whose cgroup has little weight."""
    group = cgroup(_CPU)
    (group / "cpu.shares").write_text("16")
    _move(cluster, group, pids[1])
    processor = min(os.sched_getaffinity(0))
    cluster.hosts[1].run("taskset", "-a", "-c", "-p", str(processor), str(pids[1]))
    neighbour = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", sys.executable, "-c", "while True: pass"])
    os.sched_setaffinity(neighbour.pid, {processor})


FAULTS = (
    Fault(
        "remote_processor_theft",
        partial(job, [__name__], _robbed),
        r"(trainer|workers) rank 1 .*gets (\d+\.\d% of a processor where other ranks on host h3 get \d+%|no processor time)",
        6.0,
        _CPU,
    ),
    Fault("remote_cgroup_limit", partial(job, [__name__], _limited), r"the cgroup of 1 proc of host h3 limits processor time", 2.0, _CPU),
)

if __name__ == "__main__":
    client(*sys.argv[1:])
