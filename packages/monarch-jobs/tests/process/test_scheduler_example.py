"""The example of a scheduler of one's own: its wheel, built and installed in an empty folder, passes the suite in both ways."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually

from monarch.job import BackendMissingError, JobEndedError, JobTrait, JoinTimeoutError, job_load, job_of_kind
from monarch.job.testing import conformance
from tools import installed_wheel
from tools.project import ROOT

pytestmark = pytest.mark.timeout(240)  # the suite submits and ends several jobs


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with nothing but the example's wheel."""
    source = tmp_path_factory.mktemp("source") / "my_scheduler"
    shutil.copytree(ROOT / "examples" / "my_scheduler", source)
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    built = source.parent / "dist"
    quiet = ["--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", *quiet, "--wheel-dir", str(built), str(source)], check=True)
    (wheel,) = built.glob("my_scheduler-1.0-*.whl")
    subprocess.run([*pip, "install", *quiet, "--target", str(target), str(wheel)], check=True)
    with installed_wheel.used(target):
        yield target


@pytest.fixture
def queue(site: Path, folder: Path) -> str:
    return str(folder / "queue")


def test_launcher_conforms(site: Path) -> None:
    from my_scheduler.check import queue_job  # pyright: ignore[reportMissingImports]

    conformance(
        queue_job,
        wrong=[
            lambda: job_of_kind("my-queue", meshes={"a": 0}),
            lambda: job_of_kind("my-queue"),
            lambda: job_of_kind("my-queue", meshes=[]),
        ],
    )


def test_subclass_conforms_from_the_command_line(site: Path) -> None:
    argv = [sys.executable, "-W", "error", "-m", "monarch.job.testing", "my_scheduler.check.slot_job"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "my_scheduler.check.slot_job conforms\n"), done.stderr


def test_job_waits_for_a_free_slot(queue: str) -> None:
    first = job_of_kind("my-queue", meshes={"a": 1}, folder=queue, slots=1)
    second = job_of_kind("my-queue", meshes={"a": 1}, folder=queue, slots=1)
    try:
        first.apply()
        eventually("the first one", first.status, lambda status: status.hosts[0].phase == "joined")
        second.apply()
        assert second.status()[:2] == ("pending", "1 of 1 tasks wait for a slot")
        second.dump("second.json")
        first.kill()
        eventually("the second one", second.status, lambda status: status.hosts[0].phase == "joined")
        assert job_load("second.json").status().phase == "running"
    finally:
        first.kill()
        second.kill()
    assert [name for name in os.listdir(queue) if not name.startswith("slot-")] == []


def test_name_of_no_backend_is_refused() -> None:
    with pytest.raises(BackendMissingError, match="no backend 'my-queues' is installed"):
        job_of_kind("my-queues", meshes={"a": 1})


def test_too_many_hosts_are_refused(queue: str) -> None:
    with pytest.raises(ValueError, match="5 hosts never run at once in 4 slots"):
        job_of_kind("my-slots", size=5, folder=queue)
    assert not os.path.exists(queue)


def test_workers_that_end_at_once_are_reported(queue: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job: JobTrait = job_of_kind("my-slots", size=1, folder=queue)
    from my_scheduler import worker  # pyright: ignore[reportMissingImports]

    monkeypatch.setattr(worker, "_MAIN", "raise SystemExit('no way')")
    with pytest.raises((JobEndedError, JoinTimeoutError), match="no way"):
        job.state()
    job.kill()
    assert not job.active
