"""Names of log files that another user of a shared folder has taken: nothing is written through them, and nothing waits for them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.spmd import SPMDError, SPMDRun


@pytest.fixture
def taken(folder: Path) -> Path:
    path = folder / "logs" / "r" / "attempt_0" / "0" / "stdout.log"
    path.parent.mkdir(parents=True)
    return path


def failure(start: Callable[..., SPMDRun], program: Callable[[str], str]) -> str:
    with pytest.raises(SPMDError) as caught:
        start("--nproc-per-node=1", program("print('hello')"), log_dir="logs", run_id="r").result.get()
    return str(caught.value)


def test_link_to_a_file_of_value(start: Callable[..., SPMDRun], program: Callable[[str], str], folder: Path, taken: Path) -> None:
    victim = folder / "victim"
    victim.write_text("precious")
    taken.symlink_to(victim)
    assert f"{taken}: the name of a log file is a symbolic link" in failure(start, program)
    assert victim.read_text() == "precious"


def test_pipe_without_a_reader(start: Callable[..., SPMDRun], program: Callable[[str], str], taken: Path) -> None:
    os.mkfifo(taken)
    assert f"{taken}: the name of a log file is a pipe or a socket" in failure(start, program)


def test_pipe_with_a_reader(start: Callable[..., SPMDRun], program: Callable[[str], str], taken: Path) -> None:
    os.mkfifo(taken)
    reader = os.open(taken, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert f"{taken}: the name of a log file is no file" in failure(start, program)
    finally:
        os.close(reader)


def test_socket_and_directory(start: Callable[..., SPMDRun], program: Callable[[str], str], taken: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(taken.parent, os.O_PATH)
        listener.bind(f"/proc/self/fd/{here}/{taken.name}")
        os.close(here)
    assert f"{taken}: the name of a log file is a pipe or a socket" in failure(start, program)
    taken.unlink()
    taken.mkdir()
    assert f"{taken}: Is a directory" in failure(start, program)


def test_file_of_an_earlier_run_is_written_anew(start: Callable[..., SPMDRun], program: Callable[[str], str], taken: Path) -> None:
    taken.write_text("an earlier and longer text")
    start("--nproc-per-node=1", program("print('hello')"), log_dir="logs", run_id="r").result.get()
    assert taken.read_text() == "hello\n"
