"""A real SLURM cluster for the tests, and jobs on it whose workers are stand-ins."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import monarch.actor
from monarch.job import JobStatus, SlurmJob
from tools.slurm.cluster import SlurmCluster, missing
from tools.slurm.configuration import Node

WORKER = Path(__file__).with_name("stand_in_worker.py")
NODE = Node(cpus=2, memory_mb=2000, gpus=2)


@pytest.fixture(scope="session", autouse=True)
def failures_do_not_end_pytest() -> Iterator[None]:
    """A failure may reach the root after the test that wanted it is over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)
        yield


@pytest.fixture(scope="session")
def started_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if lacking := missing():
        pytest.skip(lacking)
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), [NODE] * 3) as cluster:
        yield cluster


@pytest.fixture
def cluster(started_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SlurmCluster]:
    """Three idle nodes; what a test leaves running is ended."""
    monkeypatch.setenv("SLURM_CONF", started_cluster.env["SLURM_CONF"])
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield started_cluster
    started_cluster.clear()


@pytest.fixture
def python_exe(tmp_path: Path) -> str:
    """An interpreter that is a worker whatever it is asked to run."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {WORKER} "$@"\n')
    path.chmod(0o755)
    return str(path)


class Jobs:
    """Makes jobs, and waits for what becomes of them."""

    def __init__(self, cluster: SlurmCluster, python_exe: str, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self._python_exe = python_exe
        self._made: list[SlurmJob] = []

    def __call__(self, meshes: dict[str, int], **arguments: object) -> SlurmJob:
        arguments = {"python_exe": self._python_exe, "job_dir": str(self.folder), **arguments}
        job = SlurmJob(meshes, **arguments)  # pyright: ignore[reportArgumentType]
        self._made.append(job)
        return job

    def joined(self, job: SlurmJob) -> JobStatus:
        """The status once every host has published its address."""
        return self.until(job, lambda status: all(host.phase == "joined" for host in status.hosts))

    def until(self, job: SlurmJob, reached: Callable[[JobStatus], bool]) -> JobStatus:
        """Looks until it is so; a status that is the end and is not what is waited for is a failure."""
        while True:
            status = job.status()
            if reached(status):
                return status
            assert status.phase != "ended", f"{status.detail}\n{self.outputs()}"
            time.sleep(0.05)  # sleeps: the scheduler offers nothing to wait for

    def tell(self, address: str | None, words: str) -> None:
        """Says to a stand-in what it is to do."""
        assert address is not None
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as connection:
            connection.sendall(f"{words}\n".encode())

    def outputs(self) -> str:
        """What the jobs of this test have printed."""
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in sorted(self.folder.glob("*.out")))


@pytest.fixture
def jobs(cluster: SlurmCluster, python_exe: str, tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(cluster, python_exe, tmp_path / "jobs")
    yield made
    for job in made._made:
        job.kill()


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch, python_exe: str, tmp_path: Path) -> Iterator[Jobs]:
    """Jobs on a cluster of the test's own, whose nodes it may kill."""
    if lacking := missing():
        pytest.skip(lacking)
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with SlurmCluster(tmp_path / "slurm", [NODE] * 3) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
        yield Jobs(cluster, python_exe, tmp_path / "jobs")


@pytest.fixture(scope="session", autouse=True)
def expiring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SlurmCluster, str]]:
    """A job whose time limit passes while other tests run: SLURM's shortest is a minute."""
    if missing():
        yield None  # pyright: ignore[reportReturnType]
        return
    folder = tmp_path_factory.mktemp("expiring")
    with SlurmCluster(folder / "slurm", 1) as cluster:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
            patch.setenv("MONARCH_HOME", str(folder / "home"))
            python = folder / "python"
            python.write_text(f'#!/bin/sh\nexec {sys.executable} {WORKER} "$@"\n')
            python.chmod(0o755)
            job = SlurmJob({"a": 1}, python_exe=str(python), job_dir=str(folder / "jobs"), time_limit="1")
            job.apply()
            job.dump(str(folder / "state.json"))
        yield cluster, str(folder)
