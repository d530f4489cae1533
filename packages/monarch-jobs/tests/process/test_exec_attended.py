"""`monarch exec` is killed, on hosts that are never notified of the end of their client: the lease lasts for ever."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import monarch, start
from exec_scripts import wait_for_end

from monarch.job import ProcessJob
from tools.frozen import freeze

FOR_EVER = {"MONARCH_MESH_ORPHAN_TIMEOUT": "none"}
# A child in a session of its own, by a double fork.
CHILD = "setsid sh -c 'trap \"\" INT TERM HUP; echo $$ > child; exec sleep 1000' &"


@pytest.fixture
def job(folder: Path) -> Iterator[ProcessJob]:
    job = ProcessJob({"workers": 1})
    job.state()
    for name in ("pids", "child", "end"):
        os.mkfifo(folder / name)
    yield job
    job.kill()


@contextmanager
def running(folder: Path, words: str) -> Iterator[tuple[int, list[int]]]:
    """The command's pid, and the pids that the words write."""
    with start("exec", "--workdir", str(folder), "sh", "-c", words, env=FOR_EVER, start_new_session=True) as process:
        try:
            with open("pids") as pids:
                yield process.pid, [int(word) for word in pids.read().split()]
        finally:
            process.kill()


@pytest.mark.parametrize("trap", ["", "trap '' INT TERM HUP;"])
def test_killed_exec_leaves_no_descendants(job: ProcessJob, folder: Path, trap: str) -> None:
    words = f"{trap} ({CHILD}); read child < child; echo $$ $child > pids; while :; do sleep 0.1; done"
    with running(folder, words) as (pid, pids):
        os.kill(pid, signal.SIGKILL)
        assert len(pids) == 2 and all(wait_for_end(one) for one in pids)


def test_killed_process_group_leaves_no_descendants(job: ProcessJob, folder: Path) -> None:
    with running(folder, f"({CHILD}); read child < child; echo $$ $child > pids; while :; do sleep 0.1; done") as (pid, pids):
        os.killpg(pid, signal.SIGKILL)
        assert all(wait_for_end(one) for one in pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_end_of_exec_reaches_its_stopped_child(job: ProcessJob, folder: Path, number: signal.Signals) -> None:
    with running(folder, f"({CHILD}); read child < child; echo $$ $child > pids; while :; do sleep 0.1; done") as (pid, pids):
        (client,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        freeze(client)
        os.kill(pid, number)
        assert wait_for_end(client) and all(wait_for_end(one) for one in pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_exec_interrupts_the_command(job: ProcessJob, folder: Path, number: signal.Signals) -> None:
    words = "trap 'echo interrupted; exit 3' INT; echo $$ > pids; while :; do sleep 0.1; done"
    with start("exec", "--workdir", str(folder), "sh", "-c", words) as process:
        with open("pids") as pids:
            pid = int(pids.read())
        process.send_signal(number)
        out, err = process.communicate(timeout=25)
        assert (process.returncode, out, err) == (130, "interrupted\n", "")
        assert wait_for_end(pid)


def _ignore() -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


def test_caller_that_ignores_its_children_gets_the_code(job: ProcessJob) -> None:
    with start("exec", "sh", "-c", "exit 5", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)) as process:
        assert process.communicate(timeout=25) == ("", "")
        assert process.returncode == 5


def test_ignored_signals_are_ignored_by_exec_alone(job: ProcessJob, folder: Path) -> None:
    """As under `nohup`: the command line survives the end of its terminal; the command starts with the signals of a fresh shell."""
    words = "grep SigIgn /proc/self/status; echo $$ > pids; read end < end; kill -HUP $$"
    with start("exec", "--workdir", str(folder), "sh", "-c", words, preexec_fn=_ignore) as process:
        with open("pids") as pids:
            pids.read()
        for number in (signal.SIGHUP, signal.SIGINT):
            process.send_signal(number)
        Path("end").write_text("end\n")
        out, err = process.communicate(timeout=25)
    # The C library reserves the first real-time signals.
    ignored = int(out.split()[1], 16) & 0x7FFF_FFFF
    assert (process.returncode, ignored, err) == (128 + signal.SIGHUP, 0, "")


def test_command_that_ends_keeps_daemons(job: ProcessJob, folder: Path) -> None:
    words = "setsid sh -c 'echo $$ > child; read end < end' & read child < child; echo $child"
    code, out, err = monarch("exec", "--workdir", str(folder), "sh", "-c", words)
    assert (code, err) == (0, "")
    fd = os.pidfd_open(int(out))
    try:
        signal.pidfd_send_signal(fd, 0)
        Path("end").write_text("end\n")
    finally:
        os.close(fd)
    assert wait_for_end(int(out))
