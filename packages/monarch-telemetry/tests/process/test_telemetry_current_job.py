"""Which job the verbs ask: that of `--addr`, else the current one of the directory, else the only one that serves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest
import telemetry_program
from support.http_parts import parts
from support.http_server import served

from monarch.job import DEFAULT_JOB_PATH
from monarch.telemetry import TelemetryError
from monarch.telemetry._http import remote_engine
from monarch.telemetry._http.app import App
from monarch.telemetry._http.auth import publish, tokens_in
from monarch.telemetry._http.remote_engine import find

JOBS = [str(uuid4()) for _ in range(3)]


@pytest.fixture
def urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[list[str]]:
    """Two jobs serve; the third has stopped to. The directory is empty."""
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(remote_engine.VARIABLE, raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    folders = [tmp_path / "home" / "jobs" / job for job in JOBS]
    found: list[str] = []
    with ExitStack() as stack:
        for folder in folders[:2]:
            tokens = tokens_in(folder)
            found.append(stack.enter_context(served(lambda names, tokens=tokens: App(parts(), tokens, names))))
            publish(folder, tokens, found[-1:])
        publish(folders[2], tokens_in(folders[2]), [])
        yield found


def state(content: bytes) -> None:
    """Writes the state file of the current job, as a context has it."""
    path = Path(DEFAULT_JOB_PATH)
    context = path.parent / "default"
    context.mkdir(parents=True, exist_ok=True)
    (context / "state.json").write_bytes(content)
    if not path.is_symlink():
        path.symlink_to("default/state.json")


def of(job: object) -> bytes:
    return json.dumps({"schema": 1, "kind": "process", "apply_id": job, "active": True, "job": {}}).encode()


def test_state_file_is_where_jobs_have_it() -> None:
    assert remote_engine.STATE == DEFAULT_JOB_PATH


def test_current_job_is_asked_where_several_serve(urls: list[str]) -> None:
    for job, url in zip(JOBS, urls, strict=False):
        state(of(job))
        assert find(None, None).url == url
    # A named one is asked nevertheless.
    assert find(urls[0], None).url == urls[0]


@pytest.mark.parametrize("content", [None, b"", b"[]", b"\x80\x04", b'{"apply_id": 5}', b"[" * 100_000, of(None), of("../x"), of(JOBS[2])])
def test_several_jobs_without_a_current_one_are_named(urls: list[str], content: bytes | None) -> None:
    if content is not None:
        state(content)
    with pytest.raises(TelemetryError, match="several jobs serve telemetry: .*\nhint: choose one with --addr") as error:
        find(None, None)
    assert all(url in str(error.value) for url in urls)


def test_state_file_that_is_no_file_is_none(urls: list[str]) -> None:
    Path(DEFAULT_JOB_PATH).mkdir(parents=True)
    with pytest.raises(TelemetryError, match="several jobs serve"):
        find(None, None)


def test_other_job_does_not_answer_for_the_current(urls: list[str], tmp_path: Path) -> None:
    state(of(JOBS[2]))
    gone = tmp_path / "home" / "jobs" / JOBS[2]
    with served() as url:
        publish(gone, tokens_in(gone), [url])
    with pytest.raises(TelemetryError, match=f"no server of a job answers at {url}: ") as error:
        find(None, None)
    assert error.value.code == "no_such_job"
    # Without its own telemetry, the only serving job is asked.
    shutil.rmtree(gone)
    shutil.rmtree(tmp_path / "home" / "jobs" / JOBS[1])
    assert find(None, None).url == urls[0]


def test_verb_asks_the_job_of_its_directory(tmp_path: Path) -> None:
    assert telemetry_program.shown(f"""
import os, subprocess, sys, warnings
import monarch.actor
from monarch.job import ProcessJob

warnings.simplefilter("ignore")  # the port may be taken by another job of this machine
folders = [os.path.join({str(tmp_path)!r}, name) for name in ("a", "b", "c")]
os.environ["MONARCH_HOME"] = os.path.join({str(tmp_path)!r}, "home")
for folder in folders:
    os.mkdir(folder)
jobs = []
for folder, mesh in zip(folders[:2], ("left", "right")):
    os.chdir(folder)
    jobs.append(ProcessJob({{mesh: 1}}).enable_telemetry())
    jobs[-1].state()
for folder in folders:
    command = [sys.executable, "-c", "from monarch.extension.cli import main; main()", "query", "--format", "csv"]
    command.append("SELECT DISTINCT given_name FROM meshes WHERE given_name IN ('left', 'right')")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    print("=", done.returncode, done.stdout.split(), done.stderr.partition(": http")[0])
for folder, job in zip(folders, jobs):
    os.chdir(folder)
    job.kill()
""") == ["0 ['given_name', 'left'] ", "0 ['given_name', 'right'] ", "1 [] monarch: several jobs serve telemetry"]
