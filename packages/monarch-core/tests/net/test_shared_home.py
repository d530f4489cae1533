"""Code sync to hosts that share a home, as the nodes of a cluster do: every worker listens at the same address."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tools.netns import Network, Process
from tools.netns.cluster import MONARCH, PORT
from tools.netns.requirement import need_namespaces
from tools.sync_client import SyncClient


class SharedHome:
    """A client's host, and two hosts with workers."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.folder = folder
        self.client_host, *self.hosts = network.hosts
        self.secret = folder / "secret"
        self.secret.touch(0o600)
        self.secret.write_bytes(secrets.token_bytes(32))
        self.env = {**os.environ, "MONARCH_HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "cache")}
        self.env.pop("WORKSPACE_DIR", None)
        self.workers: list[Process] = []
        for host in self.hosts:
            argv = ["-c", MONARCH, "worker", "--listen", f"tcp://*:{PORT}", "--secret-file", str(self.secret)]
            worker = host.popen(sys.executable, *argv, stdout=subprocess.PIPE, env=self.env)
            self.workers.append(worker)
            assert worker.stdout is not None
            assert worker.stdout.readline() == f"listening at tcp://{host.name}:{PORT}\n"

    def client(self, name: str, *hosts: int) -> SyncClient:
        addresses = [f"tcp://{self.hosts[host].name}:{PORT}" for host in hosts]
        argv = SyncClient.command(self.folder / name, self.secret, *addresses)
        return SyncClient(self.client_host.popen(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.env))


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedHome]:
    need_namespaces()
    with ExitStack() as stack:
        network = Network(3)
        made: list[SharedHome] = []

        def end() -> None:
            network.close()
            for worker in made[0].workers if made else ():
                worker.communicate()

        stack.callback(end)
        made.append(SharedHome(network, tmp_path))
        yield made[0]


def test_jobs_with_shared_home_keep_own_code(shared: SharedHome) -> None:
    with shared.client("a", 0) as a, shared.client("b", 1) as b:
        a.sync("A")
        b.sync("B")
        assert (a.read(), b.read()) == ("A", "B")
        a.end()
        assert b.read() == "B"
        b.end()


def test_hosts_with_shared_home_keep_own_code(shared: SharedHome) -> None:
    with shared.client("a", 0, 1) as a:
        a.sync("first", 0)
        a.sync("second", 1)
        assert (a.read(0), a.read(1)) == ("first", "second")
        assert {a.workspace(i).parts[-3] for i in (0, 1)} == {host.name for host in shared.hosts}
        a.end()


def test_agent_leaves_other_hosts_alone(shared: SharedHome) -> None:
    with shared.client("a", 0) as a, shared.client("b", 1) as b:
        a.sync("A")
        b.sync("B")
        left = a.workspace()
        shared.workers[0].terminate()
        assert shared.workers[0].wait() == 0
        assert not left.exists() and b.read() == "B"
        b.end()
