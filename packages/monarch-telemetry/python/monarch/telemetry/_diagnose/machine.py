"""Processes of this machine: those of a job by their pids, and a client that gives no answer."""

from __future__ import annotations

import os

from monarch.telemetry._diagnose.inspected import Looked, procs_of
from monarch.telemetry._diagnose.snapshot import Host, Proc, Snapshot


def without_answer(number: int, pid: int | None, error: str) -> Snapshot:
    """The snapshot of a job whose client gives no answer: the state of its process in the kernel."""
    host = os.uname().nodename
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            kernel = file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        kernel = ""
    if kernel not in ("T", "t"):
        # An answer that comes too late is no fault of the job: the machine may be overloaded.
        return Snapshot(missing=(f"process {pid or number}: {error}",))
    client = Proc(f"{number:016x}", host, pid or 0, "client", kernel=kernel, answered=False)
    return Snapshot((client,), (), (Host(host),), sources=(f"process {pid} of this machine",))


def local_pids(looked: Looked) -> list[int]:
    """The pids of the processes of this machine."""
    return [int(proc["pid"]) for host, proc in procs_of(looked) if proc["pid"] and _is_local(host, int(proc["pid"]))]


def _is_local(host: str, pid: int) -> bool:
    """Whether a process runs on this machine: by the name of its host and its pid."""
    return host == os.uname().nodename and os.path.isdir(f"/proc/{pid}/task")
