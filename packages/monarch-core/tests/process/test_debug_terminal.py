"""`monarch debug` in a real terminal, which tmux provides: editing, history, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from debugged_actors import DebugLine
from fresh_script import Script

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux: tools/system_packages.sh test")

MAIN = "from monarch._core.cli import main; main()"
SCRIPT = """
from monarch.actor import debug_controller
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])

class Stop(Actor):
    @endpoint
    def step(self, x):
        y = x + 1
        breakpoint()
        return y

result = this_host().spawn_procs({'gpus': 2}).spawn('two', Stop).step.call(1)
debug_controller().wait_pending_sessions.call_one(2).get()
say(f"port {debug_controller().serve.call_one().get()[1]}")
signal.sigwait([signal.SIGUSR1])
"""


class Terminal:
    """A terminal that runs `monarch debug`; its output arrives through a pipe."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.seen = ""
        pipe = folder / "screen"
        os.mkfifo(pipe)
        self.screen = os.open(pipe, os.O_RDWR)
        debug = shlex.join([sys.executable, "-c", MAIN, "debug", "--port", str(port)])
        # The command begins when the pipe is there, and the terminal stays until it is killed.
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", "150", "-y", "50", f"read go; {debug}; echo exit=$?; read stay")
        self.tmux("pipe-pane", "-o", f"exec cat > {shlex.quote(str(pipe))}")
        self.keys("Enter")

    def tmux(self, *arguments: str) -> None:
        variables = {"TMUX_TMPDIR": str(self.folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TERM": "xterm"}
        environment = {name: value for name, value in os.environ.items() if name != "TMUX"} | variables
        subprocess.run(["tmux", *arguments], env=environment, check=True, stdin=subprocess.DEVNULL)

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)

    def line(self, text: str) -> None:
        self.type(text)
        self.keys("Enter")

    def until(self, text: str) -> str:
        """The output up to and without `text`, which must come."""
        while text not in self.seen:
            assert select.select([self.screen], [], [], 20)[0], f"{text!r} did not appear: {self.seen!r}"
            self.seen += os.read(self.screen, 1 << 16).decode(errors="replace")
        before, _, self.seen = self.seen.partition(text)
        return before

    def close(self) -> None:
        self.tmux("kill-server")
        os.close(self.screen)


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script(SCRIPT, env={"MONARCH_DEBUG_SERVER_PORT": "0"})
    yield made
    made.close()


@pytest.fixture
def port(script: Script) -> int:
    return int(script.until("port").split()[1])


@pytest.fixture
def terminal(tmp_path: Path, port: int) -> Iterator[Terminal]:
    made = Terminal(tmp_path, port)
    made.until("monarch_dbg> ")
    yield made
    made.close()


def test_session_runs_in_a_terminal(script: Script, terminal: Terminal) -> None:
    terminal.line("list")
    assert "gpus=1" in terminal.until("monarch_dbg> ")
    terminal.line("attach two 1")
    assert "-> return y" in terminal.until("(Pdb) ")
    terminal.line("p y * 1000")
    terminal.until("2000")
    terminal.until("(Pdb) ")
    # The previous line, edited: its last two digits are deleted.
    terminal.keys("Up", "BSpace", "BSpace", "Enter")
    assert "20\r\n" in terminal.until("(Pdb) ")
    terminal.line("detach")
    terminal.until("monarch_dbg> ")
    terminal.line("continue")
    assert "2 sessions go on." in terminal.until("monarch_dbg> ")
    terminal.keys("C-d")
    terminal.until("exit=0")
    script.send(signal.SIGUSR1)
    assert script.end().code == 0


def test_ctrl_c_drops_the_line(terminal: Terminal) -> None:
    terminal.type("half a comm")
    terminal.until("half a comm")
    terminal.keys("C-c")
    terminal.until("monarch_dbg> ")
    terminal.line("attach two 0")
    terminal.until("(Pdb) ")
    terminal.type("y = 'lost'")
    terminal.until("'lost'")
    terminal.keys("C-c")
    terminal.until("(Pdb) ")
    terminal.line("p y")
    assert "2\r\n" in terminal.until("(Pdb) ")
    terminal.line("detach")
    terminal.until("monarch_dbg> ")
    terminal.line("quit")
    terminal.until("exit=0")


def test_ctrl_c_interrupts_a_running_command(script: Script, terminal: Terminal) -> None:
    terminal.line("attach two 0")
    terminal.until("(Pdb) ")
    terminal.line("print('begun'); __import__('threading').Event().wait()")
    terminal.until("\nbegun")
    terminal.keys("C-c")
    assert "Detached from two rank 0, which runs." in terminal.until("monarch_dbg> ")
    terminal.line("cast two ranks(:) p y")
    shown = terminal.until("monarch_dbg> ")
    assert "[0] runs: nothing sent" in shown
    assert "[1] 2" in shown
    terminal.line("attach two 0")
    terminal.until("\nbegun")
    terminal.keys("C-c")
    terminal.until("monarch_dbg> ")
    terminal.keys("C-d")
    terminal.until("exit=0")
    script.send(signal.SIGUSR1)
    done = script.end()
    assert (done.code, done.left) == (0, [])


def test_ctrl_d_in_pdb_leaves_the_session(port: int, terminal: Terminal) -> None:
    terminal.line("attach two 0")
    terminal.until("(Pdb) ")
    terminal.keys("C-d")
    terminal.until("exit=0")
    with DebugLine(("127.0.0.1", port)) as line:
        assert "two    0" in line.ask("list")


def test_new_client_takes_over_an_unfinished_line(port: int, terminal: Terminal) -> None:
    terminal.type("half a comm")
    terminal.until("half a comm")
    with DebugLine(("127.0.0.1", port)):
        terminal.until("Another client has taken over.")
        terminal.until("exit=1")


def test_job_ends_during_an_unfinished_line(script: Script, terminal: Terminal) -> None:
    terminal.type("half a comm")
    terminal.until("half a comm")
    script.send(signal.SIGUSR1)
    terminal.until("The job has ended.")
    terminal.until("exit=0")
