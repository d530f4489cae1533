"""The scheduler itself, without Monarch: a queue of tasks, of which at most one per slot runs at once.

There is no daemon. Every task has a process that waits for the lock of a slot, and then runs the command. A second lock is held as long as
that process lives: a process that queries the state of a task tries to take it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Generator, Sequence

TERM_SECONDS = 2.0
_PAUSE = 0.05


class Slots:
    """Tasks below `folder`, at most `slots` of them at once."""

    def __init__(self, folder: str, slots: int) -> None:
        self.folder = os.path.abspath(os.path.expanduser(folder))
        self.slots = slots

    def place(self, task: str) -> str:
        """The task's private folder."""
        return os.path.join(self.folder, task)

    def new(self) -> str:
        """A task with a folder of its own, 0700, which is not submitted yet."""
        task = uuid.uuid4().hex[:12]
        os.makedirs(self.place(task), 0o700)
        return task

    def submit(self, task: str, command: Sequence[str]) -> None:
        """Queues the command."""
        with open(os.path.join(self.place(task), "command.json"), "w") as f:
            json.dump(list(command), f)
        # The lock is taken here and inherited: at no moment does the task look ended.
        with open(os.path.join(self.place(task), "alive"), "w") as alive, open(os.path.join(self.place(task), "output"), "ab") as output:
            fcntl.flock(alive, fcntl.LOCK_EX)
            argv = [sys.executable, "-m", "my_scheduler.slots", self.folder, str(self.slots), task, str(alive.fileno())]
            _Task(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[alive.fileno()],
            )

    def state(self, task: str) -> str:
        """`waiting`, `running`, or the end: `ended with code N`, `killed`, `unknown` for a task that was removed."""
        if not os.path.isdir(self.place(task)):
            return "unknown"
        if self._is_alive(task):
            return "running" if os.path.exists(os.path.join(self.place(task), "pid")) else "waiting"
        with contextlib.suppress(FileNotFoundError), open(os.path.join(self.place(task), "code")) as f:
            return f"ended with code {f.read()}"
        return "killed"

    def tail(self, task: str) -> str:
        """The last lines of the output."""
        with contextlib.suppress(FileNotFoundError), open(os.path.join(self.place(task), "output"), errors="replace") as f:
            return "".join(f.readlines()[-5:])
        return ""

    def cancel(self, task: str) -> None:
        """Ends the task and removes its folder; an ended or unknown task is no error."""
        end = time.monotonic() + TERM_SECONDS
        for number in (signal.SIGTERM, signal.SIGKILL):
            while self._is_alive(task):
                pid = self._group(task)
                if pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, number)
                if number == signal.SIGTERM and time.monotonic() > end:
                    break
                time.sleep(_PAUSE)
        shutil.rmtree(self.place(task), ignore_errors=True)

    def _group(self, task: str) -> int | None:
        with contextlib.suppress(FileNotFoundError, ValueError), open(os.path.join(self.place(task), "group")) as f:
            return int(f.read())
        return None

    def _is_alive(self, task: str) -> bool:
        try:
            with open(os.path.join(self.place(task), "alive")) as f:
                fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False


class _Task(subprocess.Popen[bytes]):
    """A child that outlives this process, which needs no warning."""

    def __del__(self) -> None:
        self.poll()


def _write(path: str, text: str) -> None:
    with open(f"{path}.new", "w") as f:
        f.write(text)
    os.replace(f"{path}.new", path)


@contextlib.contextmanager
def _slot(folder: str, slots: int) -> Generator[None]:
    while True:
        for number in range(slots):
            with open(os.path.join(folder, f"slot-{number}"), "w") as f:
                try:
                    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield
                return
        time.sleep(_PAUSE)


def main(folder: str, slots: str, task: str, alive: str) -> int:
    """The process of a task."""
    os.set_inheritable(int(alive), False)
    place = os.path.join(folder, task)
    _write(os.path.join(place, "group"), str(os.getpid()))
    with open(os.path.join(place, "command.json")) as f:
        command: list[str] = json.load(f)
    with _slot(folder, int(slots)):
        # SIGTERM goes to the whole group; this process stays until the command has ended.
        child = subprocess.Popen(command)
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        _write(os.path.join(place, "pid"), str(child.pid))
        code = child.wait()
    with contextlib.suppress(FileNotFoundError):
        _write(os.path.join(place, "code"), str(code))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
