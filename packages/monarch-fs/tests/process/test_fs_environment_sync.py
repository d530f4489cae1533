"""The environment of the client on hosts: synced beside the workspace, and run there."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import monarch.actor
from monarch.actor import Actor, HostMesh, Workspace, endpoint, this_host
from monarch.actor.testing import local_hosts
from monarch.fs import FsError
from monarch.fs._relay.origin import Origin

PYTHON = "$WORKSPACE_DIR/.environment/bin/python"


class Interpreter(Actor):
    """Looks at the interpreter of its process."""

    @endpoint
    def look(self) -> dict[str, str]:
        greeting: Any = importlib.import_module("greeting")
        prefix, workspace = sys.prefix, os.environ["WORKSPACE_DIR"]
        return {"prefix": prefix, "workspace": workspace, "text": greeting.TEXT, "place": greeting.PLACE, "file": greeting.__file__}

    @endpoint
    def look_from_below(self) -> dict[str, str]:
        """In a proc that this one spawns on its host."""
        return this_host().spawn_procs(name="below").spawn("below", Interpreter).look.call_one().get(timeout=20)

    @endpoint
    def run(self, name: str) -> str:
        return subprocess.run([f"{sys.prefix}/bin/{name}"], check=True, capture_output=True, text=True).stdout.strip()


class Parent(Actor):
    """The agent of its host."""

    @endpoint
    def pid(self) -> int:
        return os.getppid()


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A venv with a package and a script."""
    made = tmp_path / "client env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True, timeout=25)
    (packages(made) / "greeting.py").write_text(f"TEXT, PLACE = 'first', {str(made)!r}\n")
    (made / "bin" / "greet").write_text(f"#!{made}/bin/python\nimport greeting\nprint(greeting.TEXT)\n")
    (made / "bin" / "greet").chmod(0o755)
    return made


def packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python*/site-packages")
    return found


def sync(hosts: HostMesh, environment: Path) -> None:
    asyncio.run(hosts.sync_workspace(Workspace(None, env=environment), conda=True))


def look(hosts: HostMesh, *, name: str = "look") -> list[dict[str, str]]:
    procs = hosts.with_python_executable(PYTHON).spawn_procs(name=name)
    try:
        return procs.spawn("interpreter", Interpreter).look.call().get(timeout=25).values()
    finally:
        procs.stop().get(timeout=25)


def test_procs_run_in_the_synced_environment(environment: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with local_hosts(2) as hosts:
        sync(hosts, environment)
        assert " files written, " in capfd.readouterr().out
        found = look(hosts)
        assert len({values["prefix"] for values in found}) == 2
        for values in found:
            place = f"{values['workspace']}/.environment"
            assert (values["prefix"], values["text"], values["place"]) == (place, "first", place)
            assert values["file"].startswith(f"{place}/lib/")
        # One file is edited: only this file is sent, and written on each of the two hosts.
        edited = f"TEXT, PLACE = 'second', {str(environment)!r}\n"
        (packages(environment) / "greeting.py").write_text(edited)
        sync(hosts, environment)
        # A host that does not answer for a moment is skipped: the client sends a content at most twice.
        said = capfd.readouterr().out
        assert any(f".environment: 2 files written, {size} B to 2 hosts" in said for size in (len(edited), 2 * len(edited))), said
        assert [values["text"] for values in look(hosts, name="again")] == ["second"] * 2
        sync(hosts, environment)
        assert ".environment: 0 files written, 0 B to 2 hosts" in capfd.readouterr().out
        # Files that were removed from the environment are removed on the hosts.
        (environment / "bin" / "greet").unlink()
        sync(hosts, environment)
        assert not (Path(found[0]["prefix"]) / "bin" / "greet").exists()


def test_scripts_run_without_the_client_environment(environment: Path) -> None:
    with local_hosts(1) as hosts:
        sync(hosts, environment)
        shutil.rmtree(environment)
        procs = hosts.with_python_executable(PYTHON).spawn_procs()
        assert procs.spawn("interpreter", Interpreter).run.call_one("greet").get(timeout=25) == "first"


def test_procs_that_a_proc_spawns_have_its_environment(environment: Path) -> None:
    with local_hosts(1) as hosts:
        sync(hosts, environment)
        actor = hosts.with_python_executable(PYTHON).spawn_procs(name="above").spawn("above", Interpreter)
        assert actor.look_from_below.call_one().get(timeout=25) == actor.look.call_one().get(timeout=25)


def test_procs_of_the_hosts_own_interpreter_are_untouched(environment: Path) -> None:
    with local_hosts(1) as hosts:
        sync(hosts, environment)
        procs = hosts.spawn_procs()
        with pytest.raises(Exception, match="No module named 'greeting'"):
            procs.spawn("interpreter", Interpreter).look.call_one().get(timeout=25)


def test_host_without_the_interpreter_is_named(environment: Path) -> None:
    for name in ("python", "python3"):
        (environment / "bin" / name).unlink()
        (environment / "bin" / name).symlink_to("/nowhere/python3")
    with local_hosts(1) as hosts, pytest.raises(FsError, match="leads to /nowhere/python3, which the host lacks"):
        sync(hosts, environment)


def test_failed_host_does_not_affect_the_others_environment(environment: Path) -> None:
    with local_hosts(2) as hosts:
        sync(hosts, environment)
        found = look(hosts)
        # An obstacle on one host: a file at the place of the environment.
        shutil.rmtree(found[1]["prefix"])
        Path(found[1]["prefix"]).write_text("in the way")
        (packages(environment) / "greeting.py").write_text("TEXT, PLACE = 'second', ''\n")
        with pytest.raises(FsError, match="1 of 2 hosts could not be pushed to") as error:
            sync(hosts, environment)
        assert found[1]["prefix"] in str(error.value)
        assert "second" in Path(found[0]["file"]).read_text()


def test_interpreter_that_was_never_synced_is_named() -> None:
    with local_hosts(1) as hosts:
        actor = hosts.with_python_executable(PYTHON).spawn_procs().spawn("interpreter", Interpreter)
        with pytest.raises(Exception, match=r"cannot run /.*/\.environment/bin/python: No such file"):
            actor.look.call_one().get(timeout=25)


def test_host_killed_during_a_sync_is_named(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The procs of the sync on that host are lost with it: the test continues.
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)  # pyright: ignore
    (environment / "large").write_bytes(os.urandom(12 << 20))
    with local_hosts(2) as hosts:
        agents: list[int] = hosts.spawn_procs(name="agents").spawn("agents", Parent).pid.call().get(timeout=25).values()
        serve = Origin.serve

        def hooked(self: Origin, tree: str, read: Callable[[Sequence[bytes]], Any]) -> None:
            calls = itertools.count()

            def counted(ids: Sequence[bytes]) -> Any:
                if next(calls) == 3:
                    os.kill(agents[1], signal.SIGKILL)
                return read(ids)

            serve(self, tree, counted)

        monkeypatch.setattr(Origin, "serve", hooked)
        with pytest.raises(FsError, match="1 of 2 hosts could not be pushed to"):
            sync(hosts, environment)
        own = hosts.slice(hosts=0).with_python_executable(PYTHON).spawn_procs(name="left")
        assert own.spawn("interpreter", Interpreter).look.call_one().get(timeout=25)["text"] == "first"
