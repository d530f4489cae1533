"""`breakpoint()` in programs of `run`, driven through a terminal by `monarch debug`."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from eventually import eventually

from monarch.spmd import RestartPolicy, SPMDError, SPMDFailure, SPMDRun

Program = Callable[..., str]
Start = Callable[..., SPMDRun]
MONARCH = str(Path(sys.executable).with_name("monarch"))
PROMPT, PDB = "monarch_dbg> ", "(Pdb) "
STOPS = """
import os
def step(x):
    y = x + int(os.environ["RANK"])
    breakpoint()
    y = y * 2
    return y
print("result", step(10))
"""


class Terminal:
    """`monarch debug` in a terminal of its own."""

    def __init__(self, port: str) -> None:
        self.seen = ""
        self.screen, theirs = pty.openpty()
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TERM": "dumb"}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MONARCH_DEBUG")} | variables
        argv = [MONARCH, "debug", "--port", port]
        self.process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True)
        os.close(theirs)

    def until(self, text: str) -> str:
        """Everything that appears up to `text`, which must come."""
        while text not in self.seen:
            assert select.select([self.screen], [], [], 20)[0], f"{text!r} did not appear: {self.seen!r}"
            try:
                self.seen += os.read(self.screen, 1 << 16).decode(errors="replace")
            except OSError:
                raise AssertionError(f"{text!r} did not appear: {self.seen!r}") from None
        before, _, self.seen = self.seen.partition(text)
        return before

    def enter(self, line: str, prompt: str = PDB) -> str:
        """What appears after the line, up to the prompt."""
        os.write(self.screen, line.encode() + b"\n")
        self.until("\n")
        return self.until(prompt).replace("\r\n", "\n")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.screen)


@pytest.fixture(autouse=True)
def any_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_DEBUG_SERVER_PORT", "0")


@pytest.fixture
def debug() -> Iterator[Callable[[SPMDRun, int], Terminal]]:
    """Waits for the breakpoint of a rank, and opens the terminal that its line names."""
    opened: list[Terminal] = []

    def started(running: SPMDRun, rank: int = 0) -> Terminal:
        found = eventually("the breakpoint", lambda: re.search(r"attach with: monarch debug --port (\d+)", running.log(rank).get()))
        terminal = Terminal(found[1])
        opened.append(terminal)
        terminal.until(PROMPT)
        return terminal

    yield started
    for terminal in opened:
        terminal.close()


Debug = Callable[..., Terminal]


def test_program_is_inspected_and_goes_on(program: Program, start: Start, debug: Debug, capfd: pytest.CaptureFixture[str]) -> None:
    script = program(STOPS)
    running = start(script, run_id="one.run")
    terminal = debug(running)
    assert re.search(r"one-run +0 +gpus=0|one-run +0 +hosts=0, gpus=0", terminal.enter("list", PROMPT))
    assert "-> y = y * 2" in terminal.enter("attach one-run 0")
    assert terminal.enter("p x, y") == "(10, 10)\n"
    # Neither the module that starts the program nor `runpy` is shown.
    shown = terminal.enter("where")
    assert f"{script}(8)<module>()" in shown and "start_program" not in shown
    assert "oldest frame" not in terminal.enter("up").lower()
    assert "Oldest frame" in terminal.enter("up")
    terminal.enter("down")
    assert terminal.enter("y = 100; print('set')") == "set\n"
    assert "-> return y" in terminal.enter("n")
    assert "The session of one-run rank 0 is over." in terminal.enter("c", PROMPT)
    assert running.result.get().returns == {0: 0}
    output = capfd.readouterr()
    assert output.out == "[0] result 200\n"
    assert re.fullmatch(
        rf"\[0\] monarch: breakpoint in rank 0 of one-run, step\(\) at {script}:6; attach with: monarch debug --port \d+\n", output.err
    )


def test_all_ranks_stop(program: Program, start: Start, debug: Debug) -> None:
    running = start("--nproc-per-node=2", program(STOPS), run_id="both")
    debug(running, 0)
    terminal = debug(running, 1)
    assert terminal.enter("cast both ranks(:) p y", PROMPT) == "[0] 10\n[1] 11\n"
    assert terminal.enter("attach both 1").endswith("11\n")
    terminal.enter("detach", PROMPT)
    assert terminal.enter("continue", PROMPT) == "2 sessions go on.\n"
    assert running.result.get().returns == {0: 0, 1: 0}


def test_rank_at_a_breakpoint_is_no_hang(program: Program, start: Start, debug: Debug) -> None:
    script = program(
        """
        import os
        if os.environ["RANK"] == "1":
            breakpoint()
            open("fifo", "w").close()
        else:
            open("fifo").read()
        """
    )
    os.mkfifo(Path(script).parent / "fifo")
    running = start("--nproc-per-node=2", script, run_id="waits", policy=RestartPolicy(hang_timeout=5.0))
    terminal = debug(running, 1)
    terminal.enter("attach waits 1")
    terminal.enter("import time; time.sleep(6)")  # sleeps: what is not to happen, a hang, has no event
    terminal.enter("c", PROMPT)
    assert running.result.get().returns == {0: 0, 1: 0}


def test_quit_ends_the_rank(program: Program, start: Start, debug: Debug) -> None:
    running = start(program(STOPS), run_id="quits")
    terminal = debug(running)
    terminal.enter("attach quits 0")
    terminal.enter("q", PROMPT)
    with pytest.raises(SPMDFailure, match="raised BdbQuit: the program was quit in the debugger") as raised:
        running.result.get()
    assert "program_debugger" not in str(raised.value) and "in step" in str(raised.value)


def test_client_that_goes_away_leaves_the_session(program: Program, start: Start, debug: Debug) -> None:
    running = start(program(STOPS), run_id="again")
    first = debug(running)
    first.enter("attach again 0")
    first.enter("z = 7")
    first.process.send_signal(signal.SIGKILL)
    second = debug(running)
    second.enter("attach again 0")
    assert second.enter("p z") == "7\n"
    second.enter("c", PROMPT)
    assert running.result.get().returns == {0: 0}


def test_breakpoints_stepping_and_what_calls_itself(program: Program, start: Start, debug: Debug) -> None:
    script = program(
        """
        def inner(n):
            breakpoint()
            return n
        total = 0
        for n in range(3):
            total += 1
            if n == 0:
                breakpoint()
            total += 1
        print(total)
        """
    )
    running = start(script, run_id="steps")
    terminal = debug(running)
    terminal.enter("attach steps 0")
    assert "passed over" in terminal.enter("inner(1)")
    terminal.enter("b 7")
    assert "-> total += 1" in terminal.enter("c")
    assert terminal.enter("p n, total") == "(1, 2)\n"
    terminal.enter("clear")
    assert terminal.enter("interact", ">>> ") == "exit() leads back to pdb\n"
    assert terminal.enter("n + 5", ">>> ") == "6\n"
    terminal.enter("exit()")
    assert "cannot be run again" in terminal.enter("run")
    terminal.enter("c", PROMPT)
    assert running.result.get().returns == {0: 0}


def test_stepping_past_the_end_of_the_program(program: Program, start: Start, debug: Debug) -> None:
    running = start(program("x = 1\nbreakpoint()\nx = 2\n"), run_id="ends")
    terminal = debug(running)
    terminal.enter("attach ends 0")
    assert "--Return--" in terminal.enter("n")
    assert "is over" in terminal.enter("n", PROMPT)
    assert running.result.get().returns == {0: 0}


def test_threads_and_forked_children(program: Program, start: Start, debug: Debug) -> None:
    script = program(
        """
        import os, sys, threading
        def body(name):
            breakpoint()
            print(name)
        thread = threading.Thread(target=body, args=("thread",))
        thread.start()
        thread.join()
        pid = os.fork()
        if not pid:
            body("child")
            sys.stdout.flush()
            os._exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    running = start(script, run_id="forks")
    terminal = debug(running)
    for name in ("thread", "child"):
        eventually(name, lambda: "forks" in terminal.enter("list", PROMPT))
        terminal.enter("attach forks 0")
        assert terminal.enter("p name") == f"{name!r}\n"
        terminal.enter("c", PROMPT)
    assert running.result.get().returns == {0: 0}


def test_stop_of_a_run_at_a_breakpoint(program: Program, start: Start, debug: Debug) -> None:
    running = start(program(STOPS), run_id="stopped")
    terminal = debug(running)
    terminal.enter("attach stopped 0")
    running.stop()
    terminal.until("The session of stopped rank 0 is over.")
    # The incomplete line now goes to the debugger.
    terminal.enter("list", "No debug sessions.")
    with pytest.raises(SPMDError, match="stopped"):
        running.result.get()


def test_program_killed_at_a_breakpoint(program: Program, start: Start, debug: Debug) -> None:
    running = start(program("import os\nopen('pid', 'w').write(str(os.getpid()))\n" + STOPS), run_id="killed")
    terminal = debug(running)
    terminal.enter("attach killed 0")
    os.kill(int(Path("pid").read_text()), signal.SIGKILL)
    terminal.until("The session of killed rank 0 is over.")
    with pytest.raises(SPMDFailure, match="was killed by SIGKILL"):
        running.result.get()


@pytest.mark.parametrize("redirect", [[], ["--redirects=3"]])
def test_line_is_shown_where_streams_are_redirected(
    program: Program, start: Start, debug: Debug, folder: Path, capfd: pytest.CaptureFixture[str], redirect: list[str]
) -> None:
    running = start(*redirect, "--log-dir", str(folder / "logs"), program(STOPS), run_id="files")
    terminal = debug(running)
    terminal.enter("continue", PROMPT)
    running.result.get()
    assert capfd.readouterr().err.count("[0] monarch: breakpoint in rank 0") == 1
    assert (folder / "logs/files/attempt_0/0/stdout.log").read_text() == "result 20\n"


@pytest.mark.parametrize(("variable", "out"), [("0", ""), ("hooks.mine", "mine\n")])
def test_hooks_of_the_user_keep_their_meaning(
    program: Program, start: Start, capfd: pytest.CaptureFixture[str], variable: str, out: str
) -> None:
    program("def mine():\n    print('mine')", "hooks.py")
    start(program("breakpoint()"), env={"PYTHONBREAKPOINT": variable}).result.get()
    script = program("import sys, hooks\nsys.breakpointhook = hooks.mine\nbreakpoint()", "own.py")
    start(script).result.get()
    shown = capfd.readouterr()
    assert shown.out.replace("[0] ", "") == out + "mine\n" and shown.err == ""


def test_module_of_the_name_monarch_beside_the_program(program: Program, start: Start, debug: Debug) -> None:
    program("raise ImportError('not this one')", "monarch.py")
    running = start(program(STOPS), run_id="beside")
    debug(running).enter("continue", PROMPT)
    assert running.result.get().returns == {0: 0}


def test_environment_of_the_program_has_no_debugger_address(program: Program, start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    start(program("import os, sys\nprint('MONARCH_SPMD_DEBUGGER' in os.environ, 'pdb' in sys.modules)")).result.get()
    assert capfd.readouterr().out == "[0] False False\n"
