"""How lost hosts of a job's meshes are replaced, for code that has such a mesh and does not know the job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from monarch.job._job import hooks
from monarch.job._job.launcher import MOST_NAMED, described
from monarch.job.errors import JobEndedError, JobError

if TYPE_CHECKING:
    from monarch.actor import HostMesh
    from monarch.extension.mesh import HealedHosts
    from monarch.job._job.job_state import JobState


class Healing:
    """One job, as its meshes heal it. Several runs may ask at once, each for its part of the hosts: one heals, the others find it done."""

    def __init__(self, job: hooks.Job, lock: threading.Lock, connect: Callable[[], JobState]) -> None:
        self._job = job
        self._lock = lock
        self._connect = connect
        # A mesh of this allocation has no hosts in a later one.
        self._apply_id = job.apply_id

    def set(self, state: JobState) -> None:
        # Verbs of the command line, which make no mesh, must load no native module.
        from monarch.extension.mesh import set_healer

        for name in state:
            set_healer(state[name], self._of(name))

    def _of(self, mesh: str) -> Callable[[float], HealedHosts]:
        return lambda seconds: self._healed(mesh, seconds)

    def _healed(self, mesh: str, seconds: float) -> HealedHosts:
        """A host that another process has healed, or whose worker has joined since, is no lost one: the mesh has it."""
        from monarch.extension.mesh import HealedHosts

        end = time.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):
            raise JobError("is not healed: another run is healing it", title=hooks.title(self._job))
        try:
            self._check()
            report = self._job.heal(timeout=max(end - time.monotonic(), 0.0))
            # New handles without any wait: workers that were started again have new ones.
            hosts = self._connect()[mesh]
        except JobError:
            self._check()
            raise
        finally:
            self._lock.release()
        self._check()
        missing = [host for host in report.missing if host.mesh == mesh]
        why = "; ".join(described(host) for host in missing[:MOST_NAMED])
        return HealedHosts(hosts, frozenset(host.rank for host in missing), why)

    def _check(self) -> None:
        if self._job.apply_id != self._apply_id:
            raise JobEndedError("has ended", title=hooks.title(self._job), state="ended")


def first_mesh(state: JobState) -> HostMesh:
    return state[next(iter(state))]
