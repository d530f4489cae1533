"""Hosts of this machine: its own, or several worker processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Generator
from typing import Any

from monarch.actor import attach_to_workers, this_host


@contextlib.contextmanager
def local_hosts(count: int) -> Generator[Any]:
    """The hosts: this host for one, else workers of this machine, which end with the block."""
    if count == 1:
        yield this_host()
        return
    with tempfile.TemporaryDirectory() as folder:
        addresses = [f"ipc://{folder}/{number}" for number in range(count)]
        argv = [sys.executable, "-c", "from monarch.extension.cli import main; main()", "worker", "--listen"]
        workers = [subprocess.Popen([*argv, address], stdout=subprocess.PIPE, text=True) for address in addresses]
        try:
            for worker in workers:
                assert worker.stdout is not None
                worker.stdout.readline()
            mesh = attach_to_workers(workers=addresses)
            yield mesh
            mesh.shutdown().get()
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()
