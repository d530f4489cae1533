"""A real SLURM cluster for the tests, and jobs on it whose workers are stand-ins."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_jobs import NODE, WORKER, Jobs

from monarch.job import SlurmJob
from tools.project import ROOT
from tools.slurm.cluster import SlurmCluster, missing


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


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> str:
    """Nodes import what this process does."""
    folders = [str(ROOT / "packages" / name / "python") for name in ("monarch-core", "monarch-jobs", "monarch-spmd")]
    path = ":".join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    return path


@pytest.fixture
def jobs(cluster: SlurmCluster, python_exe: str, tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(cluster, python_exe, tmp_path / "jobs")
    yield made
    for job in made.made:
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
