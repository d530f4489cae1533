"""The hosts of the parts `tcp` and `verbs` of `bench/weights.py`."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def client_of_two_hosts(script: str, *arguments: str) -> None:
    """Runs the script again in a network namespace, with the address of a worker in another one, and the file of its secret."""
    sys.path.insert(0, str(ROOT))
    from tools.netns import Network
    from tools.netns.cluster import Worker

    with tempfile.TemporaryDirectory() as folder, Network(2) as network:
        here, there = network.hosts
        secret = Path(folder, "secret")
        secret.touch(0o600)
        secret.write_bytes(secrets.token_bytes(32))
        worker = Worker(there, {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, secret)
        here.run(sys.executable, "-W", "ignore", script, *arguments, "--worker", worker.address, str(secret))


def hosts_with_devices() -> AbstractContextManager[Any]:
    """A host that shares this machine and its RDMA devices, but no network."""
    sys.path.insert(0, str(ROOT / "packages" / "monarch-rdma" / "tests"))
    from other_hosts import other_hosts

    return other_hosts()
