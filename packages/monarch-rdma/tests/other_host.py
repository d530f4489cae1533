"""A host of another network on this machine."""

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
def other_host(**environment: str) -> Iterator[Any]:
    """A host whose network is another one, and that is reached by a socket which is a file."""
    folder = tempfile.mkdtemp()
    address = f"ipc://{folder}/worker"
    argv = ["-c", "from monarch._core.cli import main; main()", "worker", "--listen", address]
    environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
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
