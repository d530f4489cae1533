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
    """A mesh, the worker process of each host, and where they listen."""

    mesh: HostMesh
    workers: list[subprocess.Popen[str]]
    folder: str

    def kill(self, number: int) -> None:
        """Ends a host as a power cut does, as far as a process can."""
        self.workers[number].kill()

    def replaced(self, number: int) -> HostMesh:
        """The mesh with a new worker in the place of a host, as a job gives it after healing."""
        new, count = len(self.workers), self.mesh.extent.nelements
        start(self.folder, range(new, new + 1), self.workers)
        return attach_to_workers(workers=[f"ipc://{self.folder}/{new if one == number else one}" for one in range(count)])


def start(folder: str, numbers: range, workers: list[subprocess.Popen[str]]) -> list[str]:
    """Starts workers; their addresses."""
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
    return addresses


def attach(folder: str, numbers: range, workers: list[subprocess.Popen[str]]) -> Any:
    """Starts workers and attaches to them."""
    return attach_to_workers(workers=start(folder, numbers, workers))


@contextlib.contextmanager
def several_hosts(count: int) -> Iterator[Hosts]:
    folder = tempfile.mkdtemp()
    workers: list[subprocess.Popen[str]] = []
    try:
        mesh = attach(folder, range(count), workers)
        yield Hosts(mesh, workers, folder)
        mesh.shutdown().get()
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
        shutil.rmtree(folder)
