"""The job of a keeper: an ordinary second client, which reads the job's state file and never writes it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from monarch.extension import HostEnd, listen
from monarch.job._files import audit
from monarch.job._job import saved
from monarch.job._job.trait import JobTrait, refresh
from monarch.job.errors import JobEndedError

if TYPE_CHECKING:
    from monarch.actor import HostMesh

# An end that no host reports, such as that of a job which another machine has killed.
LOOK_SECONDS = 60.0


class KeptJob:
    """`record` is the saved job, `path` its state file, where healed hosts are found; `modules` are imported for its class."""

    def __init__(self, record: str, path: str | None, modules: Sequence[str]) -> None:
        for module in modules:
            importlib.import_module(module)
        self.job = saved.decode(record.encode(), JobTrait)
        self.job._life.path = path
        self.job._life.content = record.encode()
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._is_attached = False

    def hosts(self) -> Mapping[str, HostMesh]:
        """The meshes, the same objects while the hosts are the same; `JobEndedError` where the job is over."""
        with self._lock:
            refresh(self.job)
            status = self.job.status()
            if status.phase in ("none", "ended"):
                raise JobEndedError("has ended", title=self.job._title, cause=status.detail, state=status.phase, reason=status.detail)
            if not self._is_attached:
                self._is_attached = True
                listen(self._heard)
                audit.record("attach", f"{self.job._title} (keeper)")
            return self.job._state()._meshes

    def _heard(self, event: object) -> None:
        if isinstance(event, HostEnd):
            self._news.set()

    def watch(self, over: Callable[[str], object]) -> None:
        """Calls `over` with the reason once the job has ended, or all its hosts are lost. Looks when a host ends, and each minute."""
        threading.Thread(target=self._watch, args=(over,), name="monarch-keeper-job", daemon=True).start()

    def _watch(self, over: Callable[[str], object]) -> None:
        while True:
            self._news.wait(LOOK_SECONDS)
            self._news.clear()
            try:
                status = self.job.status()
            except Exception as e:  # a scheduler that does not answer is asked again
                print(f"the job cannot be looked at: {type(e).__name__}: {e}", flush=True)
                continue
            if status.phase in ("none", "ended"):
                over(f"the job has ended: {status.detail}")
                return
            if status.hosts and all(host.phase == "lost" for host in status.hosts):
                over("all hosts are lost")
                return
