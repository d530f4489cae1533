"""How commands end when another process does: signals, timeouts, killed processes, a client that goes. Nothing is left of any of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from exec_scripts import Done, Script, kill_and_wait, number_after, wait_for_end

from monarch.actor import SupervisionError, this_host
from monarch.job import exec_command

# Prints its own number and that of a process that has left its group and its parent.
FAMILY = "setsid sleep 1000 & echo pids $$ $!; while :; do sleep 1000; done"
# A similar program that only SIGKILL ends.
STUBBORN = "trap '' INT TERM; echo pids $$ > $FIFO; while :; do sleep 1; done"


@contextmanager
def running(code: str) -> Iterator[Script]:
    script = Script(code)
    try:
        yield script
    except BaseException:
        script.close()
        raise


def end_with(script: Script, number: int) -> Done:
    script.send(number)
    return script.end()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def proc_of(pid: int) -> int:
    """The proc of a command, above its guard and the watchdog."""
    return parent(parent(parent(pid)))


@contextmanager
def started(tmp_path: Path, words: str) -> Iterator[tuple[object, list[int]]]:
    """A command of pytest's own, and the numbers that it prints."""
    os.mkfifo(tmp_path / "pids")
    future = exec_command(this_host(), ["sh", "-c", f"{{ {words} }} > {tmp_path}/pids"])
    with open(tmp_path / "pids") as pids:
        yield future, [int(word) for word in pids.readline().split()[1:]]


def test_killed_command_has_code_137(tmp_path: Path) -> None:
    with started(tmp_path, "echo pids $$; while :; do sleep 1000; done") as (future, (pid,)):
        kill_and_wait(pid, signal.SIGKILL)
        assert future.get() == 137


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_command_that_signals_its_guards_ends(number: int) -> None:
    words = f"w=$(cut -d ' ' -f 4 /proc/$PPID/stat); kill -{number} $w $PPID; exit 3"
    assert exec_command(this_host(), ["sh", "-c", words]).get() == (3 if number == signal.SIGSTOP else 137)


def test_killed_guard_ends_its_command() -> None:
    words = "setsid sleep 1000 & echo pids $! $$; while :; do sleep 1000; done"
    with running(f'say("code " + str(exec_command(this_host(), ["sh", "-c", {words!r}]).get()))') as script:
        other, pid = map(int, script.until("pids").split()[1:])
        os.kill(parent(pid), signal.SIGKILL)
        script.until("code 137")
        assert wait_for_end(pid) and wait_for_end(other)
        script.end().assert_clean()


def test_killed_proc_ends_its_command(tmp_path: Path) -> None:
    with started(tmp_path, FAMILY + ";") as (future, (pid, other)):
        os.kill(proc_of(pid), signal.SIGKILL)
        error = future.exception()
        assert isinstance(error, SupervisionError)
        assert "Killed(sig=9)" in str(error)
        assert wait_for_end(pid) and wait_for_end(other)


def test_killed_proc_does_not_end_other_commands(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pids")
    os.mkfifo(tmp_path / "go")
    words = (
        f"if [ $MONARCH_RANK_X = 0 ]; then echo $$ > {tmp_path}/pids; sleep 1000; fi; read x < {tmp_path}/go; echo done > {tmp_path}/end"
    )
    future = exec_command(this_host(), ["sh", "-c", words], per_host={"x": 2})
    pid = int((tmp_path / "pids").read_text())
    os.kill(proc_of(pid), signal.SIGKILL)
    assert wait_for_end(pid)
    (tmp_path / "go").write_text("go\n")
    assert isinstance(future.exception(), SupervisionError)
    assert (tmp_path / "end").read_text() == "done\n"


def test_killed_client_ends_its_commands() -> None:
    with running(f'exec_command(this_host(), ["sh", "-c", {FAMILY!r}]).get()') as script:
        script.until("pids")
        assert end_with(script, signal.SIGKILL).left == []


def test_killed_client_ends_a_printing_command() -> None:
    with running('exec_command(this_host(), ["yes"]).get()') as script:
        script.until("y")
        done = end_with(script, signal.SIGKILL)
        assert done.left == []


def test_output_after_ctrl_c_is_shown() -> None:
    words = "trap 'echo last words; exit 3' INT; echo ready; while :; do sleep 0.1; done"
    with running(f'exec_command(this_host(), ["sh", "-c", {words!r}]).get()') as script:
        script.until("ready")
        done = end_with(script, signal.SIGINT)
        done.assert_interrupted()
        assert done.out == "ready\nlast words\n"


def test_end_of_the_client_interrupts_the_command() -> None:
    words = "trap 'echo interrupted; exit 0' INT; echo ready > $FIFO; while :; do sleep 0.1; done"
    with running(f"""
    fifo = sys.argv[0] + ".fifo"
    os.mkfifo(fifo)
    future = exec_command(this_host(), ["sh", "-c", {words!r}], env={{"FIFO": fifo}})
    with open(fifo) as f:
        assert f.read() == "ready\\n"
    """) as script:
        done = script.end()
        done.assert_clean()
        assert done.out == "interrupted\n"


def test_command_ignoring_signals_is_killed_with_its_client() -> None:
    with running(f"""
    from monarch.job._host import command
    command.GRACE = 0.1
    fifo = sys.argv[0] + ".fifo"
    os.mkfifo(fifo)
    future = exec_command(this_host(), ["sh", "-c", {STUBBORN!r}], env={{"FIFO": fifo}})
    with open(fifo) as f:
        f.read()
    """) as script:
        script.end().assert_clean()


def test_second_ctrl_c_kills_a_command_ignoring_signals() -> None:
    words = "trap 'echo once' INT; trap '' TERM; echo pids $$; while :; do sleep 0.1; done"
    with running(f'exec_command(this_host(), ["sh", "-c", {words!r}]).get()') as script:
        pid = number_after(script, "pids")
        script.send(signal.SIGINT)
        script.until("once")
        done = end_with(script, signal.SIGINT)
        done.assert_interrupted()
        assert wait_for_end(pid)


def test_orderly_shutdown_ends_the_command() -> None:
    with running(f"""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    future = exec_command(this_host(), ["sh", "-c", {FAMILY.replace("setsid ", "")!r}])
    signal.sigwait([signal.SIGUSR1])
    shutdown_context().get()
    say(type(future.exception()).__name__)
    """) as script:
        script.until("pids")
        script.send(signal.SIGUSR1)
        done = script.end()
        assert (done.code, done.err, done.left) == (0, "", [])


def test_timeout_kills_all_that_descends_from_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("monarch.job._host.command.GRACE", 0.1)
    words = f"setsid sh -c 'echo $$ > {tmp_path}/pid; trap \"\" INT TERM; exec sleep 1000' & trap '' INT TERM; while :; do sleep 1; done"
    assert exec_command(this_host(), ["sh", "-c", words], timeout=0.5).get() == 124
    assert wait_for_end(int((tmp_path / "pid").read_text()))


def test_transferred_script_is_removed_after_the_clients_kill(tmp_path: Path) -> None:
    code = """
    from monarch.job._client.exec import make_target, start
    script = ("hello.sh", b"echo pids $$ $0; while :; do sleep 1000; done")
    start([make_target(this_host(), ("sh", None), script=script)])[1].get()
    """
    with running(code) as script:
        place = Path(script.until("pids").split()[-1])
        assert place.name == "hello.sh"
        assert place.is_file()
        assert end_with(script, signal.SIGKILL).left == []
        assert not place.exists()


def test_interrupting_python_gives_130() -> None:
    code = "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler); os.kill(os.getpid(), 2); signal.pause()"
    assert exec_command(this_host(), [sys.executable, "-c", code]).get() == 130
