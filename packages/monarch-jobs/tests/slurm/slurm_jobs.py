"""Makes SLURM jobs for tests, and waits for their outcome."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from eventually import eventually

from monarch.job import JobStatus, SlurmJob
from tools.slurm.cluster import SlurmCluster
from tools.slurm.configuration import Node

WORKER = Path(__file__).with_name("slurm_worker.py")
NODE = Node(cpus=2, memory_mb=2000, gpus=2)


class Jobs:
    """Makes jobs on a cluster; their workers are stand-ins unless a job names others."""

    def __init__(self, cluster: SlurmCluster, python_exe: str, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self._python_exe = python_exe
        self.made: list[SlurmJob] = []

    def __call__(self, meshes: dict[str, int], **arguments: object) -> SlurmJob:
        arguments = {"python_exe": self._python_exe, "job_dir": str(self.folder), **arguments}
        job = SlurmJob(meshes, **arguments)  # pyright: ignore[reportArgumentType]
        self.made.append(job)
        return job

    def joined(self, job: SlurmJob) -> JobStatus:
        """The status once every host has published its address."""
        return self.until(job, lambda status: all(host.phase == "joined" for host in status.hosts))

    def until(self, job: SlurmJob, reached: Callable[[JobStatus], bool], seconds: float = 60.0) -> JobStatus:
        """Looks until it is so; a status that is the end and is not what is waited for is a failure."""

        def holds(status: JobStatus) -> bool:
            if reached(status):
                return True
            assert status.phase != "ended", f"{status.detail}\n{self.outputs()}"
            return False

        # The scheduler has no event to wait for.
        return eventually("the status of the job", job.status, holds, seconds)

    def tell(self, address: str | None, words: str) -> None:
        """Sends an order to a stand-in."""
        assert address is not None
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as connection:
            connection.sendall(f"{words}\n".encode())

    def outputs(self) -> str:
        """What the jobs of this test have printed."""
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in sorted(self.folder.glob("*.out")))

    def kill_worker(self, job: SlurmJob, rank: int, signal: str = "KILL") -> None:
        """Sends a signal to the worker of a rank of the allocation, on its node."""
        self._on_node(job, rank, "kill", f"-{signal}", str(self.worker_pid(job, rank)))

    def worker_pid(self, job: SlurmJob, rank: int) -> int:
        """The pid of the worker of a rank, on its node: nodes have PID namespaces of their own."""
        assert job._ids is not None
        return int((self.folder / job._ids["job_id"] / "hosts" / f"{rank}.pid").read_text())

    def runs(self, job: SlurmJob, rank: int, pid: int) -> bool:
        """Whether the node of a rank has a process of that number."""
        return "yes" in self._on_node(job, rank, "sh", "-c", f"kill -0 {pid} 2>/dev/null && echo yes || echo no")

    def _on_node(self, job: SlurmJob, rank: int, *command: str) -> str:
        assert job._ids is not None
        node = (self.folder / job._ids["job_id"] / "nodes").read_text().split()[rank]
        return self.cluster.run("srun", f"--jobid={job._ids['job_id']}", "--overlap", "-N1", "-n1", f"--nodelist={node}", *command)

    def start_again(self, job: SlurmJob) -> None:
        """Lets SLURM start a job that it has requeued, which it would do after two minutes (`cred_expire`).

        In the next second, not now: a node refuses a run whose credential is not of a later second than the end of the run before. slurmd
        reports "already killed, do not launch batch job" then, and the job ends as FAILED with exit code 1.
        """
        assert job._ids is not None
        self.cluster.run("scontrol", "update", f"JobId={job._ids['job_id']}", "StartTime=now+1")
