"""Programs on a real SLURM cluster of this machine, whose job or nodes SLURM or its administrator takes away. They need root."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.faults.actors import Trainer
from bench.faults.machine import mounted
from bench.faults.program import Fault, go_on, ready, until_closed
from tools.project import ROOT
from tools.slurm.cluster import SlurmCluster, missing
from tools.slurm.configuration import node_address

_NODES = 3
_HOSTS = Path("/etc/hosts")


def _job(break_it: Callable[[SlurmCluster, str], object], partition: str = "main") -> None:
    """Two of three nodes train, in the partition whose jobs may be preempted or in the one that preempts them."""
    from monarch.job import SlurmJob

    go_on()
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    # The client finds the nodes by their names, as they do.
    names = folder / "hosts"
    names.write_text("".join(f"{node_address(index, named=True)} n{index}\n" for index in range(_NODES)) + _HOSTS.read_text())
    mounted("--bind", str(names), at=_HOSTS)
    until_closed()
    # Nodes import the actors.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    with SlurmCluster(folder / "slurm", _NODES, named=True, extra="ReturnToService=0") as cluster:
        os.environ.update(cluster.env, MONARCH_HOME=str(folder / "home"))
        job = SlurmJob({"workers": 2}, python_exe=sys.executable, job_dir=str(folder / "jobs"), partition=partition)
        trainers = job.state(cached_path=None).workers.spawn_procs(name="workers").spawn("trainer", Trainer)
        trainers.step.call().get()
        threading.Thread(target=_train, args=(trainers,), daemon=True).start()
        assert job._ids is not None
        break_it(cluster, job._ids["job_id"])
        ready()
        threading.Event().wait()


def _train(trainers: Trainer) -> None:
    """The script goes on after a failure, as one that heals its job."""
    while trainers.step.call(0.1).exception() is None:
        pass


def _preempt(cluster: SlurmCluster, job: str) -> None:
    """A job that needs all nodes comes into the other partition."""
    cluster.run("sbatch", "-p", "main", "-N3", "--exclusive", "--wrap", "sleep 600", "-o", "/dev/null")


def _cancel(cluster: SlurmCluster, job: str) -> None:
    cluster.run("scancel", job)


def _node(state: str, cluster: SlurmCluster, job: str) -> None:
    cluster.run("scontrol", "update", "nodename=n1", f"state={state}", "reason=bad disk")


FAULTS = (
    Fault("preempted_job", partial(_job, _preempt, "low"), r"SLURM has preempted job \d+ \(PREEMPTED", 5.0, lacks=missing),
    Fault("cancelled_job", partial(_job, _cancel), r"job \d+ of SLURM was cancelled \(CANCELLED", 5.0, lacks=missing),
    Fault("draining_node", partial(_job, partial(_node, "drain")), r"node n1 is draining: 'bad disk'", 1.0, lacks=missing),
    Fault(
        "node_set_down",
        partial(_job, partial(_node, "down")),
        r"SLURM has taken node n1 from job \d+; node n1 is down: 'bad disk'",
        5.0,
        lacks=missing,
    ),
)
HEALTHY = (Fault("slurm_job", partial(_job, lambda cluster, job: None), "", 1.0, lacks=missing),)
