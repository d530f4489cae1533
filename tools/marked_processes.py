"""The processes of one run, found by a mark in their environment, which a process inherits from its parent."""

from __future__ import annotations

import os
from pathlib import Path


def marked_processes(variable: str, mark: str) -> list[tuple[int, str]]:
    """Pid and command line of every process with this mark, except this one and those that have exited and wait to be reaped."""
    wanted = f"{variable}={mark}".encode()
    found: list[tuple[int, str]] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found.append((int(entry.name), command.strip()))
            except OSError:
                continue  # exited meanwhile, or a process of another user
    return sorted(found)
