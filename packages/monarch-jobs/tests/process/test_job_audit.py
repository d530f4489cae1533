"""What is written down of what users do with jobs."""

from __future__ import annotations

import json
import os
import pwd
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from file_job import FileJob
from test_cli_exec import monarch

from monarch.actor import this_host, this_proc
from monarch.config import configured
from monarch.job import ExecError, LocalJob, PortForwarder, ProcessJob, SubmitError, exec_command, job_load
from monarch.job._files import audit


def rows(**wanted: str) -> list[dict[str, Any]]:
    path = Path(os.environ["MONARCH_HOME"], "audit.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in found if wanted.items() <= row.items()]


def actions() -> list[str]:
    return [row["action"] for row in rows()]


def test_actions_on_a_job_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 50000 192.0.2.1 22")
    job = ProcessJob({"a": 1}, {"TOKEN": "not to be seen"})
    job.state("state.json")
    job.state("state.json")
    apply_id = job.apply_id
    loaded = job_load("state.json")
    assert loaded.apply_id == apply_id
    job.heal()
    job.kill()
    job.kill()
    assert actions() == ["apply", "attach", "heal", "kill"]
    for row in rows():
        assert list(row)[:6] == ["time", "who", "source", "action", "target", "outcome"]
        assert row["target"] == f"process job {apply_id}" and row["outcome"] == "done"
        assert row["who"] == f"{pwd.getpwuid(os.geteuid()).pw_name} (uid {os.geteuid()})"
        assert row["source"] == f"{os.uname().nodename} pid {os.getpid()} from 192.0.2.7"
    path = Path(os.environ["MONARCH_HOME"], "audit.jsonl")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "not to be seen" not in path.read_text()


def test_attachment_under_trust_all_is_marked() -> None:
    job = ProcessJob({"a": 1})
    with configured(trust_all=True):
        job.state("state.json")
    job.kill()
    assert [row.get("trust_all") for row in rows()] == [None, True, None]


def test_failed_action_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(SubmitError):
        ProcessJob({"a": 1}).apply()
    (row,) = rows()
    assert row["action"] == "apply" and row["outcome"].startswith("SubmitError: process job: the temporary directory has too long a path")


def test_commands_copies_and_ports(folder: Path) -> None:
    LocalJob(("first",)).state()
    done = monarch("exec", "-e", "TOKEN=not to be seen", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    Path("file").write_text("content")
    assert monarch("cp", "./file", "first:copied").returncode == 0
    assert exec_command(this_host(), [sys.executable, "-c", "pass"], {"TOKEN": "not to be seen"}).get() == 0
    forwarder = this_proc().spawn("forwarder", PortForwarder)
    forwarder.forward.call_one(this_proc(), 9, this_proc(), "0").get()
    (listens,) = forwarder.addresses.call_one().get()
    forwarder.stop().get()
    assert monarch("kill").returncode == 0
    assert [row["command"] for row in rows(action="exec")] == ["sh -c 'exit 3'", f"{sys.executable} -c pass"]
    (copied,) = rows(action="cp")
    assert (copied["source"], copied["destination"], copied["outcome"]) == ("./file", ":copied", "done")
    (forwarded,) = rows(action="port-forward")
    assert forwarded["listens"] == listens and forwarded["target"].startswith("port 9 of ")
    assert actions()[-1] == "kill"
    assert "not to be seen" not in Path(os.environ["MONARCH_HOME"], "audit.jsonl").read_text()


def test_unwritable_audit_is_reported_once(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_is_reported", False)
    home = Path(os.environ["MONARCH_HOME"])
    home.mkdir(0o700)
    # Another program has replaced the file.
    (home / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
    for _ in range(2):
        job = FileJob("alloc", 1, "hosts")
        job.apply()
        job.kill()
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith(f"monarch: cannot write {home}/audit.jsonl: ")
    assert not (tmp_path / "elsewhere").exists()


def test_audit_file_is_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_BYTES", 2000)
    for n in range(100):
        audit.record("exec", f"host {n}")
    home = Path(os.environ["MONARCH_HOME"])
    assert sorted(path.name for path in home.iterdir()) == ["audit.jsonl", "audit.jsonl.1"]
    assert all(path.stat().st_size < 2500 for path in home.iterdir())
    assert rows()[-1]["target"] == "host 99"


def test_hosts_write_down_who_had_what_run(monkeypatch: pytest.MonkeyPatch) -> None:
    job = ProcessJob({"hosts": 2})
    try:
        hosts = job.state(cached_path=None)["hosts"]
        # The workers do not have these values: they must log the ones that they receive.
        monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 50000 192.0.2.1 22")
        words = ["sh", "-c", "exit $MONARCH_RANK_HOSTS"]
        assert exec_command(hosts, words, {"TOKEN": "not to be seen"}, workdir="/").get() == 1
        with pytest.raises(ExecError):
            exec_command(hosts, ["no-such-program"], rank=0).get()
    finally:
        job.kill()
    me = f"{pwd.getpwuid(os.geteuid()).pw_name} (uid {os.geteuid()})"
    found = sorted(rows(action="host.exec"), key=lambda row: (row["command"] != "sh -c 'exit $MONARCH_RANK_HOSTS'", row["point"]["hosts"]))
    assert [(row["point"]["hosts"], row["outcome"]) for row in found] == [
        (0, "begun"),
        (0, "ended with 0"),
        (1, "begun"),
        (1, "ended with 1"),
        (0, "cannot start 'no-such-program': No such file or directory"),
    ]
    for row in found:
        assert (row["who"], row["runs_as"], row["target"]) == (me, me, os.uname().nodename)
        assert row["source"] == f"{os.uname().nodename} pid {os.getpid()} from 192.0.2.7"
    assert [row["workdir"] for row in found[:4]] == ["/"] * 4
    assert found[0]["pid"] > 0 and found[0]["time"] <= found[1]["time"]
    assert "not to be seen" not in Path(os.environ["MONARCH_HOME"], "audit.jsonl").read_text()
