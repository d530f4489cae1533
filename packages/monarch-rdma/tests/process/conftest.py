"""Failures that reach the root after a test do not end pytest; and pairs of processes for every path."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from memory_actors import Owner, Reader

import monarch.actor
from monarch.actor import attach_to_workers, this_host


@pytest.fixture(scope="session", autouse=True)
def failures_do_not_end_pytest() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)
        yield


class Pair(NamedTuple):
    """An owner of memory and a reader of it, with the path that lies between."""

    path: str
    owner: Any
    reader: Any


PATHS = ("local", "shm", "cma", "shm-staged", "tcp")


@contextlib.contextmanager
def _other_host() -> Iterator[Any]:
    """A host whose network is another one, and that is reached by a socket which is a file."""
    folder = tempfile.mkdtemp()
    address = f"ipc://{folder}/worker"
    argv = ["-c", "from monarch._core.cli import main; main()", "worker", "--listen", address]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    worker = subprocess.Popen(["unshare", "--net", sys.executable, *argv], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        if not line.startswith("listening"):
            pytest.skip("no network namespaces here") if not os.environ.get("CI") else pytest.fail(line)
        hosts = attach_to_workers(workers=[address])
        yield hosts
        hosts.shutdown().get()
    finally:
        worker.kill()
        worker.communicate()
        shutil.rmtree(folder)


@contextlib.contextmanager
def make_pair(path: str) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(_other_host()) if path == "tcp" else this_host()
        meshes = [hosts.spawn_procs(name="owner")]
        if path != "local":
            meshes.append(this_host().spawn_procs(name="reader"))
        owner = meshes[0].spawn("owner", Owner, path == "shm")
        reader = meshes[-1].spawn("reader", Reader, path == "shm-staged")
        yield Pair(path, owner, reader)
        for mesh in meshes:
            mesh.stop().get()


@pytest.fixture(params=PATHS, scope="module")
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Both live as long as the module."""
    with make_pair(request.param) as made:
        yield made


@pytest.fixture(params=PATHS[1:])
def mortals(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A pair in two processes, for one test, which may kill them."""
    with make_pair(request.param) as made:
        yield made
