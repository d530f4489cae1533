"""`shell` through a real terminal."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest
from exec_scripts import Script, kill_and_wait, wait_for_end

from monarch.actor import HostMesh, this_host
from monarch.job import ExecError, shell

PRELUDE = """
import os, signal, sys
from monarch.actor import this_host
from monarch.job import shell

# A login shell: what the machine says of prompts comes before what the user says.
ENV = {"SHELL": "/bin/sh", "HOME": os.path.dirname(os.path.abspath(sys.argv[0]))}
"""
CALL = "sys.exit(shell(this_host(), env=ENV))"
PROMPT = "ready> "


@contextmanager
def terminal(folder: Path, code: str = CALL, size: tuple[int, int] = (24, 80)) -> Iterator[pexpect.spawn]:
    path = folder / "session.py"
    (folder / ".profile").write_text("PS1='ready> '\n")
    path.write_text(PRELUDE + textwrap.dedent(code))
    session = pexpect.spawn(sys.executable, ["-W", "error", str(path)], timeout=10, dimensions=size, encoding="utf-8")
    try:
        yield session
    finally:
        session.close(force=True)


def ended(session: pexpect.spawn) -> int:
    session.expect(pexpect.EOF)
    session.wait()
    assert session.exitstatus is not None, session.signalstatus
    return session.exitstatus


def asked(session: pexpect.spawn, line: str, pattern: str) -> str:
    """The match of the pattern in the output of a line; the line itself is echoed, so it must not match."""
    session.sendline(line)
    session.expect(pattern)
    return session.match.group(1)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_commands_and_exit_code(tmp_path: Path) -> None:
    with terminal(tmp_path) as session:
        session.expect(PROMPT)
        assert asked(session, "echo a$((1 + 1))b", "a([0-9])b") == "2"
        assert asked(session, "tty | tr / :", "(:dev:pts:[0-9]+)")
        session.sendline("exit 7")
        assert ended(session) == 7
    # The host has logged the session, for its client.
    rows = [json.loads(line) for line in Path(os.environ["MONARCH_HOME"], "audit.jsonl").read_text().splitlines()]
    (asked_for,) = [row for row in rows if row["action"] == "shell"]
    begun, over = [row for row in rows if row["action"] == "host.shell"]
    assert (begun["outcome"], begun["command"], over["outcome"]) == ("begun", "/bin/sh", "ended with 7")
    assert begun["source"] == over["source"] == asked_for["source"]
    assert begun["pid"] == over["pid"]


def test_signal_counts_as_128_and_its_number(tmp_path: Path) -> None:
    with terminal(tmp_path) as session:
        session.expect(PROMPT)
        session.sendline("kill -9 $$")
        assert ended(session) == 137


def test_window_size_is_followed(tmp_path: Path) -> None:
    with terminal(tmp_path, size=(33, 77)) as session:
        session.expect(PROMPT)
        session.sendline("stty size")
        session.expect("33 77")
        # The shell has no job control, so that the script itself is notified.
        (tmp_path / "loop.sh").write_text("trap 'stty size; echo resized' WINCH\necho trapped\nwhile :; do sleep 0.05; done\n")
        session.sendline(f"sh {tmp_path}/loop.sh")
        session.expect("trapped")
        session.setwinsize(44, 99)
        session.expect("44 99")
        session.expect("resized")


def test_signals_that_another_thread_gets_count(tmp_path: Path) -> None:
    # The kernel delivers a signal to any thread that does not block it, and Python handles it when its main thread wakes.
    code = """
    import threading
    this_host().spawn_procs().initialized.get()
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH, signal.SIGTERM})
    sys.exit(shell(this_host(), env=ENV))
    """
    with terminal(tmp_path, code, size=(33, 77)) as session:
        session.expect(PROMPT)
        (tmp_path / "loop.sh").write_text("trap 'stty size; echo resized' WINCH\necho trapped\nwhile :; do sleep 0.05; done\n")
        session.sendline(f"sh {tmp_path}/loop.sh")
        session.expect("trapped")
        session.setwinsize(44, 99)
        session.expect("44 99")
        os.kill(session.pid, signal.SIGTERM)
        assert ended(session) == 128 + signal.SIGTERM


def test_ignored_hangup_stays_ignored(tmp_path: Path) -> None:
    """As under `nohup`."""
    code = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nsys.exit(shell(this_host(), env=ENV))"
    with terminal(tmp_path, code) as session:
        session.expect(PROMPT)
        os.kill(session.pid, signal.SIGHUP)
        session.sendline("exit 5")
        assert ended(session) == 5


def test_ctrl_c_goes_to_the_program_over_there(tmp_path: Path) -> None:
    with terminal(tmp_path) as session:
        session.expect(PROMPT)
        # A shell that waits for a program handles its own interrupt when that has ended; so this one waits for short ones.
        (tmp_path / "loop.sh").write_text("trap 'echo interrupted; exit' INT\necho waiting\nwhile :; do sleep 0.05; done\n")
        session.sendline(f"sh {tmp_path}/loop.sh")
        session.expect("waiting")
        session.sendintr()
        session.expect("interrupted")
        session.sendline("exit 0")
        assert ended(session) == 0


def test_end_of_file_ends_the_shell(tmp_path: Path) -> None:
    with terminal(tmp_path) as session:
        session.expect(PROMPT)
        session.sendeof()
        assert ended(session) == 0


def test_terminal_settings_are_restored(tmp_path: Path) -> None:
    code = """
    import termios
    before = termios.tcgetattr(0)
    code = shell(this_host(), env=ENV)
    print("same" if termios.tcgetattr(0) == before else "changed", code)
    """
    with terminal(tmp_path, code) as session:
        session.expect(PROMPT)
        session.sendline("exit 3")
        session.expect("same 3")
        assert ended(session) == 0


def test_early_input_is_not_lost(tmp_path: Path) -> None:
    with terminal(tmp_path) as session:
        assert asked(session, "echo a$((1 + 1))b", "a([0-9])b") == "2"


def test_much_output_and_any_characters(tmp_path: Path) -> None:
    with terminal(tmp_path) as session:
        session.expect(PROMPT)
        session.sendline("head -c 300000 /dev/zero | tr '\\0' 'x'; printf '\\303\\244end%d\\n' 1")
        session.expect("äend1")
        assert session.before.count("x") >= 300_000


def test_much_input(tmp_path: Path) -> None:
    with terminal(tmp_path) as session:
        session.expect(PROMPT)
        session.sendline("stty -echo -icanon; echo o''k; head -c 100000 | wc -c")
        session.expect("ok")
        session.send("y" * 100_000)
        session.expect("100000")


def test_tilde_and_dot_leave(tmp_path: Path) -> None:
    with terminal(tmp_path) as session:
        session.expect(PROMPT)
        pid = int(asked(session, "echo p=$((0 + $$))=", "p=([0-9]+)="))
        session.send("\r~.")
        assert ended(session) == 255
        assert wait_for_end(pid)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_shell_gets_signals_when_its_client_ends(tmp_path: Path, number: signal.Signals) -> None:
    with terminal(tmp_path) as session:
        session.expect(PROMPT)
        (tmp_path / "loop.sh").write_text(f"""
            trap 'echo hup >> {tmp_path}/heard' HUP
            trap 'echo term >> {tmp_path}/heard' TERM
            echo p=$$=
            while :; do sleep 0.05; done
        """)
        # The script replaces the shell, and does not control the terminal.
        pid = int(asked(session, f"exec sh {tmp_path}/loop.sh", "p=([0-9]+)="))
        kill_and_wait(session.pid, number) if number == signal.SIGKILL else os.kill(session.pid, number)
        assert wait_for_end(pid)
        heard = (tmp_path / "heard").read_text().split()
        # The kernel sends the first signal as well, when no process has the terminal any more.
        assert heard in (["hup", "term"], ["hup", "hup", "term"])
        if number != signal.SIGKILL:
            assert ended(session) == 128 + number


def test_closed_terminal_ends_the_shell(tmp_path: Path) -> None:
    with terminal(tmp_path) as session:
        session.expect(PROMPT)
        pid = int(asked(session, "echo p=$((0 + $$))=", "p=([0-9]+)="))
    assert wait_for_end(pid)


def test_lost_host_ends_the_shell(tmp_path: Path) -> None:
    code = """
    from monarch.actor import SupervisionError
    try:
        shell(this_host(), env=ENV)
    except SupervisionError as e:
        print("lost", e)
    """
    with terminal(tmp_path, code) as session:
        session.expect(PROMPT)
        guard = int(asked(session, "echo p=$((0 + $PPID))=", "p=([0-9]+)="))
        os.kill(parent(parent(guard)), signal.SIGKILL)
        session.expect("lost .*Killed")
        assert ended(session) == 0


@contextmanager
def fed_shell(line: str) -> Iterator[Script]:
    """A script whose standard input is a pipe with one line, and then its end; it prints the exit code of the shell."""
    script = Script(f"""
    read, write = os.pipe()
    os.write(write, {line!r}.encode() + b"\\n")
    os.close(write)
    os.dup2(read, 0)
    from monarch.job import shell
    say("\\ncode " + str(shell(this_host(), env={{"SHELL": "/bin/sh"}})))
    """)
    try:
        yield script
    except BaseException:
        script.close()
        raise


def test_without_a_terminal() -> None:
    with fed_shell("stty -echo; echo a$((1 + 1))b; exit 4") as script:
        script.until("code 4")
    done = script.end()
    done.assert_clean()
    assert "a2b" in done.out


@pytest.mark.parametrize("trap", ["", "trap '' HUP TERM; "])
def test_end_of_input_hangs_up_a_running_command(tmp_path: Path, trap: str) -> None:
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    line = f"sh -c '{trap}echo $$ > {pids}; while :; do sleep 0.1; done'".replace("''", '""')
    with fed_shell(line) as script:
        pid = int(pids.read_text())
        script.until("code 129")
        assert wait_for_end(pid)
    script.end().assert_clean()


def test_end_of_input_waits_for_short_commands() -> None:
    with fed_shell("for i in 1 2 3 4 5 6 7; do sleep 0.3; done; exit 5") as script:
        script.until("code 5")
    script.end().assert_clean()


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="environment variable"):
        shell(this_host(), env={"": "x"})
    with pytest.raises(ExecError, match="cannot start '/no/such/shell'"):
        shell(this_host(), env={"SHELL": "/no/such/shell"})
    with pytest.raises(ExecError, match="cannot start '/no/such/folder'"):
        shell(this_host(), workdir="/no/such/folder")


def test_shell_needs_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostMesh, "__len__", lambda self: 2)
    with pytest.raises(ValueError, match="singleton HostMesh, this one has 2 hosts"):
        shell(this_host())
