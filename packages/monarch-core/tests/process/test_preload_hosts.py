"""Preloaded interpreters of workers: each job has its own, which ends with the job."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monarch.actor import Actor, Workspace, endpoint
from monarch.actor.testing import local_hosts

CLIENT = """
import sys
from monarch.actor import Actor, attach_to_workers, endpoint

class Probe(Actor):
    @endpoint
    def interpreter(self):
        import preload_of_worker
        return preload_of_worker.PID

hosts = attach_to_workers(workers=[sys.argv[1]], secret=bytes.fromhex(sys.argv[2]))
procs = hosts.spawn_procs({"procs": 2}, preload=["preload_of_worker"])
pids = set(procs.spawn("probe", Probe).interpreter.call().get().values())
print(*pids, flush=True)
sys.stdin.read()
"""


class Probe(Actor):
    @endpoint
    def interpreter(self) -> int:
        import preload_of_worker  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

        return preload_of_worker.PID


class Synchronised(Actor):
    @endpoint
    def value(self) -> tuple[int, int]:
        found = sys.modules["preload_synchronised"]
        return found.VALUE, found.PID  # type: ignore[attr-defined]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "preload_of_worker.py").write_text("import os\nPID = os.getpid()\n")
    return "preload_of_worker"


def test_interpreter_of_a_worker_ends_with_the_mesh(module: str):
    with local_hosts(2) as hosts:
        with hosts.spawn_procs({"procs": 2}, preload=[module]) as procs:
            pids = set(procs.spawn("probe", Probe).interpreter.call().get().values())
        assert len(pids) == 2
        ends = [os.pidfd_open(pid) for pid in pids]
    for end in ends:
        select.select([end], [], [])
        os.close(end)


def test_synchronised_code_is_imported_again(tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    with local_hosts(2) as hosts:
        found: list[set[tuple[int, int]]] = []
        for value in (1, 2, 2):
            (source / "preload_synchronised.py").write_text(f"import os\nPID = os.getpid()\nVALUE = {value}\n")
            asyncio.run(hosts.sync_workspace(Workspace({source: "code"}, env=None)))
            with hosts.spawn_procs({"procs": 2}, preload=["preload_synchronised"]) as procs:
                found.append(set(procs.spawn("probe", Synchronised).value.call().get().values()))
    assert [{value for value, _ in each} for each in found] == [{1}, {2}, {2}]
    # Each host has one interpreter for both of its procs, and another one for other code.
    assert [len(each) for each in found] == [2, 2, 2]
    assert found[0].isdisjoint(found[1])


def is_over(descriptor: int, seconds: float = 0.0) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


def test_jobs_of_two_clients_have_their_own(module: str, tmp_path: Path):
    (tmp_path / "secret").write_bytes(os.urandom(32))
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "client.py").write_text(CLIENT)
    address = f"ipc://@monarch-preload-{os.getpid()}"
    monarch = str(Path(sys.executable).with_name("monarch"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "WORKSPACE_DIR": str(tmp_path / "workspaces")}
    command = [monarch, "worker", "--listen", address, "--secret-file", str(tmp_path / "secret")]
    worker = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
    client = [sys.executable, str(tmp_path / "client.py"), address, (tmp_path / "secret").read_bytes().hex()]
    clients = [subprocess.Popen(client, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        found = [client.stdout.readline().split() for client in clients if client.stdout is not None]
        assert [len(pids) for pids in found] == [1, 1] and found[0] != found[1]
        first, second = (os.pidfd_open(int(pids[0])) for pids in found)
        clients[0].send_signal(signal.SIGKILL)
        assert is_over(first, 25)
        assert not is_over(second)
        clients[1].communicate()
        assert is_over(second, 25)
    finally:
        for process in (*clients, worker):
            process.kill()
            process.communicate()
