"""The verbs `mount`, `refresh`, `umount`, `mounts`, `gather` and `push`, over a stand-in for the keeper."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import monarch.fs
import monarch.job
from monarch.fs import _cli
from monarch.job import KeeperError, KeeperStatus, KeptStatus


class StandInKeeper:
    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], dict[str, Any]] = {}
        self.error: KeeperError | None = None

    def restore(self) -> None:
        """It has not been killed."""

    def serve(self, service: str, key: str, config: Mapping[str, Any]) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        self.kept[service, key] = dict(config)
        return {"generation": {"hosts": "0"}, "changed": 2, "bytes_sent": 9, "local": {"a": key}}

    def stop(self, service: str, key: str, *, wait: float | None = None) -> bool:
        # The lease of the hosts, and the time after it.
        assert wait == 20.0
        if self.error is not None:
            raise self.error
        return self.kept.pop((service, key), None) is not None

    def status(self) -> KeeperStatus | None:
        if not self.kept:
            return None
        return KeeperStatus(1, [KeptStatus(*place, "running", config, {"complete": False}) for place, config in self.kept.items()])


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandInKeeper:
    found = StandInKeeper()
    monkeypatch.setattr(_cli, "_keeper", lambda: found)
    monkeypatch.chdir(tmp_path)
    return found


def run(verb: click.Command, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr; as with the command `monarch`, what a verb returns is the exit code."""
    done = CliRunner().invoke(verb, arguments, standalone_mode=False)
    if isinstance(done.exception, click.ClickException):
        return done.exception.exit_code, done.stdout, f"{done.stderr}Error: {done.exception.format_message()}\n"
    if done.exception is not None:
        raise done.exception
    return int(done.return_value), done.stdout, done.stderr


def test_mount_is_kept_with_absolute_paths(keeper: StandInKeeper, tmp_path: Path) -> None:
    source = os.path.realpath(tmp_path / "code")
    code, out, _ = run(_cli.mount, "code", "--mesh", "a", "--exclude", "*.o", "--fetch", "all")
    assert (code, out) == (0, f"{source} is mounted at {source} on hosts\n")
    options = {"exclude": [".monarch", "*.o"], "fetch": "all"}
    assert keeper.kept == {("mount", source): {"source": source, "target": source, "meshes": ["a"], "options": options}}
    assert run(_cli.mount, "code", "relative")[0] == 2
    assert run(_cli.mount, "code", "--fetch", "some")[0] == 2


def test_refresh_and_umount_find_what_is_mounted(keeper: StandInKeeper) -> None:
    assert run(_cli.refresh) == (1, "", "Error: nothing is mounted\n")
    run(_cli.mount, "code", "/m")
    before = dict(keeper.kept)
    assert run(_cli.refresh, "/m") == (0, "/m: 2 changed, 9 bytes sent\n", "")
    assert keeper.kept == before  # with the same configuration, else it would be mounted again
    assert run(_cli.refresh, "/other") == (1, "", "Error: nothing is mounted at /other\n")
    assert run(_cli.umount, "/other")[0] == 1
    assert run(_cli.umount)[0] == run(_cli.umount, "/m", "--all")[0] == 2
    keeper.error = KeeperError("/m is still mounted on a[0] (h): another client uses it", raised="JobError")
    assert run(_cli.umount, "/m") == (1, "", "monarch: /m is still mounted on a[0] (h): another client uses it\n")


def test_gather_is_kept_with_absolute_paths(keeper: StandInKeeper, tmp_path: Path) -> None:
    local = os.path.join(os.path.realpath(tmp_path), "here")
    # The stand-in answers for one mesh.
    assert run(_cli.gather, "/logs", "here", "--mesh", "a") == (0, f"/logs is shown at {local}\n", "")
    assert keeper.kept == {("gather", local): {"remote": "/logs", "local": local, "meshes": ["a"]}}
    assert run(_cli.gather, "/logs", "here", "--mesh", "a")[0] == 0
    code, _, text = run(_cli.gather, "/other", "here")
    assert code == 1 and f"/logs is shown at {local}: `monarch umount {local}` first" in text
    for remote in ("logs", "$SUBDIR/logs"):
        assert run(_cli.gather, remote, "there")[0] == 2
    assert run(_cli.refresh) == (1, "", "Error: nothing is mounted\n")
    assert run(_cli.umount, "here") == (0, f"{local} is unmounted\n", "")
    assert keeper.kept == {}


def test_mounts_are_listed(keeper: StandInKeeper) -> None:
    assert run(_cli.mounts, "--json") == (0, "[]\n", "")
    run(_cli.mount, "/code", "/m", "--mesh", "a")
    run(_cli.gather, "/logs", "/here")
    assert run(_cli.mounts)[1] == "mount /code at /m: running, meshes: a\ngather /logs at /here: running, meshes: all\n"
    rows = json.loads(run(_cli.mounts, "--json")[1])
    assert [(row["kind"], row["source"], row["target"], row["complete"]) for row in rows] == [
        ("mount", "/code", "/m", False),
        ("gather", "/logs", "/here", False),
    ]
    _cli.umount.main(["--all"], standalone_mode=False)
    assert keeper.kept == {}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeeperError("/m on h: is mounted", code="fs_busy", raised="MountBusyError"), 1),
        (KeeperError("/s is no directory", raised="NotADirectoryError"), 1),
        (KeeperError("over", code="job_ended", raised="JobEndedError"), 4),
    ],
)
def test_errors_are_exit_codes(keeper: StandInKeeper, error: KeeperError, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    keeper.error = error
    assert _cli.mount.main(["/s", "/m"], standalone_mode=False) == code
    assert capsys.readouterr().err == f"monarch: {error}\n"


def test_without_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for verb, arguments in ((_cli.mounts, []), (_cli.push, ["s", "/t"]), (_cli.umount, ["--all"])):
        assert verb.main(list(arguments), standalone_mode=False) == 3
        assert "no such job" in capsys.readouterr().err


def test_push_goes_to_every_mesh(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Done:
        def __init__(self, hosts: str) -> None:
            self.hosts = hosts

        def get(self) -> str:
            logging.getLogger("monarch.fs").warning("%s: 1 socket is left out", "/s")
            return f"pushed to {self.hosts}"

    monkeypatch.setattr(monarch.fs, "push", lambda hosts, source, target: Done(hosts), raising=False)
    monkeypatch.setattr(monarch.job, "attach_current_job", lambda: (None, {"a": "a1", "b": "b1"}), raising=False)
    assert _cli.push.main(["/s", "/t"], standalone_mode=False) == 0
    assert capsys.readouterr().out == "a: pushed to a1\nb: pushed to b1\n"
    assert caplog.messages == ["/s: 1 socket is left out"]
    with pytest.raises(click.UsageError, match="not absolute"):
        _cli.push.main(["/s", "t"], standalone_mode=False)
