"""The process that drives SkyPilot: requests, errors, ends and time limits. Its `sky` is a stand-in that keeps its clusters in a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually

from monarch.job import BackendMissingError
from monarch.job._machine.commands import time_limit
from monarch.job.skypilot.interpreter import SkyPilotError, SkyProcess

SKY = """
import enum, json, os, pathlib, sys, time

__version__ = os.environ.get("SKY_VERSION", "0.14.1")
STATE = pathlib.Path(os.environ["SKY_STATE"])
print("SkyPilot prints what it likes")


class StatusRefreshMode(enum.Enum):
    NONE = "none"
    AUTO = "auto"


class JobStatus(enum.Enum):
    RUNNING = "RUNNING"


class ClusterDoesNotExist(Exception):
    pass


class Known:
    def __init__(self, **fields):
        self.__dict__.update(fields)


class Task:
    @staticmethod
    def from_yaml_str(text):
        if "num_nodes" not in text:
            raise ValueError("no such task")
        return text


def _state():
    return json.loads(STATE.read_text()) if STATE.exists() else {}


def get(request):
    kind, _, cluster = request.partition(":")
    if kind == "fail":
        try:
            raise OSError("no quota in moon-1")
        except OSError as error:
            raise RuntimeError("all places failed") from error
    if kind == "launch":
        return 7, None
    if kind == "status":
        found = _state().get(cluster)
        return [] if found is None else [{"status": "UP", "last_event": "starting"}]
    if kind == "job":
        return {7: JobStatus.RUNNING}
    if kind == "down":
        state = _state()
        if state.pop(cluster, None) is None:
            raise ClusterDoesNotExist(cluster)
        STATE.write_text(json.dumps(state))
    return None


def launch(task, cluster_name, idle_minutes_to_autostop, down):
    if cluster_name == "hangs":
        time.sleep(1000)  # sleeps: a server that does not answer
    if cluster_name == "dies":
        print("no memory left", file=sys.stderr, flush=True)
        os._exit(9)
    STATE.write_text(json.dumps({**_state(), cluster_name: [idle_minutes_to_autostop, down]}))
    return f"launch:{cluster_name}"


def status(names, refresh):
    return f"status:{names[0]}"


def job_status(cluster, ids=None):
    return f"job:{cluster}"


def down(cluster):
    return f"down:{cluster}"


def api_status(ids=None, all_status=False, cluster_name=None):
    states = {id: "FAILED" if id.startswith("fail") else "SUCCEEDED" for id in ids or [] if id != "old"}
    return [Known(status=state, status_msg=None, request_id=id) for id, state in states.items()]


def tail_logs(cluster, job, follow, tail, output_stream):
    output_stream.write(f"\\x1b[36m(head)\\x1b[0m {cluster} {job} {tail}\\n")
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An interpreter for which the stand-in is installed."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "sky.py").write_text(SKY)
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/packages exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("SKY_STATE", str(tmp_path / "clusters"))
    return str(path)


@pytest.fixture
def sky(python: str) -> Iterator[SkyProcess]:
    process = SkyProcess(python)
    yield process
    process.close()


def _launch(sky: SkyProcess, cluster: str, idle: int | None = None, down: bool = True) -> str:
    return sky.ask("launch", title="the job", task="num_nodes: 1\n", cluster=cluster, idle_minutes=idle, down=down)


def test_cluster_is_launched_and_removed(sky: SkyProcess, tmp_path: Path) -> None:
    def ask(name: str, **arguments: object) -> object:
        return sky.ask(name, title="the job", cluster="c", **arguments)

    assert ask("exists") is False and ask("job", job=7) == {"cluster": None, "job": None}
    request = _launch(sky, "c")
    assert ask("exists") is True and ask("request", request=request) == {"state": "done", "job": 7}
    assert ask("request", request="old") == {"state": "done", "job": 7}, "the server forgets requests"
    assert ask("job", job=7) == {"cluster": "UP", "job": "RUNNING"}
    assert ask("logs", job=7, lines=5) == "(head) c 7 5\n"
    ask("down", request=request)
    ask("down", request=None)
    assert ask("exists") is False
    assert ask("request", request="old")["state"] == "failed"  # pyright: ignore


@pytest.mark.parametrize(("idle", "down", "kept"), [(None, True, [None, False]), (5, True, [5, True]), (5, False, [5, False])])
def test_cluster_is_removed_when_idle(sky: SkyProcess, tmp_path: Path, idle: int | None, down: bool, kept: list[object]) -> None:
    _launch(sky, "c", idle, down)
    assert json.loads((tmp_path / "clusters").read_text())["c"] == kept


def test_error_of_skypilot_is_raised_with_its_text(sky: SkyProcess) -> None:
    with pytest.raises(SkyPilotError, match="(?s)the job: SkyPilot: ValueError.*no such task") as caught:
        sky.ask("launch", title="the job", task="x", cluster="c", idle_minutes=None, down=True)
    assert (caught.value.kind, caught.value.cause) == ("ValueError", "no such task")
    failed = sky.ask("request", title="the job", request="fail", cluster="c")
    assert failed == {"state": "failed", "detail": "all places failed\nno quota in moon-1"}


def test_ended_process_is_started_again(sky: SkyProcess) -> None:
    with pytest.raises(SkyPilotError, match="(?s)which drives SkyPilot, has ended.*no memory left"):
        _launch(sky, "dies")
    assert _launch(sky, "c") == "launch:c"


def test_unresponsive_process_is_ended(sky: SkyProcess) -> None:
    _launch(sky, "c")
    first = sky._process
    assert first is not None
    with time_limit(0.5), pytest.raises(SkyPilotError, match="has not answered 'launch' in time"):
        _launch(sky, "hangs")
    assert first.poll() is not None and _launch(sky, "c") == "launch:c"


def test_versions_and_absence(python: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SKY_VERSION", "0.9.0")
    old = SkyProcess(python)
    for _ in range(2):
        with pytest.raises(BackendMissingError, match="SkyPilot 0.9.0 is not supported"):
            _launch(old, "c")
    old.close()
    assert not (tmp_path / "clusters").exists()
    (tmp_path / "packages" / "sky.py").unlink()
    absent = SkyProcess(python)
    with pytest.raises(BackendMissingError, match="has no SkyPilot: No module named 'sky'"):
        _launch(absent, "c")
    absent.close()
    with pytest.raises(BackendMissingError, match="cannot be started"):
        _launch(SkyProcess(str(tmp_path / "nowhere")), "c")


def test_secrets_of_the_caller_stay_there(sky: SkyProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_JOB_SECRET_FILE", "/run/secret")
    _launch(sky, "c")
    assert sky._process is not None
    assert b"MONARCH" not in Path(f"/proc/{sky._process.pid}/environ").read_bytes()


def test_process_ends_with_its_caller(python: str) -> None:
    """Also with one that is killed: its input ends then."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        sky = SkyProcess(python)
        _launch(sky, "c")
        assert sky._process is not None
        os.write(write, f"{sky._process.pid}\n".encode())
        os.kill(os.getpid(), 9)
    os.close(write)
    with os.fdopen(read) as said:
        pid = int(said.readline())
    os.waitpid(child, 0)
    eventually("the end of the process", lambda: _state(pid), lambda state: state in ("", "Z"))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
