"""Hosts for tests of gather mounts, and the entry point of their service where the installed wheel lacks it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fs_workers import Agent, running

# For scripts of readers: waits in the same way as `tail -f`.
UNTIL = """
import time
def until(done):
    while not (found := done()):  # polls: a mount has no event that a reader could wait for
        time.sleep(0.01)  # sleeps: a mount has no event that a reader could wait for
    return found
"""


def declare_gather(folder: Path) -> None:
    """Makes the service known to this process and to those that it starts."""
    if "gather" in entry_points(group="monarch.service").names:
        return
    info = folder / "fs_gather_hosts-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fs-gather-hosts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[monarch.service]\ngather = monarch.fs._gather.service:SERVICE\n")
    sys.path.append(str(folder))


def worker_hosts(number: int) -> AbstractContextManager[tuple[Any, list[subprocess.Popen[str]]]]:
    """A mesh of hosts of this machine, and their agents."""
    return running([Agent()] * number)
