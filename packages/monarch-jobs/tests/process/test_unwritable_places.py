"""Working directories and homes that cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch.job import CredentialsError, ProcessJob, SubmitError
from monarch.job.process import ProcessLauncher

# The kernel lets no user make files there, root included.
READ_ONLY = "/proc"


def test_process_job_in_a_read_only_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("MONARCH_HOME", str(home))
    monkeypatch.chdir(READ_ONLY)
    job = ProcessJob({"a": 1})
    try:
        assert job.state(cached_path=None).a.initialized.get() is True
        logs = {Path(log.path) for log in job._logs()}
        assert all(log.is_file() and log.is_relative_to(home / "logs") for log in logs) and len(logs) == 2
    finally:
        job.kill()
    assert list((home / "jobs").iterdir()) == []


@pytest.mark.parametrize("below", ["", "folder"])
def test_home_that_cannot_be_written_is_named(below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    for home in (file / below if below else file, Path(READ_ONLY) / "home"):
        monkeypatch.setenv("MONARCH_HOME", str(home))
        job = ProcessJob({"a": 1})
        with pytest.raises(CredentialsError, match="cannot be written(.|\n)*hint: set MONARCH_HOME") as caught:
            job.state(cached_path=None)
        assert f"(now {home})" in str(caught.value)
        assert (job.active, job.apply_id) == (False, None)


def test_failed_clean_up_does_not_hide_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("MONARCH_HOME", str(home))

    def submit(self: ProcessLauncher, plan: object, secret: bytes) -> dict[str, object]:
        # The directory of the credentials is no longer removed as one.
        (folder,) = (home / "jobs").iterdir()
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        os.symlink(tmp_path, folder)
        raise SubmitError("the scheduler is away", title="process job")

    monkeypatch.setattr(ProcessLauncher, "submit", submit)
    with pytest.raises(SubmitError, match="the scheduler is away"):
        ProcessJob({"a": 1}).apply()
    assert "cannot be removed" in capfd.readouterr().err
