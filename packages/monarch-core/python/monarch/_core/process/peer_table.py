"""Other processes as this one knows them: their ends, and the ids of hosts in each job.

Each job has its own ids of hosts. A process is in the job of its client; a service is in the job of its host's agent, and serves other
jobs, in each of which its host has an id of its own.
"""

from __future__ import annotations

from monarch._core.process.ends import ProcEnds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core._native import Process as NativeProcess


class PeerTable:
    """Processes by their ids, and jobs by the ids of their clients."""

    __slots__ = ("_native", "ended", "job", "reached", "serves", "services_of", "watched")

    def __init__(self, native: NativeProcess) -> None:
        self._native = native
        # The client of this process's job.
        self.job: int = native.agent_uid
        self.ended = ProcEnds(native)
        # Processes whose ends are watched, because they own meshes that this process refers to.
        self.watched: set[int] = set()
        # Processes that other wheels have placed on other hosts by `reach`.
        self.reached: set[int] = set()
        # In a service: the id of its host in each job that it serves.
        self.serves: dict[int, int] = {}
        # In a process that uses services: by the job of a service's agent, the host of the service and its job, as this process knows them.
        self.services_of: dict[int, tuple[int, int]] = {}

    def host_in(self, job: int) -> int:
        """The id of this process's host in a job. In the job of another client this process belongs to the client's host."""
        return self._native.agent_uid if job in (0, self.job) else self.serves.get(job, job)

    def pid_of(self, proc: int) -> int | None:
        """The pid of another process, if this one knows it: the client has started all local procs."""
        end = self._native.ended(proc)
        return end.pid if end is not None else dict(self._native.alive_procs()).get(proc)
