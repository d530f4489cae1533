"""The process in which TorchX runs. Its arguments: SOCKET SCHEDULER. The socket is a channel.

TorchX is kept out of the client: its local scheduler takes over the handlers of signals, and ends what it has started when the process
ends; clients of schedulers may hang, and are then ended with this process. It ends at the end of its input, except where the scheduler has
the application only as long as it lives: then it stays until the application ends, or SIGTERM asks it to end that.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from torchx.runner import Runner  # pyright: ignore[reportMissingTypeStubs]
from torchx.schedulers import get_scheduler_factories  # pyright: ignore[reportMissingTypeStubs]
from torchx.schedulers.local_scheduler import LocalScheduler  # pyright: ignore[reportMissingTypeStubs]
from torchx.specs import NONE, AppStatus, is_terminal  # pyright: ignore[reportMissingTypeStubs]

from monarch.extension.channel import Channel, ChannelError
from monarch.job.torchx.application import from_json

if TYPE_CHECKING:
    from types import FrameType

SESSION = "monarch"
STATE_FILE = "application.json"
_INTERVAL_S = 0.1
_MOST_LINES = 10_000


class _Ended(BaseException):
    """SIGTERM."""


class SchedulerProcess:
    """Answers requests for one scheduler."""

    def __init__(self, scheduler: str) -> None:
        self._name = scheduler
        self._holds = False
        # Its types are generic in ways that it does not state.
        self._runner: Any = Runner(SESSION, {scheduler: self._make})
        self.handle: str | None = None
        self._folder = ""

    def _make(self, session_name: str, **parameters: object) -> Any:
        make: Any = get_scheduler_factories()[self._name]
        made = make(session_name, **parameters)
        self._holds = isinstance(made, LocalScheduler)
        # The local scheduler has set handlers of its own.
        _handle_signals()
        return made

    def submit(self, app: dict[str, Any], cfg: dict[str, Any], folder: str) -> dict[str, Any]:
        """Checks the configuration, and runs the application."""
        options = self._runner.scheduler_run_opts(self._name)
        known = [name for name, _ in options]
        for name in cfg:
            if name not in known:
                raise ValueError(f"scheduler_cfg: the scheduler '{self._name}' has no '{name}'; it has: {', '.join(known) or 'no options'}")
        if self._holds and not cfg.get("log_dir"):
            cfg = {**cfg, "log_dir": os.path.join(folder, "torchx")}
        checked = self._runner.dryrun(from_json(app), self._name, cfg)
        handle: str = self._runner.schedule(checked)
        self.handle = handle
        self._folder = folder
        if self._holds:
            self._write(self._state(handle))
        return {"handle": handle, "holds": self._holds}

    def describe(self, handle: str) -> dict[str, Any] | None:
        """The application as the scheduler has it; None where it knows nothing of it any more."""
        return self._state(handle)

    def cancel(self, handle: str) -> None:
        self._runner.cancel(handle)

    def logs(self, handle: str, role: str, replica: int, lines: int) -> list[str]:
        """The last lines that the scheduler has of a replica."""
        found = itertools.islice(self._runner.log_lines(handle, role, replica), _MOST_LINES)
        return [line.rstrip("\n") for line in found][-lines:]

    def hold(self) -> None:
        """Stays as long as the application runs."""
        if not self._holds or self.handle is None:
            return
        seen: dict[str, Any] | None = None
        pause = threading.Event()
        try:
            while True:
                state = self._state(self.handle)
                if state != seen:
                    self._write(state)
                    seen = state
                if state is None or state["is_over"]:
                    return
                pause.wait(_INTERVAL_S)
        except _Ended:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._runner.cancel(self.handle)
            self._write(self._state(self.handle))

    def _state(self, handle: str) -> dict[str, Any] | None:
        status: AppStatus | None = self._runner.status(handle)
        return None if status is None else as_json(status)

    def _write(self, state: dict[str, Any] | None) -> None:
        path = os.path.join(self._folder, STATE_FILE)
        with contextlib.suppress(FileNotFoundError):  # the folder is removed with the job
            with open(f"{path}.new", "w") as f:
                json.dump(state, f)
            os.replace(f"{path}.new", path)


def as_json(status: AppStatus) -> dict[str, Any]:
    """What TorchX knows, in words: `replicas` has role, number, state, machine and error of each, as far as the scheduler has them."""
    return {
        "state": status.state.name,
        "is_over": is_terminal(status.state),
        "words": "\n".join(text for text in (status.msg, status.structured_error_msg) if text and text != NONE),
        "replicas": [
            {
                "role": replica.role,
                "replica": replica.id,
                "state": replica.state.name,
                "is_over": is_terminal(replica.state),
                "host": replica.hostname,
                "words": "" if replica.structured_error_msg == NONE else replica.structured_error_msg,
            }
            for role in status.roles
            for replica in role.replicas
        ],
    }


def serve(requests: Channel, process: SchedulerProcess) -> None:
    """Answers until the end of the input: `{"answer": ...}`, or `{"error": text, "command": ..., "exit_code": ...}`."""
    actions = {"submit": process.submit, "describe": process.describe, "cancel": process.cancel, "logs": process.logs}
    # A signal that comes just before a read interrupts nothing. The interpreter writes into the pipe at once.
    signalled, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        # One request at a time: the client waits for its answer.
        ready, _, _ = select.select([requests, signalled], [], [])
        if signalled in ready:
            os.read(signalled, 64)
            continue
        request = requests.take().head
        try:
            answer = {"answer": actions[request.pop("what")](**request)}
        except subprocess.CalledProcessError as e:
            command = e.cmd if isinstance(e.cmd, str) else " ".join(map(str, e.cmd))
            answer = {"error": str(e), "command": command, "exit_code": e.returncode}
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}" if not isinstance(e, ValueError) else str(e)}
        requests.send(answer)


def _handle_signals() -> None:
    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise _Ended

    signal.signal(signal.SIGTERM, end)
    # The client handles its Ctrl-C itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main() -> None:
    _handle_signals()
    descriptor, scheduler = sys.argv[1:]
    process = SchedulerProcess(scheduler)
    try:
        with contextlib.closing(Channel(socket.socket(fileno=int(descriptor)))) as requests:
            serve(requests, process)
    except _Ended:
        # `hold` has not begun: started applications are ended all the same.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if process.handle is not None:
            process.cancel(process.handle)
        sys.exit(1)
    except ChannelError:
        pass  # the client has gone
    process.hold()
