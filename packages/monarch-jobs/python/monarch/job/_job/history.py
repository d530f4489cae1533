"""What happened to a job, as rows of the table `job_events`: an event with the name of the table, whose fields are its columns.

Observers begin with the first `state()`, after the submission: what happened before is kept, and emitted with its own time when this
process records. Hosts that are lost are noticed while the job has features, which is where observers come from.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from monarch.job._job import hooks
from monarch.job._job.job_state import host_meshes

if TYPE_CHECKING:
    from monarch.actor import HostMesh
    from monarch.extension import Listening
    from monarch.job._job.launcher import HealReport

TABLE = "job_events"
# The most events that wait for an observer.
_MOST = 100


class History:
    """Of one job in this process. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MOST)
        self._listening: Listening | None = None
        self._job: hooks.Job | None = None
        self._meshes: Mapping[str, HostMesh] = {}
        # Places of hosts of these meshes that were reported as lost.
        self._lost: set[tuple[str, int]] = set()

    def add(self, job: hooks.Job, event: str, *, host: str | None = None, detail: str | None = None) -> None:
        """Reports an event, or keeps it until this process records."""
        row: dict[str, Any] = {
            "timestamp_us": int(time.time() * 1e6),
            "job": hooks.title(job),
            "kind": hooks.kind_name(job),
            "event": event,
        }
        row |= {name: value for name, value in (("host", host), ("detail", detail)) if value}
        with self._lock:
            self._waiting.append(row)
        self._emit()

    def _emit(self) -> None:
        from monarch.extension.events import emit, is_recording

        with self._lock:
            while self._waiting and is_recording():
                emit(TABLE, **self._waiting.popleft())

    def attached(self, job: hooks.Job, meshes: Mapping[str, object]) -> None:
        """The client has handles of these meshes, new ones."""
        hosts = host_meshes(meshes)
        with self._lock:
            self._job, self._meshes, self._lost = job, hosts, set()
        self.add(job, "attached", detail=", ".join(f"{name}: {hosts[name].size()}" if name in hosts else name for name in meshes))

    def healed(self, job: hooks.Job, report: HealReport) -> None:
        """Lost hosts are back, or are missing still."""
        for event, hosts in (("restarted", report.restarted), ("replaced", report.replaced), ("missing", report.missing)):
            for one in hosts:
                self.add(job, event, host=one.name or f"{one.mesh}[{one.rank}]", detail=one.detail or f"{one.mesh}[{one.rank}]")

    def observed(self) -> None:
        """The job has features: reports what waits, and from now on hosts that are lost."""
        from monarch.extension import listen

        self._emit()
        with self._lock:
            if self._listening is None:
                self._listening = listen(self._on_event)

    def _on_event(self, event: object) -> None:
        from monarch.extension import HostEnd
        from monarch.extension.mesh import lost_hosts

        if not isinstance(event, HostEnd):
            return
        with self._lock:
            job, meshes = self._job, self._meshes
            found = [(name, rank, why) for name, mesh in meshes.items() for rank, why in lost_hosts(mesh).items()]
            fresh = [one for one in found if one[:2] not in self._lost]
            self._lost.update(one[:2] for one in fresh)
        if job is None:
            return
        for name, rank, why in fresh:
            self.add(job, "host_lost", host=event.hostname, detail=f"{name}[{rank}]: {why}")

    def killed(self, job: hooks.Job) -> None:
        """The allocation is about to be ended, and observers with it."""
        with self._lock:
            listening, self._listening, self._meshes = self._listening, None, {}
        if listening is not None:
            listening.stop()
        self.add(job, "killed")
