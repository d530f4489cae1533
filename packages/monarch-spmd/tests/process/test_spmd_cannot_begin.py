"""Runs whose actor cannot begin or go on: `result` raises, and waits for nothing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.spmd import SPMDError, SPMDRun, attempts

GONE = """
import os, sys
from monarch.actor import this_host
from monarch.spmd import SPMDError, run
os.rmdir(os.getcwd())
try:
    run(this_host(), ["torchrun", sys.argv[1]], workdir="/")
except SPMDError as error:
    print(error)
print(run(this_host(), ["torchrun", sys.argv[1]], workdir="/", log_dir=sys.argv[2]).result.get().attempts)
"""


def test_actor_that_cannot_be_made(start: Callable[..., SPMDRun], program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(attempts, "HostPool", broken)
    running = start("--nproc-per-node=1", program(""))
    with pytest.raises(SPMDError, match=r"^the run .* cannot go on: OSError: .*Too many open files.*\n.*ulimit -n"):
        running.result.get()
    # Every reader gets the error, and `with` does not wait either.
    with running, pytest.raises(SPMDError, match="Too many open files"):
        running.result.get()


def test_working_directory_that_is_gone(program: Callable[[str], str], folder: Path) -> None:
    (folder / "gone").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", GONE, program(""), str(folder / "logs")], cwd=folder / "gone", capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [
        "the working directory of this process is gone: '.monarch/runs' has no place",
        "hint: change to another directory with os.chdir(), or give an absolute log_dir",
        "1",
    ], done
    assert done.stderr == ""


def test_name_of_no_log_folder(start: Callable[..., SPMDRun], program: Callable[[str], str]) -> None:
    with pytest.raises(ValueError, match="log_dir='': expected a directory"):
        start("--nproc-per-node=1", program(""), log_dir="")
