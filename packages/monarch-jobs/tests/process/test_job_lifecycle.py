"""Submit, find again, connect, end: with a scheduler whose allocations are files."""

from __future__ import annotations

import os
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from file_job import FileJob, allocations

from monarch.actor import ExitReason, this_host
from monarch.extension import HostEnd
from monarch.job import DEFAULT_JOB_PATH, BatchJob, JobEndedError, JobError, JobState, ProcessJob, job_load
from monarch.job._job import trait


def test_job_without_apply_has_no_effect(folder: Path) -> None:
    job = FileJob("alloc")
    assert (job.active, job.apply_id) == (False, None)
    assert job.status() == ("none", "not submitted", [])
    job.kill()
    assert os.listdir(folder) == []


def test_allocation_is_made_once_and_ends_with_kill(folder: Path) -> None:
    job = FileJob("alloc")
    job.apply()
    first = job.apply_id
    assert job.active and first is not None
    assert allocations("alloc") == [first]
    job.apply()
    assert job.apply_id == first
    assert job.status().phase == "running"
    state = job.state(cached_path=None)
    assert state.hosts is state["hosts"]
    assert state.hosts == this_host()
    assert os.listdir(folder) == ["alloc"]
    for _ in range(2):
        job.kill()
        assert (job.active, job.apply_id, allocations("alloc")) == (False, None, [])
    job.apply()
    assert job.apply_id not in (None, first)


class OwnMesh:
    """A mesh of hosts that is made of nothing of ours."""

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts


class OwnMeshes(FileJob):
    def _state(self) -> JobState:
        meshes: dict[str, Any] = {self.mesh: OwnMesh(self.size), "here": this_host()}
        return JobState(meshes)


def test_job_has_meshes_of_its_own_kind() -> None:
    job = OwnMeshes("alloc", 3)
    for _ in range(2):
        state = job.state(cached_path=None)
        own: Any = state.hosts
        assert isinstance(own, OwnMesh) and own.hosts == 3
        assert state.here == this_host()
    assert repr(state).startswith("<JobState hosts: <")
    # Lost hosts are searched among the other meshes.
    job.__core__.history._on_event(HostEnd(1, "a host", ExitReason("host_lost")))
    job.kill()
    assert allocations("alloc") == []


class NoState(FileJob):
    def _state(self) -> JobState:
        state: Any = {"hosts": this_host()}
        return state


def test_state_of_another_type_names_the_job() -> None:
    job = NoState("alloc")
    with pytest.raises(TypeError, match=r"NoState\._state\(\): expected a JobState, not dict"):
        job.state(cached_path=None)
    job.kill()
    assert allocations("alloc") == []


def test_next_script_finds_the_job_again(capfd: pytest.CaptureFixture[str]) -> None:
    first = FileJob("alloc")
    first.state()
    second = FileJob("alloc")
    second.state()
    assert second.apply_id == first.apply_id
    assert second.active
    assert len(allocations("alloc")) == 1
    # Later calls do not read the file.
    os.unlink(".monarch/default/state.json")
    second.state()
    assert len(allocations("alloc")) == 1
    assert capfd.readouterr().err == ""


def test_kill_by_a_second_script_ends_the_job() -> None:
    first = FileJob("alloc")
    first.state()
    second = FileJob("alloc")
    second.state()
    second.kill()
    assert not second.active
    assert not os.path.exists(DEFAULT_JOB_PATH)
    assert first.status().phase == "ended"
    first.state()  # the allocation is over: this makes a new one
    assert allocations("alloc") == [first.apply_id]


def test_job_unfit_for_the_spec_is_killed(capfd: pytest.CaptureFixture[str]) -> None:
    small = FileJob("alloc", 1)
    small.state()
    large = FileJob("alloc", 2)
    large.state()
    assert allocations("alloc") == [large.apply_id]
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"monarch: the job in {DEFAULT_JOB_PATH} cannot run what is asked for now, it is killed: FileJob job ")
    assert small.apply_id is not None and small.apply_id in line
    assert job_load().apply_id == large.apply_id


def test_ended_job_is_replaced(capfd: pytest.CaptureFixture[str]) -> None:
    first = FileJob("alloc")
    first.state()
    first.allocation.unlink()
    second = FileJob("alloc")
    second.state()
    assert second.apply_id != first.apply_id
    assert job_load().apply_id == second.apply_id
    assert capfd.readouterr().err == ""


def test_state_path_can_be_chosen_or_omitted(folder: Path) -> None:
    FileJob("alloc").state("here/x.json")
    assert sorted(os.listdir(folder)) == ["alloc", "here"]
    again = FileJob("alloc")
    again.state("here/x.json")
    assert len(allocations("alloc")) == 1
    other = FileJob("alloc")
    other.state(None)
    assert len(allocations("alloc")) == 2
    again.kill()
    assert os.listdir("here") == []


def test_unserializable_job_is_not_cached() -> None:
    job = FileJob("alloc")
    job.odd = object()  # type: ignore[attr-defined]
    with pytest.warns(RuntimeWarning, match="attribute 'odd' is of type object"):
        job.state()
    assert not os.path.exists(DEFAULT_JOB_PATH)
    assert job.active


class Broken(FileJob):
    def __init__(self, folder: str, error: BaseException | None = None, kill_error: Exception | None = None) -> None:
        super().__init__(folder)
        self.error_, self.kill_error_ = error, kill_error

    def _create(self, client_script: str | None) -> None:
        super()._create(client_script)
        if self.error_ is not None:
            raise self.error_

    def _kill(self) -> None:
        if self.kill_error_ is not None:
            raise self.kill_error_
        super()._kill()

    def _where(self) -> str:
        return "id 4711"


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()])
def test_failed_submission_is_cancelled(error: BaseException, capfd: pytest.CaptureFixture[str]) -> None:
    job = Broken("alloc", error)
    with pytest.raises(type(error)) as found:
        job.state()
    assert found.value is error
    assert (job.active, job.apply_id, allocations("alloc")) == (False, None, [])
    assert not os.path.exists(DEFAULT_JOB_PATH)
    assert capfd.readouterr().err == ""


def test_failed_cancellation_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    job = Broken("alloc", KeyboardInterrupt(), RuntimeError("scheduler is away"))
    with pytest.raises(KeyboardInterrupt):
        job.apply()
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith("could not be cancelled (RuntimeError: scheduler is away), it may go on: id 4711")


class Hanging(Broken):
    let_go_ = threading.Event()

    def _kill(self) -> None:
        self.let_go_.wait()
        super()._kill()


def test_unresponsive_scheduler_does_not_delay_an_interrupt(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(trait, "CANCEL_SECONDS", 0.05)
    job = Hanging("alloc", KeyboardInterrupt())
    try:
        with pytest.raises(KeyboardInterrupt):
            job.apply()
        assert "no answer within 0 s), it may go on: id 4711" in capfd.readouterr().err
    finally:
        job.let_go_.set()
    for thread in threading.enumerate():
        if thread.name == "monarch-job-cancel":
            thread.join()


def test_every_step_of_a_kill_is_tried(tmp_path: Path) -> None:
    job = Broken("alloc")
    job.state()
    apply_id = job.apply_id
    assert apply_id is not None
    credentials = tmp_path / "home" / "jobs" / apply_id
    credentials.mkdir(parents=True)
    job.kill_error_ = RuntimeError("scheduler is away")
    with pytest.raises(JobError) as found:
        job.kill()
    assert "could not end the allocation (id 4711): RuntimeError: scheduler is away" in str(found.value)
    assert not credentials.exists()
    # A job that could not be ended can be killed again, also by other processes.
    assert job.active
    assert isinstance(job_load(), Broken)
    job.kill_error_ = None
    job.kill()
    assert (job.active, allocations("alloc"), os.path.exists(DEFAULT_JOB_PATH)) == (False, [], False)


def test_loaded_job_reconnects_or_has_ended(folder: Path) -> None:
    FileJob("alloc").state()
    loaded = job_load()
    assert loaded.active
    assert trait.reconnect(loaded).hosts is this_host()
    loaded.kill()
    with pytest.raises(JobEndedError, match="is not submitted"):
        trait.reconnect(loaded)
    FileJob("alloc").state()
    ended = job_load()
    os.unlink(os.path.join("alloc", allocations("alloc")[0]))
    with pytest.raises(JobEndedError, match=r"ended\n  its file is gone") as found:
        trait.reconnect(ended)
    assert found.value.reason == "its file is gone"


def test_surrounding_allocation_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    outer = FileJob("alloc", 2)
    outer.state()
    monkeypatch.setenv("MONARCH_BATCH_JOB", "1")
    inner = FileJob("another", 7)
    assert inner.state().hosts == this_host()
    assert inner.apply_id == outer.apply_id
    assert isinstance(trait.current(inner), BatchJob)
    assert allocations("another") == []
    trait.current(inner)._kill_at_exit()
    assert allocations("alloc") == []


def test_missing_surrounding_allocation_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_BATCH_JOB", "1")
    with pytest.raises(JobError, match="no such job"):
        FileJob("alloc").state()


@pytest.mark.parametrize(("shrink", "size"), [(None, 5), ("3", 3), ("9", 5)])
def test_local_reproduction_has_the_same_meshes(monkeypatch: pytest.MonkeyPatch, shrink: str | None, size: int) -> None:
    monkeypatch.setenv("MONARCH_JOB", "process")
    if shrink is not None:
        monkeypatch.setenv("MONARCH_JOB_SHRINK", shrink)
    job = FileJob("alloc", 5, "trainers")
    stand_in = trait.intended(job)
    assert isinstance(stand_in, ProcessJob)
    assert stand_in._sizes() == {"trainers": size}
    process = ProcessJob({"a": 1})
    assert trait.intended(process) is process


@pytest.mark.parametrize(("variable", "value"), [("MONARCH_JOB", "slurm"), ("MONARCH_JOB_SHRINK", "0"), ("MONARCH_JOB_SHRINK", "x")])
def test_invalid_settings_are_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv("MONARCH_JOB", "process")
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"{variable}={value}"):
        FileJob("alloc").state()


def test_features_of_other_wheels_name_their_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.job._job.features.is_missing", lambda name: True)
    job = FileJob("alloc")
    calls: list[tuple[Any, str]] = [
        (lambda: job.profile(), "monarch-telemetry"),
        (lambda: job.telemetry_query_client(), "monarch-telemetry"),
    ]
    for call, words in calls:
        with pytest.raises(NotImplementedError, match=words):
            call()


@pytest.mark.parametrize("method", ["enable_telemetry", "enable_admin"])
def test_job_runs_without_the_telemetry_wheel(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.job._job.features._warned", set[str]())
    monkeypatch.setattr("monarch.job._job.features.is_missing", lambda name: True)
    job = FileJob("alloc")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert getattr(job, method)() is job
        assert getattr(job, method)() is job
    (warning,) = caught
    assert f"JobTrait.{method} has no effect: the wheel monarch-telemetry is not installed" in str(warning.message)
    assert warning.filename == __file__
    state = job.state(None)
    assert (state.hosts, state.telemetry_url) == (this_host(), None)
    job.kill()


def test_subclass_without_init_call_works() -> None:
    class Forgetful(FileJob):
        def __init__(self) -> None:
            self.folder, self.size, self.mesh = "alloc", 1, "hosts"

    job = Forgetful()
    assert not job.active
    with warnings.catch_warnings(record=True):
        job.state(None)
    assert job.active
