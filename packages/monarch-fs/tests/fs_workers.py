"""Agents of hosts in processes of this machine, for tests of several hosts: each may have a prefix and variables of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

from monarch.actor import attach_to_workers


class Agent(NamedTuple):
    """What an agent is started with: words before its command, such as `unshare`, and variables beside those of this process."""

    prefix: Sequence[str] = ()
    variables: Mapping[str, str] = {}


@contextlib.contextmanager
def running(agents: Sequence[Agent]) -> Generator[tuple[Any, list[subprocess.Popen[str]]]]:
    """The mesh of the hosts and the processes of their agents; all end with the block."""
    workers: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        addresses = [f"ipc://{folder}/{rank}" for rank in range(len(agents))]
        try:
            for agent, address in zip(agents, addresses, strict=True):
                command = [sys.executable, "-c", "from monarch.extension.cli import main; main()", "worker", "--listen", address]
                environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **agent.variables}
                workers.append(subprocess.Popen([*agent.prefix, *command], stdout=subprocess.PIPE, text=True, env=environment))
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
