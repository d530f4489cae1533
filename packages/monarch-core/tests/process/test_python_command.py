"""Processes of a program that finds its modules by its changes to `sys.path`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_script import run

from monarch.extension import python_command

MODULE = """
import colorsys, os, sys

def main():
    print(*sys.argv[1:], os.getcwd())
    sys.exit(7)
"""


def ended(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(python_command("told", *arguments), cwd="/", capture_output=True, text=True, check=False, timeout=25)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.mark.parametrize("is_absolute", [True, False])
def test_module_is_found_as_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_absolute: bool) -> None:
    (tmp_path / "té'st").mkdir()
    (tmp_path / "té'st" / "told.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "té'st") if is_absolute else "té'st", *sys.path])
    assert ended("a", "-b") == (7, "a -b /\n")


def test_working_directory_hides_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "told.py").write_text(MODULE)
    (tmp_path / "colorsys.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert ended("a") == (7, "a /\n")


def test_deleted_working_directory_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "told.py").write_text(MODULE)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    monkeypatch.setattr(sys, "path", ["", "relative", str(tmp_path), *sys.path])
    assert ended() == (7, "/\n")


def test_path_object_does_not_stop_procs() -> None:
    """Imports skip an entry of `sys.path` that is no text."""
    done = run("""
        import pathlib
        sys.path.append(pathlib.Path("/nowhere"))
        print(this_host().spawn_procs({"a": 1}).spawn("echo", Echo).echo.call_one(5).get(20))
    """)
    done.assert_clean()
    assert done.out == "5\n"
