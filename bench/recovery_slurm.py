"""The time until a SLURM job that has lost a process, a worker or a node is whole again: healed, or cancelled and submitted anew.

    python bench/recovery_slurm.py [--rounds N]

A real cluster of three nodes (tools/slurm), a job of two nodes and, for the loss of a node, a spare; real workers. The clock starts when
the loss is known, for which both variants have to wait and which is given separately, and stops when a client that starts then has an
answer from an actor on every host. The script that uses a process of an actor starts it again. There is no queue here: on a cluster that
has one, a new submission waits in it as well.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from requirement import require, slurm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from monarch.job import SlurmJob
from tools.slurm.cluster import SlurmCluster

# The defaults of SLURM: the cluster of the tests schedules more eagerly.
SCHEDULING = "SchedulerParameters=default_queue_depth=100"
CLIENT = """
import sys
from monarch.actor import Actor, endpoint
from monarch.job import job_load

class Host(Actor):
    @endpoint
    def ready(self):
        return True

if __name__ == "__main__":
    assert all(job_load(sys.argv[1]).state().hosts.spawn_procs().spawn("host", Host).ready.call().get(60).values())
"""


PROCESS = """
import os, sys, time
import monarch.actor
from monarch.actor import Actor, SupervisionError, endpoint
from monarch.job import job_load

class Host(Actor):
    @endpoint
    def ready(self):
        return True

    @endpoint
    def die(self):
        os.kill(os.getpid(), 9)

if __name__ == "__main__":
    monarch.actor.unhandled_fault_hook = lambda failure: None
    hosts = job_load(sys.argv[1]).state().hosts
    actors = hosts.spawn_procs().spawn("host", Host)
    actors.ready.call().get(60)
    start = time.monotonic()
    try:
        actors.slice(hosts=1).die.call_one().get(60)
    except SupervisionError:
        known = time.monotonic()
    hosts.spawn_procs().spawn("host", Host).ready.call().get(60)
    print(known - start, time.monotonic() - known)
"""


class Bench:
    """One cluster; each measurement has a job of its own."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        (folder / "client.py").write_text(CLIENT)
        (folder / "process.py").write_text(PROCESS)

    def measure(self, loss: str, heal: bool) -> tuple[float, float, float]:
        """Seconds until the loss of the host is known, from there until all hosts have joined, and until all have answered."""
        job = SlurmJob({"hosts": 2}, python_exe=sys.executable, job_dir=str(self._folder / "jobs"), spares=1 if loss == "node" else 0)
        job.apply()
        self._joined(job)
        self._answered(job)
        start = time.monotonic()
        if loss == "process":
            argv = [sys.executable, "-W", "ignore", str(self._folder / "process.py"), str(self._folder / "state.json")]
            said = subprocess.run(argv, check=True, cwd=self._folder, timeout=60, stdout=subprocess.PIPE, text=True).stdout.split()
            if heal:
                job.kill()
                self._cluster.clear()
                return float(said[0]), float(said[1]), float(said[1])
            whole = self._whole_again(job, False)
            self._cluster.clear()
            return float(said[0]), *whole
        if loss == "node":
            self._cluster.kill_node(1)
        else:
            self._kill_worker(job)
        while job.status().hosts[1].phase != "lost":
            time.sleep(0.01)
        known = time.monotonic()
        whole = self._whole_again(job, heal)
        if loss == "node":
            self._cluster.start_node(1, wait=False)
        self._cluster.clear()
        return known - start, *whole

    def _whole_again(self, job: SlurmJob, heal: bool) -> tuple[float, float]:
        known = time.monotonic()
        if heal:
            job.heal()
        else:
            job.kill()
            # The spare is for healing; two nodes are left.
            job = SlurmJob({"hosts": 2}, python_exe=sys.executable, job_dir=str(self._folder / "jobs"))
            job.apply()
        self._joined(job)
        joined = time.monotonic()
        self._answered(job)
        answered = time.monotonic()
        job.kill()
        return joined - known, answered - known

    def _joined(self, job: SlurmJob) -> None:
        while any(host.phase != "joined" for host in job.status().hosts):
            time.sleep(0.01)

    def _answered(self, job: SlurmJob) -> None:
        path = self._folder / "state.json"
        path.unlink(missing_ok=True)
        job.dump(str(path))
        subprocess.run([sys.executable, str(self._folder / "client.py"), str(path)], check=True, cwd=self._folder, timeout=60)

    def _kill_worker(self, job: SlurmJob) -> None:
        assert job._ids is not None
        folder, job_id = Path(job._ids["directory"]), job._ids["job_id"]
        pid, node = (folder / "hosts" / "1.pid").read_text().strip(), (folder / "nodes").read_text().split()[1]
        self._cluster.run("srun", f"--jobid={job_id}", "--overlap", "-N1", "-n1", f"--nodelist={node}", "kill", "-9", pid)


def main() -> int:
    parser = argparse.ArgumentParser(description="Recovery within a SLURM job against submitting it anew.")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    require(slurm())
    with tempfile.TemporaryDirectory(prefix="recovery-slurm-") as name:
        folder = Path(name)
        os.environ["MONARCH_HOME"] = str(folder / "home")
        with SlurmCluster(folder / "slurm", 3, extra=SCHEDULING) as cluster:
            os.environ.update(cluster.env)
            bench = Bench(cluster, folder)
            print("| lost | known after | | whole again: joined | whole again: answered |\n|---|---:|---|---:|---:|")
            for loss in ("process", "worker", "node"):
                # The variants alternate, so that other load on the machine affects both.
                found = [(bench.measure(loss, True), bench.measure(loss, False)) for _ in range(rounds)]
                healed, anew = ([statistics.median(times) for times in zip(*one, strict=True)] for one in zip(*found, strict=True))
                print(f"| {loss} | {healed[0]:.2f} s | healed | {healed[1]:.2f} s | {healed[2]:.2f} s |")
                print(f"| | {anew[0]:.2f} s | cancelled and submitted anew | {anew[1]:.2f} s | {anew[2]:.2f} s |")
                faster = [f"{100 * (1 - healed[index] / anew[index]):.0f} %" for index in (1, 2)]
                print(f"| | | faster by | {faster[0]} | {faster[1]} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
