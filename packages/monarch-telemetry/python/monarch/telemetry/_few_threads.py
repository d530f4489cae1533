"""Errors for a thread, a process or a file that the kernel does not give: they name the limit, of the user or of this process."""

from __future__ import annotations

import resource
import threading

from monarch.extension import thread_limit


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
    limit = thread_limit()
    if not limit:
        return "threads need memory, and room in `pids.max` of the control group"
    return f"this user may start no more threads and processes{limit}: raise the limit, or end some"
