"""Hosts for tests of gather mounts, and the entry point of their service where the installed wheel lacks it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from monarch.actor import attach_to_workers

# For scripts of readers: waits as `tail -f` does.
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


@contextlib.contextmanager
def worker_hosts(number: int) -> Generator[tuple[Any, list[subprocess.Popen[str]]]]:
    """A mesh of hosts of this machine, and their agents."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    workers: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        addresses = [f"ipc://{folder}/{rank}" for rank in range(number)]
        try:
            for address in addresses:
                argv = [sys.executable, "-c", "from monarch.extension.cli import main; main()", "worker", "--listen", address]
                workers.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment))
            for worker in workers:
                assert worker.stdout is not None
                assert worker.stdout.readline().startswith("listening")
            hosts = attach_to_workers(workers=addresses)
            yield hosts, workers
            with contextlib.suppress(Exception):
                hosts.shutdown().exception(10)
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()
