"""Hosts whose network is another one, and that are reached by sockets which are files: their memory is reached by streams."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import attach_to_workers


@contextlib.contextmanager
def other_hosts(count: int = 1, **environment: str) -> Iterator[Any]:
    folder = tempfile.mkdtemp()
    addresses = [f"ipc://{folder}/{n}" for n in range(count)]
    environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    workers: list[subprocess.Popen[str]] = []
    try:
        for address in addresses:
            argv = ["-c", "from monarch.extension.cli import main; main()", "worker", "--listen", address]
            argv = ["unshare", "--net", sys.executable, *argv]
            workers.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment))
        for worker in workers:
            assert worker.stdout is not None
            line = worker.stdout.readline()
            if not line.startswith("listening"):
                pytest.skip("no network namespaces here") if not os.environ.get("CI") else pytest.fail(line)
        hosts = attach_to_workers(workers=addresses)
        yield hosts
        hosts.shutdown().get()
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
        shutil.rmtree(folder)
