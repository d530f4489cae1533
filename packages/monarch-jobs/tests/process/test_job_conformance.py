"""The suite for backends passes with good ones, and names the faults of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from file_job import FileJob

from monarch.job import JobStatus, LocalJob, Plan
from monarch.job.testing import conformance


def test_built_in_and_own_backends(tmp_path: Path) -> None:
    before = os.getcwd(), os.environ["MONARCH_HOME"]
    conformance(lambda: LocalJob(("a", "b")))
    conformance(lambda: FileJob(str(tmp_path / "alloc")))
    assert os.listdir(tmp_path / "alloc") == []
    assert (os.getcwd(), os.environ["MONARCH_HOME"]) == before


class RandomPlan(FileJob):
    def plan(self) -> Plan:
        return Plan("x", os.urandom(8).hex())


class DiesAtOnce(FileJob):
    def _poll(self) -> JobStatus:
        return JobStatus("ended", "", [])


class ForgetsTheSpec(FileJob):
    def _load(self, saved: dict[str, object]) -> None:
        self.folder, self.size, self.mesh = "x", 77, "x"


class WritesAtOnce(FileJob):
    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        Path("made").write_text("")


class TellsTheSecret(FileJob):
    def _create(self, client_script: str | None) -> None:
        from monarch.job._files import credentials

        assert self.apply_id is not None
        self.secret = credentials.make(self.apply_id).hex()
        super()._create(client_script)


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (RandomPlan, "equal jobs is equal"),
        (DiesAtOnce, "active job is one of"),
        (ForgetsTheSpec, "has the same plan"),
        (WritesAtOnce, "makes files"),
        (TellsTheSecret, "no secret is in plan, state or repr"),
    ],
)
def test_violations_of_the_contract_are_named(cls: type[FileJob], words: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=words):
        conformance(lambda: cls(str(tmp_path / "alloc")), hosts=False)
    assert not os.path.exists(tmp_path / "alloc") or os.listdir(tmp_path / "alloc") == []


def test_suite_runs_from_the_command_line(folder: Path) -> None:
    (folder / "mine.py").write_text("from monarch.job import LocalJob\ndef make():\n    return LocalJob()\n")
    argv = [sys.executable, "-W", "error", "-m", "monarch.job.testing"]
    done = subprocess.run([*argv, "mine.make"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "mine.make conforms\n", "")
    assert subprocess.run(argv, capture_output=True, check=False).returncode == 2
