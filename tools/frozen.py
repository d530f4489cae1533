"""Stops a process for a test, and waits until it has stopped.

`kill` returns before that: the kernel wakes one thread of the process for SIGSTOP, and the others go on until it runs. On a machine
under load that lasts long enough for a call to be answered.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

# Seconds after which the process counts as one that cannot be stopped.
_LONGEST = 20.0
_POLL = 0.001
# Stopped, traced, ended and not yet waited for, ending.
_STOPPED = "TtZX"


def freeze(pid: int) -> None:
    """Sends SIGSTOP and returns when no thread of the process runs, or when it has ended. `TimeoutError` after 20 s."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + _LONGEST
    while running := [state for state in _states(pid) if state not in _STOPPED]:
        if time.monotonic() > end:
            raise TimeoutError(f"process {pid} runs on after SIGSTOP: its threads have the states {running}")
        time.sleep(_POLL)


def _states(pid: int) -> list[str]:
    found: list[str] = []
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            found.append(task.read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended
    return found
