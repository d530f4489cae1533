"""A signal that a thread other than the main one of another process gets, for tests of commands with handlers in Python."""

from __future__ import annotations

import os
from pathlib import Path


def signal_beside_main_thread(pid: int, number: int) -> None:
    """Sends it to a process so that one of its other threads, which does not block it, gets it.

    Linux prefers the thread whose number is given to `kill`; with that of the process it would be the main thread. That one learns of it
    when it runs Python code again, as of a signal that comes just before it waits.
    """
    for thread in Path(f"/proc/{pid}/task").iterdir():
        if int(thread.name) == pid:
            continue
        blocked = next(line for line in (thread / "status").read_text().splitlines() if line.startswith("SigBlk:"))
        if not int(blocked.split()[1], 16) >> number - 1 & 1:
            os.kill(int(thread.name), number)
            return
    raise AssertionError(f"process {pid} has no other thread that signal {number} could go to")
