"""Processes that outlive who started them: found again by pid and start time, ended with all that is in their sessions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.job._machine import sessions
from monarch.job._machine.sessions import Session

# Prints its pid and those of two children: one in its own process group, one that ignores SIGTERM.
FAMILY = """
import os, signal, subprocess, sys
sleep = [sys.executable, "-c", "import signal, sys; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"]
children = [subprocess.Popen(sleep, stdout=subprocess.PIPE, process_group=group) for group in (None, 0)]
for child in children:
    child.stdout.readline()
print(*[os.getpid(), *(child.pid for child in children)], flush=True)
{end}
"""


@pytest.fixture
def mark() -> str:
    return str(uuid.uuid4())


@pytest.fixture
def family(mark: str, tmp_path: Path) -> Iterator[tuple[Session, list[int]]]:
    yield start_family(mark, tmp_path, "signal.pause()")
    for pid in sessions.members(set(_started), mark):
        os.kill(pid, signal.SIGKILL)


_started: set[int] = set()


def start_family(mark: str, folder: Path, end: str) -> tuple[Session, list[int]]:
    # A pipe in the place of the log shows when the processes are there.
    out = str(folder / "out")
    os.mkfifo(out)
    reader = os.open(out, os.O_RDONLY | os.O_NONBLOCK)
    session = sessions.start([sys.executable, "-c", FAMILY.format(end=end)], os.environ, mark, out, str(folder / "err"))
    _started.add(session.pid)
    os.set_blocking(reader, True)
    with open(reader) as f:
        pids = [int(word) for word in f.readline().split()]
    return session, pids


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if (found := sessions._stat(pid)) is not None and found.state not in "ZX"]


def test_all_of_a_session_ends(family: tuple[Session, list[int]], mark: str) -> None:
    session, pids = family
    assert session.pid == pids[0]
    assert sessions.is_running(session)
    assert sessions.members({session.pid}, mark) == sorted(pids)
    assert sessions.end([session], mark) == []
    assert living(pids) == []
    assert sessions.end([session], mark) == []


def test_children_of_a_dead_leader_end_too(mark: str, tmp_path: Path) -> None:
    session, pids = start_family(mark, tmp_path, "os._exit(3)")
    child = sessions.child(session)
    assert child is not None
    child.wait()
    assert sessions.exit_code(session) == 3
    assert not sessions.is_running(session)
    assert living(pids) == pids[1:]
    assert sessions.end([session], mark) == []
    assert living(pids) == []


def test_process_with_a_reused_pid_is_not_ended(mark: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"], stdout=subprocess.PIPE, start_new_session=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        found = sessions._stat(other.pid)
        assert found is not None
        for planted in (Session(other.pid, found.start + 1), Session(other.pid, 0)):
            assert not sessions.is_running(planted)
            assert sessions.end([planted], mark) == []
        assert other.poll() is None
        other.kill()


def test_pids_that_are_none(mark: str) -> None:
    for planted in (Session(2**22 + 1, 1), Session(os.getpid(), 1), Session(0, 1), Session(-1, 1)):
        assert not sessions.is_running(planted)
        assert sessions.end([planted], mark) == []


def test_logs_are_private_and_go_on(mark: str, tmp_path: Path) -> None:
    out, err = str(tmp_path / "out"), str(tmp_path / "err")
    for _ in range(2):
        session = sessions.start([sys.executable, "-c", "print('x')"], os.environ, mark, out, err)
        child = sessions.child(session)
        assert child is not None and child.wait() == 0
        sessions.end([session], mark)
    assert Path(out).read_text() == "x\nx\n"
    assert os.stat(out).st_mode & 0o077 == 0
