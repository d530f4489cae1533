"""Errors for a thread, a process or a file that the kernel does not give: they name the limit, of the user or of this process."""

from __future__ import annotations

import os
import resource
import threading


def can_start() -> bool:
    """Whether this process may start a thread now."""
    try:
        threading.Thread(target=int, daemon=True).start()
    except RuntimeError:
        return False
    return True


def files_hint() -> str:
    """For EMFILE."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"this process may have {soft:,} open files (RLIMIT_NOFILE): `ulimit -n` raises it, or close some"


def hint() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    # The kernel does not apply the limit of root to root.
    if soft == resource.RLIM_INFINITY or os.geteuid() == 0:
        return "threads need memory, and room in `pids.max` of the control group"
    return f"this user may have {soft:,} threads and processes in all (RLIMIT_NPROC): `ulimit -u` raises it, or end some"
