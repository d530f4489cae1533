"""One allocation of a job whose machines come from a launcher: its hosts as the scheduler knows them, and how it ended."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from monarch.job._job.launcher import Host, HostStatus, JobStatus, Launcher, LogFile
from monarch.job.errors import JobEndedError

_TAIL_LINES = 10
_TAIL_BYTES = 4096


class Allocation:
    """The allocation that a job has now; the job may be killed and applied anew while a thread waits for these hosts."""

    def __init__(
        self,
        title: str,
        launcher: Launcher,
        ids: dict[str, Any],
        sizes: Mapping[str, int],
        logs: list[LogFile],
    ) -> None:
        self.title = title
        self.launcher = launcher
        self.ids = ids
        self.sizes = sizes
        self.logs = logs
        # The most seconds between two queries, while the job waits for hosts; a launcher with cheap queries lowers it.
        self.longest_pause = 1.0
        # Set when the job is killed.
        self.stopped = threading.Event()
        # The last result of `poll`.
        self.seen = JobStatus("unknown", "", [])

    def poll(self) -> JobStatus:
        """The launcher's status, with the addresses that are known."""
        status = self.launcher.poll(self.ids)
        addresses = self.launcher.addresses(self.ids)
        known = {Host(host.mesh, host.rank): host for host in status.hosts}
        hosts: list[HostStatus] = []
        for mesh, size in self.sizes.items():
            found = addresses.get(mesh, [])
            for rank in range(size):
                address = found[rank] if rank < len(found) else None
                host = known.get(Host(mesh, rank)) or HostStatus(mesh, rank, "", "waiting", None, "")
                if status.phase == "ended" and host.phase != "lost":
                    host = host._replace(phase="lost", detail=host.detail or "the job has ended")
                elif host.phase == "waiting" and address is not None:
                    host = host._replace(phase="joined")
                hosts.append(host._replace(address=address or host.address))
        self.seen = status._replace(hosts=hosts)
        return self.seen

    def ended(self, status: JobStatus) -> JobEndedError:
        """The error for an allocation that is over: the scheduler's words, and the last output of the workers."""
        words = "\n".join(f"{host}: {text}" for host, text in self.last_words().items())
        ending = getattr(self.launcher, "ending", None)
        state, reason = (status.phase, status.detail) if ending is None else ending()
        detail = status.detail
        if state == status.phase:
            what = "ended"
        else:
            # The scheduler's own text is the first line.
            line, _, detail = detail.partition("\n")
            what = f"ended: {line}"
        cause = "\n".join(filter(None, (detail, words)))
        return JobEndedError(what, title=self.title, cause=cause, state=state, reason=reason)

    def last_words(self) -> dict[Host, str]:
        """The tail of each worker's stderr, or of its stdout where that is empty."""
        found: dict[Host, str] = {}
        for log in sorted(self.logs, key=lambda log: log.stream != "err"):
            text = tail(log.path)
            if text and log.stream in ("err", "out"):
                found.setdefault(Host(log.mesh, log.rank), text)
        return found


def tail(path: str, lines: int = _TAIL_LINES, most_bytes: int = _TAIL_BYTES) -> str:
    """The last lines of a file; empty if it cannot be read."""
    try:
        with open(path, "rb") as f:
            f.seek(0, 2)
            f.seek(max(f.tell() - most_bytes, 0))
            return "\n".join(f.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
