"""The hosts of a job, used as programs use them: actors on all of them, and a worker that is killed."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from monarch.actor import Actor, endpoint, this_host

if TYPE_CHECKING:
    from monarch.actor import HostMesh
    from monarch.job._job.job_state import JobState

ANSWER_S = 60.0


class Resident(Actor):
    """An actor on a host of the job."""

    @endpoint
    def greet(self) -> str:
        return "here"

    @endpoint
    def worker(self) -> int | None:
        """The pid of the host's worker; None where the host is the client itself."""
        pid = os.getppid()
        while pid > 1:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if b"--listen" in f.read().split(b"\0"):
                    return pid
            with open(f"/proc/{pid}/stat", "rb") as f:
                pid = int(f.read().rpartition(b")")[2].split()[1])
        return None

    @endpoint
    def kill_worker(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)


def start_client() -> None:
    """Starts what this process needs for procs of its own."""
    this_host().spawn_procs().stop().get(ANSWER_S)


def silent_hosts(state: JobState) -> list[str]:
    """Runs actors on all hosts, and gives the meshes with one that does not answer."""
    return [name for name in state if set(_residents(state[name])) != {"here"}]


def _residents(mesh: HostMesh) -> list[str]:
    mesh.initialized.get(ANSWER_S)
    procs = mesh.spawn_procs({"conformance": 1})
    try:
        return list(procs.spawn("resident", Resident).greet.call().get(ANSWER_S).values())
    finally:
        procs.stop().get(ANSWER_S)


def kill_last_worker(state: JobState) -> tuple[str, int] | None:
    """Kills the worker of the last host of the last mesh, and gives its place; None where that host is the client itself."""
    name = list(state)[-1]
    mesh = state[name]
    labels = list(mesh.extent.labels)  # none where the mesh is the client's machine
    rank = len(mesh) - 1 if labels else 0
    host = mesh.slice(**{labels[0]: rank}) if labels else mesh
    procs = host.spawn_procs({"conformance": 1})
    resident = procs.spawn("resident", Resident)
    (pid,) = resident.worker.call().get(ANSWER_S).values()
    if pid is None:
        procs.stop().get(ANSWER_S)
        return None
    with contextlib.suppress(Exception):  # its host is gone before it answers
        resident.kill_worker.call(pid).get(ANSWER_S)
    return name, rank
