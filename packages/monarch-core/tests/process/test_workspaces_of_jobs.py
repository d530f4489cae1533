"""The places of jobs' code that share a host, a home or a `WORKSPACE_DIR`, and their leftovers after the jobs."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually
from mesh_actors import Probe
from worker_processes import Workers

from monarch._core.hosts.bootstrap_command import default_arguments
from monarch.actor import BootstrapCommand
from tools.sync_client import SyncClient


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def workers(home: Path) -> Iterator[Workers]:
    with Workers(1, "tls", env={**os.environ, "MONARCH_HOME": str(home)}) as made:
        yield made


def agents(home: Path) -> set[str]:
    """The directories of agents of this host."""
    return {path.name for path in (home / "workspaces").glob("*/*")}


def wait_until_gone(path: Path) -> None:
    eventually(f"{path} is removed", path.exists, lambda exists: not exists)


def test_jobs_of_a_host_keep_own_code(workers: Workers, tmp_path: Path):
    with (
        SyncClient.start(tmp_path / "a", workers.secret, *workers.addresses) as a,
        SyncClient.start(tmp_path / "b", workers.secret, *workers.addresses) as b,
    ):
        a.sync("A")
        assert a.read() == "A"
        b.sync("B")
        assert (a.read(), b.read()) == ("A", "B")
        b.sync("B2")
        a.end()
        assert b.read() == "B2"
        b.end()


def test_hosts_of_a_job_keep_own_code(workers: Workers, tmp_path: Path):
    workers.start()
    with SyncClient.start(tmp_path / "a", workers.secret, *workers.addresses) as a:
        a.sync("first", 0)
        a.sync("second", 1)
        assert (a.read(0), a.read(1)) == ("first", "second")
        a.end()


def test_next_job_is_sent_only_changes(workers: Workers, tmp_path: Path):
    with SyncClient.start(tmp_path / "a", workers.secret, *workers.addresses) as a:
        assert ": 1 file, " in a.sync("same")
        a.sync("other")
        a.sync("same")
        left = a.workspace()
        a.end()
    # The removal comes when the last process of the job has ended.
    wait_until_gone(left)
    with SyncClient.start(tmp_path / "b", workers.secret, *workers.addresses) as b:
        assert ": 0 files, 0 B" in b.sync("same")
        assert b.workspace() != left and b.read() == "same"
        b.end()


def test_agent_removes_workspaces_at_its_end(workers: Workers, home: Path, tmp_path: Path):
    with SyncClient.start(tmp_path / "a", workers.secret, *workers.addresses) as a:
        a.sync("A")
        assert len(agents(home)) == 1
        workers.processes[0].terminate()
        assert workers.processes[0].wait() == 0
    assert list(home.rglob("*")) == [home / "workspaces"]


def test_next_agent_removes_leftovers_only(workers: Workers, home: Path, tmp_path: Path):
    workers.start()
    with (
        SyncClient.start(tmp_path / "a", workers.secret, workers.addresses[0]) as a,
        SyncClient.start(tmp_path / "b", workers.secret, workers.addresses[1]) as b,
    ):
        a.sync("A")
        b.sync("B")
        left, used = a.workspace(), b.workspace()
        procs = [os.pidfd_open(pid) for pid in workers.procs_of(0)]
        workers.processes[0].kill()
        workers.processes[0].wait()
        for proc in procs:
            select.select([proc], [], [])
            os.close(proc)
        workers.start()
        wait_until_gone(left.parent)
        assert used.is_dir() and b.read() == "B"
        b.end()


def test_shared_workspace_dir_is_separated(home: Path, tmp_path: Path):
    """All of them have their directories there; files of the program stay."""
    chosen = tmp_path / "chosen"
    with (
        Workers(2, "tls", env={**os.environ, "MONARCH_HOME": str(home), "WORKSPACE_DIR": str(chosen)}) as workers,
        SyncClient.start(tmp_path / "a", workers.secret, *workers.addresses) as a,
    ):
        a.sync("first", 0)
        a.sync("second", 1)
        assert (a.read(0), a.read(1)) == ("first", "second")
        put = Path(a.ask("put", 0))
        assert put.is_relative_to(chosen) and not home.exists()
        a.end()
        for process in workers.processes:
            process.terminate()
            assert process.wait() == 0
    assert [path for path in chosen.rglob("*") if not path.is_dir()] == [put]
    assert put.read_text() == "of the program"


def test_program_started_by_command_has_the_workspace(workers: Workers):
    """The program has the workspace even before it is a proc."""
    with workers.attach() as hosts:
        forked = hosts.spawn_procs().spawn("probe", Probe)
        script = "-c", 'export SEEN=$WORKSPACE_DIR; exec "$0" "$@"'
        command = BootstrapCommand("/bin/sh", args=[*script, sys.executable, *default_arguments()])
        started = hosts.spawn_procs(bootstrap_command=command).spawn("probe", Probe)
        (expected,) = forked.environment.call_one("WORKSPACE_DIR").get()
        assert started.environment.call_one("WORKSPACE_DIR", "SEEN").get() == [expected, expected]
