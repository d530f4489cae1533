"""Answers of SkyPilot and of nodes, and the status that follows; the secret; versions. SkyPilot and ssh are stand-ins here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from monarch import config
from monarch.job import BackendMissingError, JobError, JobStatus, SubmitError
from monarch.job.skypilot import interpreter
from monarch.job.skypilot.arguments import checked
from monarch.job.skypilot.interpreter import SkyPilotError, check_version
from monarch.job.skypilot.launcher import SkyPilotLauncher
from monarch.job.skypilot.nodes import Worker, _parsed, node_names

SECRET = b"s" * 32


class Sky:
    """Answers with `answers`; remembers the requests."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            "exists": False,
            "launch": "request-1",
            "ssh": {"config": "", "key": ""},
            "logs": "last words\n",
            "down": None,
            **answers,
        }
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def ask(self, name: str, *, title: str, timeout: float = 0, **arguments: Any) -> Any:
        self.asked.append((name, arguments))
        answer = self.answers[name]
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Nodes:
    """Two nodes whose workers are in `workers`."""

    def __init__(self) -> None:
        self.names = ["c", "c-worker1"]
        self.workers: dict[int, Worker] = {}
        self.unreachable: dict[str, str] = {}
        self.given: list[tuple[list[int], bytes]] = []

    def look(self) -> dict[int, Worker]:
        return dict(self.workers)

    def give(self, workers: dict[int, Worker], secret: bytes) -> list[int]:
        self.given.append((sorted(workers), secret))
        return sorted(workers)

    def reachable(self, ids: dict[str, Any], found: dict[str, list[str | None]]) -> dict[str, list[str | None]]:
        return found

    def close(self) -> None:
        self.names = []


class Site:
    """A launcher between the stand-ins."""

    def __init__(self, sky: Sky, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("monarch.job.skypilot.launcher.sky_of", lambda title: sky)
        monkeypatch.setattr("monarch.job.skypilot.launcher.JOB_PAUSE_S", 0.0)
        self.sky = sky
        self.saved = 0
        self.nodes = Nodes()
        arguments = checked({"meshes": {"a": 1, "b": 1}})
        self.launcher = SkyPilotLauncher(arguments, title="the job", secret=lambda: SECRET, changed=self.change, apply_id="0123456789")
        self.launcher._nodes = self.nodes  # pyright: ignore
        self.ids: dict[str, Any] = {
            "cluster": "c",
            "request": "request-1",
            "job": None,
            "config": "",
            "key": "",
            "nodes": [],
            "forwards": {},
        }

    def change(self) -> None:
        self.saved += 1

    def up(self) -> None:
        self.ids.update({"job": 3, "config": "/config", "nodes": ["c", "c-worker1"]})

    def poll(self) -> JobStatus:
        return self.launcher.poll(self.ids)


def _site(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> Site:
    return Site(Sky(**answers), monkeypatch)


def _job(state: str | None, cluster: str | None = "UP") -> dict[str, Any]:
    return {"cluster": cluster, "job": state}


def test_launch_has_the_task_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    site = _site(monkeypatch)
    plan = site.launcher.plan()
    ids = site.launcher.submit(plan, SECRET)
    assert ids["cluster"] == "monarch-01234567" and ids["request"] == "request-1" and ids["job"] is None
    (_, launched) = site.sky.asked[-1]
    assert launched == {"task": plan.text, "cluster": "monarch-01234567", "idle_minutes": None, "down": True}
    assert SECRET.decode() not in repr(site.sky.asked)


def test_existing_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    site = _site(monkeypatch, exists=True)
    with pytest.raises(SubmitError, match="has a cluster 'monarch-01234567' already"):
        site.launcher.submit(site.launcher.plan(), SECRET)
    assert [name for name, _ in site.sky.asked] == ["exists"]


def test_refused_task_is_a_submit_error(monkeypatch: pytest.MonkeyPatch) -> None:
    site = _site(monkeypatch, launch=SkyPilotError("x", title="", cause="no such infra: moon", kind="ValueError"))
    with pytest.raises(SubmitError, match="(?s)the job: SkyPilot refuses the task: ValueError.*no such infra: moon"):
        site.launcher.submit(site.launcher.plan(), SECRET)


def test_interrupted_launch_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = _site(monkeypatch, launch=KeyboardInterrupt(), withdraw=JobError("no answer"))
    with pytest.raises(KeyboardInterrupt) as caught:
        failing.launcher.submit(failing.launcher.plan(), SECRET)
    assert "cluster monarch-01234567 may be left (sky down monarch-01234567): no answer" in caught.value.__notes__[0]
    site = _site(monkeypatch, launch=KeyboardInterrupt(), withdraw=None)
    with pytest.raises(KeyboardInterrupt):
        site.launcher.submit(site.launcher.plan(), SECRET)
    assert site.sky.asked[-1] == ("withdraw", {"cluster": "monarch-01234567"})


def test_running_launch_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    site = _site(monkeypatch, request={"state": "going", "detail": "waiting for\n nodes"})
    status = site.poll()
    assert (status.phase, status.detail) == ("pending", "waiting for nodes")
    assert [(host.mesh, host.rank, host.phase) for host in status.hosts] == [("a", 0, "waiting"), ("b", 0, "waiting")]
    assert site.launcher.addresses(site.ids) == {"a": [None], "b": [None]}


def test_failed_launch_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    status = _site(monkeypatch, request={"state": "failed", "detail": "no quota"}).poll()
    assert (status.phase, status.detail) == ("ended", "the launch failed\nno quota")


@pytest.mark.parametrize("state", ["FAILED_SETUP", "FAILED", "FAILED_DRIVER", "CANCELLED", "SUCCEEDED"])
def test_ended_task_has_its_output(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    site = _site(monkeypatch, request={"state": "done", "job": 3}, job=_job(state))
    status = site.poll()
    assert (status.phase, status.detail) == ("ended", f"{state}\nlast words")


def test_no_clock_runs_during_the_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    site = _site(monkeypatch, request={"state": "done", "job": 3}, job=_job("SETTING_UP"))
    assert (site.poll().phase, site.poll().detail) == ("pending", "SETTING_UP")


def test_secret_is_sent_to_requesting_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config_file = tmp_path / "c"
    config_file.write_text("Host c\n  HostName 10.0.0.1\nHost c-worker1\n  Port 22\nHost c-other\n")
    site = _site(monkeypatch, request={"state": "done", "job": 3}, job=_job("RUNNING"), ssh={"config": str(config_file), "key": "/key"})
    site.nodes.workers = {0: Worker("wanting", "c"), 1: Worker("waiting", "c-worker1")}
    assert site.poll().phase == "running" and site.nodes.given == [([0], SECRET)]
    assert site.ids["nodes"] == ["c", "c-worker1"] and site.ids["job"] == 3 and site.saved == 1
    site.nodes.workers = {0: Worker("joined", "c", "tcp://10.0.0.1:1"), 1: Worker("joined", "c-worker1", "tcp://10.0.0.2:1")}
    site.sky.asked.clear()
    assert [host.address for host in site.poll().hosts] == ["tcp://10.0.0.1:1", "tcp://10.0.0.2:1"]
    assert not site.sky.asked, "workers that have joined are asked themselves"
    assert site.launcher.addresses(site.ids) == {"a": ["tcp://10.0.0.1:1"], "b": ["tcp://10.0.0.2:1"]}


def test_missing_ssh_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    site = _site(monkeypatch, request={"state": "done", "job": 3}, job=_job("RUNNING"))
    with pytest.raises(JobError, match="offers no ssh to cluster c"):
        site.poll()


def test_workers_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    site = _site(monkeypatch, job=_job("RUNNING"))
    site.up()
    site.nodes.workers = {0: Worker("joined", "c", "tcp://10.0.0.1:1"), 1: Worker("exit", "c-worker1", detail="with exit code 137")}
    status = site.poll()
    assert status.phase == "running" and status.hosts[1].phase == "lost"
    assert status.hosts[1].detail == "its worker ended with exit code 137"
    assert site.launcher.relaunch(site.ids, [("b", 0), ("a", 0)]) == [("b", 0)] and site.nodes.given == [([1], SECRET)]
    site.nodes.workers = {rank: Worker("exit", "c", detail="with exit code 1") for rank in (0, 1)}
    assert site.poll() == JobStatus("ended", "all workers ended\nlast words\n", site.poll().hosts)


def test_removed_cluster_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    site = _site(monkeypatch, job=_job(None, None))
    site.up()
    site.nodes.unreachable = {"c": "timed out", "c-worker1": "timed out"}
    assert site.poll().phase == "ended" and "the cluster is gone" in site.poll().detail
    site.sky.answers["job"] = _job(None, "STOPPED")
    assert site.poll().phase == "ended" and site.poll().detail.startswith("STOPPED")
    site.sky.answers["job"] = _job("RUNNING")
    status = site.poll()
    assert status.phase == "unknown" and status.detail == "no node answers: timed out"
    assert {host.phase for host in status.hosts} == {"lost"} and site.launcher.relaunch(site.ids, [("a", 0)]) == []


def test_kill_takes_the_cluster_down(monkeypatch: pytest.MonkeyPatch) -> None:
    site = _site(monkeypatch)
    site.launcher.cancel(site.ids)
    assert site.sky.asked == [("down", {"cluster": "c", "request": "request-1"})]
    site.up()
    site.launcher.cancel(site.ids)
    assert site.sky.asked[-1] == ("down", {"cluster": "c", "request": None})
    site.sky.answers["down"] = SkyPilotError("x", title="", cause="the cloud says no", kind="RuntimeError")
    with pytest.raises(JobError, match="(?s)does not take cluster c down.*RuntimeError: the cloud says no.*hint: sky down c"):
        site.launcher.cancel(site.ids)


def test_node_states_are_parsed() -> None:
    published = '{"address": "tcp://10.0.0.1:22222", "uid": "4f"}'
    assert _parsed(f"0 joined {published}", "c") == (0, Worker("joined", "c", "worker<4f>@tcp://10.0.0.1:22222"))
    assert _parsed("1 joined {half", "c") == (1, Worker("waiting", "c"))
    assert _parsed("2 exit 75", "c") == (2, Worker("exit", "c", detail="with exit code 75"))
    assert _parsed("2 exit killed", "c") == (2, Worker("exit", "c", detail="with its task"))
    assert _parsed("motd of the day", "c") is None and _parsed("3 what", "c") is None and _parsed("", "c") is None


def test_only_nodes_of_the_cluster(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("# x\nHost c.1\n  User u\nHost c.1-worker2\nHost cx1\nHost c.1-workers\n")
    assert node_names(str(path), "c.1") == ["c.1", "c.1-worker2"]


@pytest.mark.parametrize("version", ["0.14.0", "0.14.1", "0.14.9.dev0"])
def test_versions_that_are_tested(version: str) -> None:
    check_version(version, "the job")


@pytest.mark.parametrize("version", ["0.13.9", "0.15.0", "1.0.0-dev0", "nightly"])
def test_versions_that_are_not(version: str) -> None:
    with pytest.raises(BackendMissingError, match=f"SkyPilot {version} is not supported.*0.14 and later, below 0.15"):
        check_version(version, "the job")


def test_interpreter_is_configured_or_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The setting, else this one, else that of the command `sky`."""
    with config.configured(skypilot_python=sys.executable):
        assert interpreter.interpreter("the job") == sys.executable
    with config.configured(skypilot_python="/nowhere/python"), pytest.raises(BackendMissingError, match="/nowhere/python is no program"):
        interpreter.interpreter("the job")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendMissingError, match="(?s)SkyPilot is not installed.*MONARCH_SKYPILOT_PYTHON"):
        interpreter.interpreter("the job")
    (tmp_path / "sky").write_text(f"#!{sys.executable}\n")
    (tmp_path / "sky").chmod(0o755)
    assert interpreter.interpreter("the job") == sys.executable
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setenv("PATH", "")
    assert interpreter.interpreter("the job") == sys.executable
