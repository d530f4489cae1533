"""Which interpreter SkyPilot is installed for, and the process of it that drives SkyPilot."""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, Any

from monarch.extension import setting
from monarch.extension.channel import CHANNEL_FILE, Channel, ChannelEnded
from monarch.job._machine.commands import time_left
from monarch.job.errors import BackendMissingError, JobError
from monarch.job.skypilot import sky_process

# The tested versions: [first, next).
TESTED = ((0, 14), (0, 15))
# Seconds: a start of SkyPilot's API server takes 8 s on an idle machine; importing it, 2 s.
START_TIMEOUT_S = 300.0
INSTALL = 'pip install "monarch-jobs[skypilot]", or into an environment of its own, whose interpreter MONARCH_SKYPILOT_PYTHON names'


class SkyPilotError(JobError):
    """What SkyPilot raised; `kind` is the name of its class."""

    def __init__(self, what: str, *, title: str, cause: str, kind: str) -> None:
        super().__init__(what, title=title, cause=cause)
        self.cause = cause
        self.kind = kind


def interpreter(title: str) -> str:
    """The path; `BackendMissingError` where SkyPilot is not installed at all."""
    named = str(setting("skypilot_python") or "")
    if named:
        found = shutil.which(os.path.expanduser(named))
        if found is None:
            raise BackendMissingError(f"MONARCH_SKYPILOT_PYTHON={named} is no program", title=title, hint=INSTALL)
        return found
    if importlib.util.find_spec("sky") is not None:
        return sys.executable
    command = shutil.which("sky")
    if command is not None:
        with open(command, "rb") as file:
            first = file.readline(500).decode(errors="replace")
        python = re.fullmatch(r"#!\s*(/\S+)\s*", first)
        if python is not None and os.access(python[1], os.X_OK):
            return python[1]
    raise BackendMissingError("SkyPilot is not installed", title=title, hint=INSTALL)


def check_version(text: str, title: str) -> None:
    """`BackendMissingError` for a version that is not among those tested."""
    found = re.match(r"(\d+)\.(\d+)", text)
    low, high = (".".join(map(str, part)) for part in TESTED)
    if found is None or not TESTED[0] <= (int(found[1]), int(found[2])) < TESTED[1]:
        raise BackendMissingError(
            f"SkyPilot {text} is not supported: this version of monarch-jobs is tested with {low} and later, below {high}",
            title=title,
            hint=f'pip install "skypilot>={low},<{high}"',
        )


class SkyProcess:
    """One process for all jobs of this one; it is started by the first request, again if it has ended, and ends with this process."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._errors: IO[bytes] | None = None
        self._is_checked = False
        atexit.register(self.close)

    def ask(self, name: str, *, title: str, timeout: float = START_TIMEOUT_S, **arguments: Any) -> Any:
        """The answer; `SkyPilotError` has what SkyPilot raised. A request that takes longer than `timeout` seconds is ended."""
        end = time.monotonic() + time_left(timeout)
        with self._lock:
            if not self._is_checked:
                check_version(str(self._asked("version", {}, title, end)), title)
                self._is_checked = True
            return self._asked(name, arguments, title, end)

    def close(self) -> None:
        with self._lock:
            self._end()

    def _asked(self, name: str, arguments: dict[str, Any], title: str, end: float) -> Any:
        channel = self._started(title)
        try:
            channel.send({"do": name, "with": arguments})
            answer = channel.take(max(end - time.monotonic(), 0.0)).head
        except TimeoutError:
            words = self._words()
            self._end()
            raise SkyPilotError(f"SkyPilot has not answered '{name}' in time", title=title, cause=words, kind="TimeoutError") from None
        except ChannelEnded:
            words = self._words()
            self._end()
            raise SkyPilotError(f"{self._python}, which drives SkyPilot, has ended", title=title, cause=words, kind="EOFError") from None
        except BaseException:  # Ctrl-C: an answer that comes later would be taken for the next one's
            self._end()
            raise
        if "error" not in answer:
            return answer["ok"]
        if answer["kind"] in ("ModuleNotFoundError", "ImportError") and name == "version":
            raise BackendMissingError(f"{self._python} has no SkyPilot: {answer['error']}", title=title, hint=INSTALL)
        raise SkyPilotError(f"SkyPilot: {answer['kind']}", title=title, cause=answer["error"], kind=answer["kind"])

    def _started(self, title: str) -> Channel:
        if self._channel is not None and self._process is not None and self._process.poll() is None:
            return self._channel
        self._end()
        # Settings of this interpreter are not meant for the other one; no other program receives the secrets of a job.
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MONARCH_", "PYTEST_"))}
        self._errors = tempfile.TemporaryFile()
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours, max_blob=0)
        argv = [self._python, "-u", sky_process.__file__, str(theirs.fileno()), CHANNEL_FILE]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=self._errors,
                    stderr=self._errors,
                    env=env,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except OSError as error:
            self._end()
            raise BackendMissingError(f"{self._python} cannot be started: {error}", title=title, hint=INSTALL) from None
        return self._channel

    def _words(self) -> str:
        """The end of what SkyPilot has printed."""
        if self._errors is None:
            return ""
        self._errors.seek(0, 2)
        self._errors.seek(max(self._errors.tell() - 4000, 0))
        return "\n".join(self._errors.read().decode(errors="replace").splitlines()[-15:])

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None


_processes: dict[str, SkyProcess] = {}
_lock = threading.Lock()


def sky_of(title: str) -> SkyProcess:
    """The process for the interpreter that is in use now."""
    python = interpreter(title)
    with _lock:
        return _processes.setdefault(python, SkyProcess(python))
