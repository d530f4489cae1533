"""The job of a keeper: an ordinary second client, which reads the job's state file and never writes it.

A host that has lost a client, as after a silence of some seconds, takes nothing from that client any more, although it lives: it knows the
client as one that has ended. Another process of the same job can attach to it. So a keeper with such a host has a successor.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from monarch.actor import MonarchError
from monarch.config import get_global_config
from monarch.extension import HostEnd, listen
from monarch.extension.mesh import lost_hosts
from monarch.job._files import audit
from monarch.job._job import hooks, saved
from monarch.job._job.job_state import meshes_of
from monarch.job._job.trait import JobTrait, refresh
from monarch.job.errors import JobEndedError, JobError

if TYPE_CHECKING:
    from monarch.actor import HostMesh, ProcMesh

# Seconds between two queries for an end that no host reports, such as a kill of the job on another machine.
LOOK_SECONDS = 60.0
# Seconds from the notice of a host's end to the second query.
AGAIN_SECONDS = 0.5
# Seconds for a host to accept a process.
ANSWER_SECONDS = 5.0


class LostHost(NamedTuple):
    """A host that this process has lost; `is_ended`: its worker is over, as far as the scheduler knows."""

    mesh: str
    rank: int
    name: str
    why: str
    is_ended: bool


class KeptJob:
    """`record` is the saved job, `path` its state file, where healed hosts are found; `modules` are imported for its class."""

    def __init__(self, record: str, path: str | None, modules: Sequence[str]) -> None:
        for module in modules:
            importlib.import_module(module)
        self.job = saved.decode(record.encode(), JobTrait)
        life = self.job.__core__
        life.path, life.content = path, record.encode()
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._is_attached = False
        # The last meshes that were given, and the addresses of their hosts then.
        self._given: Mapping[str, HostMesh] = {}
        self._addresses: dict[tuple[str, int], str | None] = {}

    def hosts(self) -> Mapping[str, HostMesh]:
        """The meshes, the same objects while the hosts are the same; `JobEndedError` where the job is over."""
        with self._lock:
            refresh(self.job)
            status = self.job.status()
            if status.phase in ("none", "ended"):
                raise JobEndedError("has ended", title=hooks.title(self.job), cause=status.detail, state=status.phase, reason=status.detail)
            if not self._is_attached:
                self._is_attached = True
                listen(self._on_event)
                audit.record("attach", f"{hooks.title(self.job)} (keeper)", trust_all=get_global_config()["trust_all"] or None)
            self._given = meshes_of(hooks.state(self.job))
            self._addresses = {(host.mesh, host.rank): host.address for host in status.hosts}
            return self._given

    def lost(self) -> list[LostHost]:
        """The hosts that this process has lost and that have no other worker since; `hosts` has no use of them."""
        with self._lock:
            reasons = {(name, rank): why for name, mesh in self._given.items() for rank, why in lost_hosts(mesh).items()}
            if not reasons:
                return []
            refresh(self.job)
            found: list[LostHost] = []
            for host in self.job.status().hosts:
                place = host.mesh, host.rank
                why = reasons.get(place)
                if why is None:
                    continue
                if host.phase == "lost":
                    # A reason of the scheduler has precedence over that of the runtime.
                    found.append(LostHost(*place, host.name, why, host.detail != why))
                elif host.address is not None and host.address == self._addresses.get(place):
                    found.append(LostHost(*place, host.name, why, False))
            return found

    def check(self, places: Sequence[tuple[str, int]], seconds: float = ANSWER_SECONDS) -> None:
        """`JobError` names those of these hosts that do not take a process within `seconds`."""
        end = time.monotonic() + seconds
        meshes = self.hosts()
        looks: dict[str, ProcMesh] = {}
        for mesh, rank in places:
            if mesh in meshes:
                looks[f"{mesh}[{rank}]"] = meshes[mesh].flatten("rank").slice(rank=rank).spawn_procs(name="keeper_look")
        silent: list[str] = []
        for name, procs in looks.items():
            try:
                procs.initialized.get(max(end - time.monotonic(), 0.0))
            except (MonarchError, TimeoutError):
                silent.append(name)
            else:
                procs.stop()
        if silent:
            raise JobError(f"no answer of {', '.join(silent)} within {seconds:g} s", title=hooks.title(self.job))

    def _on_event(self, event: object) -> None:
        if isinstance(event, HostEnd):
            print(f"a host has ended: {event.describe()}", flush=True)
            self._news.set()

    def watch(self, over: Callable[[str], object]) -> None:
        """Calls `over` with the reason once the job has ended, or all its hosts are lost.

        Looks when a host ends, more and more seldom after that, since its link ends before its process and before the scheduler knows, and
        each minute.
        """
        threading.Thread(target=self._watch, args=(over,), name="monarch-keeper-job", daemon=True).start()

    def _watch(self, over: Callable[[str], object]) -> None:
        pause = LOOK_SECONDS
        while True:
            if self._news.wait(pause):
                self._news.clear()
                pause = AGAIN_SECONDS
            else:
                pause = min(2 * pause, LOOK_SECONDS)
            try:
                status = self.job.status()
            except Exception as e:  # a scheduler that does not answer is queried again
                print(f"the job cannot be looked at: {type(e).__name__}: {e}", flush=True)
                continue
            if status.phase in ("none", "ended"):
                over(f"the job has ended: {status.detail}")
                return
            if status.hosts and all(host.phase == "lost" for host in status.hosts):
                over("all hosts are lost")
                return
