"""The mark in the environment of a command and of all its descendants.

A guard finds the descendants of its command by their parents. If the guard and its watchdog have been killed, the parents of the
descendants are gone too, and the mark finds them. A command started by a command has the marks of both.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "MONARCH_COMMAND_MARK"
# Seconds between two scans, and the longest wait for a killed process: one that the kernel blocks is given up.
_AGAIN, _LONGEST = 0.01, 2.0


def new_mark() -> str:
    return os.urandom(8).hex()


def marked(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """The environment with this mark added to its marks."""
    return {**environment, VARIABLE: f"{environment[VARIABLE]},{mark}" if environment.get(VARIABLE) else mark}


def kill_marked(mark: str) -> None:
    """Kills all processes with the mark; returns when they have ended."""
    end = time.monotonic() + _LONGEST
    while (found := _with(mark)) and time.monotonic() < end:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # the process has ended meanwhile, or belongs to another user
                continue
        time.sleep(_AGAIN)


def _with(mark: str) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    environment = file.read()
            except OSError:  # the process has ended meanwhile, or belongs to another user
                continue
            if any(entry.startswith(VARIABLE.encode()) and mark.encode() in entry for entry in environment.split(b"\0")):
                found.append(int(name))
    return found
