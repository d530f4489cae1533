"""Runs a script in a fresh interpreter and reports its exit, its output, and the processes and files that it left on the machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import uuid
from dataclasses import dataclass
from pathlib import Path

from eventually import SOURCE

from tools.marked_processes import marked_processes

VARIABLE = "MONARCH_TEST_RUN"

# The interpreter loses a Ctrl-C that arrives in a weak-reference callback of its import system. It prints a message, and the user presses
# the keys again.
SWALLOWED = re.compile(r"Exception ignored in: <function _get_module_lock.*\n(?:Traceback.*\n(?:  .*\n)*)?KeyboardInterrupt.*\n")

# The workers of these tests write to files of their own: the client prints once where lines of their procs go.
ELSEWHERE = re.compile(r"^monarch: host\.output: .*\n", re.MULTILINE)

PYTHONS_HELPER = re.compile(r"from multiprocessing\.(resource_tracker|forkserver) import main")

# The preamble of every script.
PRELUDE = f"""
import os, signal, sys, threading, time
from monarch.actor import Actor, concurrent_endpoint, context, endpoint, this_host, this_proc

{SOURCE}
def say(word):
    os.write(1, word.encode() + b"\\n")

class Echo(Actor):
    @endpoint
    def echo(self, x):
        return x

"""


@dataclass
class Done:
    code: int
    out: str
    err: str
    left: list[str]

    def assert_clean(self, code: int = 0, err: str = "") -> None:
        found, wanted = (self.code, ELSEWHERE.sub("", self.err), self.left), (code, err, [])
        assert found == wanted, f"{self.code} {self.left}\n{self.out}\n{self.err}"

    def assert_interrupted(self) -> None:
        """The script ended by Ctrl-C, with nothing on stderr but Python's own traceback."""
        assert self.code in (130, -signal.SIGINT), self
        assert self.left == []
        if self.err:
            lines = SWALLOWED.sub("", self.err).strip().splitlines()
            assert lines[0].startswith("Traceback (most recent call last):"), self.err
            assert lines[-1] == "KeyboardInterrupt", self.err
            assert not any("Exception ignored" in line for line in lines), self.err


class Script:
    """A running script; `send` signals it, `until` waits for a word on its stdout, `end` waits for its end."""

    def __init__(
        self,
        code: str,
        *,
        prelude: str = PRELUDE,
        argv: list[str] | None = None,
        env: dict[str, str] | None = None,
        warnings: tuple[str, ...] = ("-W", "error"),
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = Path(tempfile.mkdtemp(prefix="monarch-test-"))
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        self.path = self.folder / "script.py"
        self.path.write_text(prelude + textwrap.dedent(code))
        self.err = open(self.folder / "stderr", "w+", encoding="utf-8")
        self.before = shared_memory()
        self.seen = b""
        places = {"TMPDIR": str(self.temporary), "XDG_RUNTIME_DIR": str(self.temporary), VARIABLE: self.mark}
        self.process = subprocess.Popen(
            [sys.executable, *warnings, *(argv or [str(self.path)])],
            env={**os.environ, **places, **(env or {})},
            stdin=stdin,
            stdout=subprocess.PIPE,
            # stderr is no pipe: a process left behind would hold a pipe open, and reading it would not end.
            stderr=self.err,
            start_new_session=True,
        )

    def until(self, word: str) -> str:
        """Reads stdout up to the line that begins with `word`, and gives that line."""
        assert self.process.stdout is not None
        while True:
            line = self.process.stdout.readline()
            self.seen += line
            assert line, f"ended before {word!r}: {self.seen.decode()}{Path(self.err.name).read_text()}"
            if line.startswith(word.encode()):
                return line.decode().strip()

    def say(self, *words: object) -> None:
        """Gives the script a line on its stdin, which is a pipe."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, *words: object) -> str:
        """Gives the script a line, and reads the answered line."""
        self.say(*words)
        return self.until("").strip()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def wait_for_all(self) -> int:
        """The script's exit code, once all processes that it has started have ended too, including those that it has not awaited."""
        code = self.process.wait()
        while found := self.processes():
            assert all(wait_for_end(pid) for pid, _ in found), found
        return code

    def end(self) -> Done:
        assert self.process.stdout is not None
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            code = self._wait(25)
            left = self.left()
            for pid, _ in self.processes():
                os.kill(pid, signal.SIGKILL)
            out = (self.seen + self.process.stdout.read()).decode()
            self.err.seek(0)
            return Done(code, out, self.err.read(), left)
        finally:
            self.close()

    def _wait(self, seconds: float) -> int:
        lost = 0
        for _ in range(int(seconds / 0.5)):
            try:
                return self.process.wait(0.5)
            except subprocess.TimeoutExpired:
                seen = len(SWALLOWED.findall(Path(self.err.name).read_text()))
                if seen > lost:
                    lost = seen
                    self.send(signal.SIGINT)
        try:
            return self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._show_stacks()
            raise

    def _show_stacks(self) -> None:
        """Prints where the processes of a script that does not end are, for the report of the failure."""
        argv = (str(Path(sys.executable).parent / "monarch"), "stack", "--all", str(self.process.pid))
        env = {**os.environ, "TMPDIR": str(self.temporary), "XDG_RUNTIME_DIR": str(self.temporary)}
        shown = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        print(shown.stdout, shown.stderr, Path(self.err.name).read_text(), self.processes(), sep="\n")

    def close(self) -> None:
        """Ends the remaining processes."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid, _ in self.processes():
            os.kill(pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self.err.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def left(self) -> list[str]:
        # The kernel may need a moment to end killed processes, and Python's own helpers end after their parent, when their pipe closes:
        # their descriptors show when.
        for pid, command in self.processes():
            if self.process.returncode < 0 or PYTHONS_HELPER.search(command):
                wait_for_end(pid)
        left = [f"process {pid}: {command}" for pid, command in self.processes()]
        # An abstract socket or a memory descriptor would need one of these processes; other sockets are files.
        left += sorted(shared_memory() - self.before)
        return left + [f"file {path.name}" for path in sorted(self.temporary.rglob("*"))]

    def processes(self) -> list[tuple[int, str]]:
        """Pid and command line of every living process of this run."""
        return marked_processes(VARIABLE, self.mark)


def wait_for_end(pid: int, seconds: float = 10.0) -> bool:
    """True when the process is gone; false if it is still there after `seconds`."""
    import select

    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


def shared_memory() -> set[str]:
    return {f"shared memory {name}" for name in os.listdir("/dev/shm") if "monarch" in name}


def run(code: str, **options: object) -> Done:
    """Runs a script to its end."""
    return Script(code, **options).end()  # type: ignore[arg-type]


def interrupt(code: str, word: str, number: int = signal.SIGINT) -> Done:
    """Signals a script when it prints `word`."""
    # An interrupt in the middle of an import leaves that module's file to the collector, which is no error of Monarch.
    script = Script(code, warnings=("-W", "error", "-W", "ignore::ResourceWarning"))
    try:
        script.until(word)
        script.send(number)
    except BaseException:
        script.close()
        raise
    return script.end()
