"""Several hosts on this machine, which tests can kill: each is a worker process."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from monarch.actor import HostMesh, attach_to_workers


class Hosts(NamedTuple):
    """A mesh, and the worker process of each host."""

    mesh: HostMesh
    workers: list[subprocess.Popen[str]]

    def kill(self, number: int) -> None:
        """Ends a host as a power cut does, as far as a process can."""
        self.workers[number].kill()


def attach(folder: str, numbers: range, workers: list[subprocess.Popen[str]]) -> Any:
    """Starts workers and attaches to them."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    addresses = [f"ipc://{folder}/{number}" for number in numbers]
    started: list[subprocess.Popen[str]] = []
    for address in addresses:
        argv = [sys.executable, "-c", "from monarch.extension.cli import main; main()", "worker", "--listen", address]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment))
    workers += started
    for worker in started:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        assert line.startswith("listening"), line
    return attach_to_workers(workers=addresses)


@contextlib.contextmanager
def several_hosts(count: int) -> Iterator[Hosts]:
    folder = tempfile.mkdtemp()
    workers: list[subprocess.Popen[str]] = []
    try:
        mesh = attach(folder, range(count), workers)
        yield Hosts(mesh, workers)
        mesh.shutdown().get()
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
        shutil.rmtree(folder)
