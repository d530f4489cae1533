"""Launchers of other wheels: a factory in the entry-point group `monarch.launcher` is enough."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.job import BackendMissingError, HostStatus, JobError, JobStatus, Launcher, Plan, StateFileError, job_load
from monarch.job._job.launcher_job import AdaptedJob
from tools import installed_wheel


class Files:
    """One file per host; what is in it is the host's address."""

    kind = "files"

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._meshes: dict[str, int] = arguments["meshes"]

    def _names(self) -> list[tuple[str, int]]:
        return [(mesh, rank) for mesh, size in self._meshes.items() for rank in range(size)]

    def plan(self) -> Plan:
        return Plan(self.kind, f"{self._meshes}\n")

    def submit(self, plan: Plan, secret: bytes) -> dict[str, Any]:
        assert plan == self.plan() and len(secret) == 32
        for mesh, rank in self._names():
            Path(f"{mesh}.{rank}").write_text("")
        return {"number": 4711, "folder": os.getcwd()}

    def poll(self, ids: dict[str, Any]) -> JobStatus:
        hosts = [
            HostStatus(mesh, rank, "", "waiting" if os.path.exists(f"{mesh}.{rank}") else "lost", None, "") for mesh, rank in self._names()
        ]
        return JobStatus("ended" if all(host.phase == "lost" for host in hosts) else "running", "", hosts)

    def addresses(self, ids: dict[str, Any]) -> dict[str, list[str | None]]:
        found: dict[str, list[str | None]] = {mesh: [] for mesh in self._meshes}
        for mesh, rank in self._names():
            path = Path(f"{mesh}.{rank}")
            found[mesh].append((path.read_text() or None) if path.exists() else None)
        return found

    def relaunch(self, ids: dict[str, Any], lost: list[tuple[str, int]]) -> list[tuple[str, int]]:
        again = [(mesh, rank) for mesh, rank in lost if rank != 2]
        for mesh, rank in again:
            Path(f"{mesh}.{rank}").write_text("ipc:///again")
        return again

    def cancel(self, ids: dict[str, Any]) -> None:
        for mesh, rank in self._names():
            Path(f"{mesh}.{rank}").unlink(missing_ok=True)


def odd(arguments: dict[str, Any]) -> int:
    return 3


@pytest.fixture(autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Entry points of another wheel, some of which give no launcher."""
    targets = {"files": "test_launcher_job:Files", "odd": "test_launcher_job:odd", "broken": "no_such_module_here:x"}
    with installed_wheel.used(installed_wheel.install(tmp_path_factory.mktemp("site"), "filing", {"monarch.launcher": targets})):
        yield


def test_adapted_job_runs_through_its_life(folder: Path) -> None:
    assert isinstance(Files({"meshes": {}}), Launcher)
    job = AdaptedJob("files", {"meshes": {"a": 3}})
    assert str(job.plan()) == "{'a': 3}\n"
    job.apply()
    assert sorted(os.listdir(folder)) == ["a.0", "a.1", "a.2"]
    assert "4711" in job._where()
    Path("a.1").write_text("tcp://x:1")
    assert [(host.phase, host.address) for host in job.status().hosts] == [("waiting", None), ("joined", "tcp://x:1"), ("waiting", None)]
    job.dump("x.json")
    copy = job_load("x.json")
    assert isinstance(copy, AdaptedJob)
    assert (copy.apply_id, copy._ids, copy.plan(), copy.can_run(job)) == (job.apply_id, job._ids, job.plan(), True)
    assert not copy.can_run(AdaptedJob("files", {"meshes": {"a": 4}}))
    assert job.heal() == ([], [], [])
    job.kill()
    assert os.listdir(folder) == ["x.json"]
    assert copy.status().phase == "ended"


def test_healing_starts_again_what_it_can() -> None:
    job = AdaptedJob("files", {"meshes": {"a": 3}})
    job.apply()
    Path("a.0").write_text("tcp://x:1")
    os.unlink("a.1")
    os.unlink("a.2")
    report = job.heal(timeout=5)
    assert [host.address for host in report.restarted] == ["ipc:///again"]
    assert [(host.rank, host.phase) for host in report.missing] == [(2, "lost")]
    assert report.replaced == []
    job.kill()


def test_worker_that_ends_again_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler is asked while a worker is waited for: this wait would last longer than the test may."""
    monkeypatch.setattr(Files, "relaunch", lambda self, ids, lost: lost)
    monkeypatch.setattr(AdaptedJob, "_join_timeout", lambda self: 3600.0)
    job = AdaptedJob("files", {"meshes": {"a": 2}})
    job.apply()
    Path("a.0").write_text("tcp://x:1")
    os.unlink("a.1")
    report = job.heal()
    assert ([(host.rank, host.phase) for host in report.missing], report.restarted, report.replaced) == ([(1, "lost")], [], [])
    job.kill()


def test_factories_that_are_none() -> None:
    with pytest.raises(JobError, match="the factory of 'odd' gave a int, which is no launcher"):
        AdaptedJob("odd", {"meshes": {"a": 1}}).plan()
    with pytest.raises(
        BackendMissingError,
        match=r"the backend 'broken' cannot be loaded\n  filing 1\.0: entry point 'broken' of monarch\.launcher .*: ModuleNotFoundError",
    ):
        AdaptedJob("broken", {"meshes": {"a": 1}}).plan()
    job = AdaptedJob("files", {"meshes": {"a": 1}})
    job.kind = "gone"
    job.dump("x.json")
    with pytest.raises(StateFileError, match="no backend 'gone' is installed") as found:
        job_load("x.json")
    assert found.value.hint is not None and "monarch.launcher" in found.value.hint
