"""ProcessJob: processes are started, found again, started again and ended; their part of the work is another test's."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually

from monarch.actor import Future, this_host
from monarch.job import HostStatus, JobEndedError, JoinTimeoutError, ProcessJob, SubmitError, job_load, process
from monarch.job._job.launcher_job import LauncherJob
from monarch.job._machine import sessions


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(process, "_WORKER", "stand_in_worker")
    monkeypatch.setenv("MODE_DIRECTORY", str(tmp_path))
    return tmp_path


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What was to be attached, per mesh."""
    found: dict[str, list[Any]] = {}

    def attach(*, workers: list[Any], name: str, secret: bytes | None) -> Any:
        assert secret is not None and len(secret) == 32
        found[name] = list(workers)
        return this_host()

    monkeypatch.setattr("monarch.actor.attach_to_workers", attach)
    # The worker is no host of the job, and must not be shut down with it.
    monkeypatch.setattr("monarch.job._job.launcher_job.shut_down", lambda meshes: None)
    return found


@pytest.fixture
def applied() -> Iterator[Callable[..., ProcessJob]]:
    made: list[ProcessJob] = []

    def apply(*arguments: Any) -> ProcessJob:
        job = ProcessJob(*arguments)
        made.append(job)
        job.apply()
        return job

    yield apply
    for job in made:
        job.kill()


def addresses(workers: list[Any]) -> list[str]:
    return [worker.get() if isinstance(worker, Future) else worker for worker in workers]


def pids(job: LauncherJob) -> list[int]:
    assert job._ids is not None
    return [worker["pid"] for worker in job._ids["workers"]]


def running(job: LauncherJob) -> list[int]:
    assert job._ids is not None and job.apply_id is not None
    return sessions.members(set(pids(job)), job.apply_id)


def wait_for(job: ProcessJob, phase: str, count: int) -> list[HostStatus]:
    """The hosts, when that many are in the phase."""
    return eventually(
        f"{count} hosts {phase}", lambda: job.status().hosts, lambda hosts: sum(host.phase == phase for host in hosts) == count
    )


def test_processes_logs_and_nothing_left(applied: Callable[..., ProcessJob], attached: dict[str, list[Any]], tmp_path: Path) -> None:
    job = applied({"a": 2, "b c": 1}, {"GREETING": "hello"})
    assert job._ids is not None and job.apply_id is not None
    directory = job._ids["directory"]
    state = job.state(None)
    assert list(state) == ["a", "b c"]
    assert {name: addresses(workers) for name, workers in attached.items()} == {
        "a": [f"worker<x>@ipc://{directory}/0.sock", f"worker<x>@ipc://{directory}/1.sock"],
        "b c": [f"worker<x>@ipc://{directory}/2.sock"],
    }
    status = job.status()
    assert status.phase == "running"
    assert [(host.mesh, host.rank, host.phase) for host in status.hosts] == [("a", 0, "joined"), ("a", 1, "joined"), ("b c", 0, "joined")]
    assert os.stat(directory).st_mode & 0o077 == 0
    assert len({os.getsid(pid) for pid in pids(job)}) == 3
    logs = {(log.mesh, log.rank, log.stream): Path(log.path) for log in job._logs()}
    assert logs["b c", 0, "out"].read_text() == "worker 2 hello\n"
    assert logs["a", 1, "err"].read_text() == "worker 1 complains\n"
    # The second state() gives the same handles.
    assert job.state(None).a == state.a
    # A script that loads the file is on the same processes.
    job.dump("x.json")
    assert "secret" not in Path("x.json").read_text().replace(f"{directory}/secret", "")
    loaded = job_load("x.json")
    assert isinstance(loaded, ProcessJob)
    assert loaded.status().hosts == status.hosts
    members = running(job)
    assert len(members) == 6
    job.kill()
    assert [pid for pid in members if (found := sessions._stat(pid)) is not None and found.state not in "ZX"] == []
    assert not os.path.exists(directory)
    assert os.listdir(tmp_path / "home" / "jobs") == []
    assert loaded.status().phase == "ended"
    loaded.kill()


def test_workers_inherit_the_clients_environment(applied: Callable[..., ProcessJob], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_JOB_SHRINK", "1")
    job = applied({"a": 2})
    wait_for(job, "joined", 2)
    environments = [Path(f"/proc/{pid}/environ").read_text().split("\0") for pid in pids(job)]
    found = [dict(line.partition("=")[::2] for line in lines) for lines in environments]
    assert [variables["MONARCH_SERVICE_PROC_RANK"] for variables in found] == ["0", "1"]
    assert len(set(found[0]["MONARCH_SERVICE_PROC_IDS"].split(","))) == 2
    assert "MONARCH_JOB_SHRINK" not in found[0]


def test_worker_that_dies_at_once_fails_its_meshes(
    applied: Callable[..., ProcessJob], attached: dict[str, list[Any]], stand_in: Path
) -> None:
    for rank in "01":
        (stand_in / rank).write_text("die")
    job = applied({"a": 2})
    job.state(None)
    for worker in attached["a"]:
        with pytest.raises(Exception, match=r"ended(?s:.*)all workers ended(?s:.*)worker [01] complains") as found:
            worker.get()
        assert isinstance(found.value, JobEndedError)
    assert job.status().hosts[0].detail == "its worker ended with exit code 5"


def test_late_worker_is_named(
    applied: Callable[..., ProcessJob], attached: dict[str, list[Any]], stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stand_in / "1").write_text("mute")
    job = applied({"a": 2})
    wait_for(job, "joined", 1)
    (log,) = [Path(log.path) for log in job._logs() if (log.rank, log.stream) == (1, "err")]
    eventually("a line in the worker's log", log.read_text)
    monkeypatch.setattr(ProcessJob, "_join_timeout", lambda self: 0.05)
    job.state(None)
    with pytest.raises(JoinTimeoutError) as found:
        attached["a"][1].get()
    assert "1 of 2 hosts joined within 0.05 s" in str(found.value)
    assert "a[1]: worker 1 complains" in str(found.value)


def test_kill_ends_the_wait(applied: Callable[..., ProcessJob], attached: dict[str, list[Any]], stand_in: Path) -> None:
    (stand_in / "0").write_text("mute")
    job = applied({"a": 1})
    job.state(None)
    job.kill()
    with pytest.raises(JobEndedError, match="was killed|ended"):
        attached["a"][0].get()


def test_lost_workers_are_started_again(applied: Callable[..., ProcessJob], attached: dict[str, list[Any]], folder: Path) -> None:
    job = applied({"a": 2})
    job.__core__.path = str(folder / "x.json")
    job.state()
    job.dump("x.json")
    wait_for(job, "joined", 2)
    before = pids(job)
    os.kill(before[1], signal.SIGKILL)
    hosts = wait_for(job, "lost", 1)
    assert (hosts[1].detail, hosts[0].phase) == ("its worker died of signal 9", "joined")
    orphan = set(running(job)) - set(before)
    report = job.heal()
    after = pids(job)
    assert (after[0], len(report.restarted) + len(report.replaced), report.missing) == (before[0], 1, [])
    assert after[1] != before[1]
    # The leftovers of the dead worker ended before its successor began.
    assert len(orphan & set(running(job))) == 1
    assert [host.phase for host in job.status().hosts] == ["joined", "joined"]
    loaded = job_load("x.json")
    assert isinstance(loaded, ProcessJob)
    assert pids(loaded) == after
    assert job.heal() == ([], [], [])
    new = job.state("x.json")
    assert new.a == this_host()


def test_failed_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    real = sessions.start
    started: list[int] = []

    def start(*arguments: Any, **options: Any) -> Any:
        if len(started) == 2:
            raise OSError(11, "Resource temporarily unavailable")
        session = real(*arguments, **options)
        started.append(session.pid)
        return session

    monkeypatch.setattr(sessions, "start", start)
    job = ProcessJob({"a": 3})
    with pytest.raises(SubmitError, match=r"could not be started(?s:.*)Resource temporarily unavailable"):
        job.apply()
    assert not job.active
    assert len(started) == 2
    assert [pid for pid in started if sessions._stat(pid) is not None] == []
    assert os.listdir(temporary) == []
    assert os.listdir(tmp_path / "home" / "jobs") == []


def test_planted_record_ends_no_foreign_process(applied: Callable[..., ProcessJob], folder: Path) -> None:
    victim = applied({"v": 1})
    wait_for(victim, "joined", 1)
    (pid,) = pids(victim)
    other = applied({"a": 1})
    wait_for(other, "joined", 1)
    other.dump("x.json")
    other.kill()
    record = json.loads(Path("x.json").read_text())
    kept = folder / "kept"
    kept.mkdir()
    record["job"]["ids"] |= {"directory": str(kept), "workers": [{"mesh": "a", "rank": 0, "pid": pid, "start": 1}]}
    Path("x.json").write_text(json.dumps(record))
    planted = job_load("x.json")
    assert planted.status().phase == "ended"
    with pytest.raises(RuntimeError, match="is no directory of workers, and is left alone"):
        planted.kill()
    assert victim.status().phase == "running"
    assert kept.exists()


def test_too_long_a_path_for_sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(SubmitError, match="too long a path for sockets"):
        ProcessJob({"a": 1}).apply()
    assert os.listdir(deep) == []


def test_interpreter_is_the_clients(applied: Callable[..., ProcessJob]) -> None:
    job = applied({"a": 1})
    assert Path(f"/proc/{pids(job)[0]}/exe").resolve() == Path(sys.executable).resolve()
