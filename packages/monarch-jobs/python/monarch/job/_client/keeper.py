"""The keeper of a job, as its clients see it: a local process that goes on with services after the script has ended.

`Keeper` starts the process with the first service. One process runs for each job: it holds a lock on a file of its directory. Clients
start it one at a time, under another lock, so that two scripts that need it at once start one process. A connection begins with a
greeting of the keeper; a keeper that is ending closes the connection instead, and the client starts the next one. A request has no time
limit: the end of the keeper ends the wait.

A keeper that has lost a host cannot use it again, also where the host lives, while a new process can. The client replaces such a keeper by
one that follows it, which takes its services over.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from monarch.extension import python_command
from monarch.extension.channel import Channel, ChannelEnded, ChannelError
from monarch.job._client import keeper_channel, kept_record
from monarch.job._client.keeper_channel import SILENT, plain
from monarch.job._files import credentials
from monarch.job._machine import sessions
from monarch.job.errors import KeeperError

FOLDER = "keeper"
LOG = "log"
LOCK = "lock"
_START_LOCK = "start"
# Seconds for a process that imports the libraries of its services, on a busy machine.
_START_SECONDS = 60.0
_GREETING_SECONDS = 10.0
# Seconds for the services to stop. A keeper that takes longer is killed.
_END_SECONDS = 10.0
_PAUSE_S = 0.02
_PROCESS = "monarch.job._keeper.keeper_process"
# Variables that name the job of a process, or replace it.
_NOT_INHERITED = frozenset({"MONARCH_JOB", "MONARCH_JOB_SHRINK", "MONARCH_BATCH_JOB", "MONARCH_BATCH_JOB_FILE"})


class Launch(NamedTuple):
    """What a keeper is started with: the saved job, its state file, and the modules that its class needs."""

    record: str
    path: str | None
    modules: list[str]


class KeptStatus(NamedTuple):
    """One service of a keeper: `detail` is the service's own description.

    `state` is "starting", "running", "stopping", or "failed": a keeper that follows one that was killed could not start it again.
    """

    service: str
    key: str
    state: str
    config: dict[str, Any]
    detail: dict[str, Any]


class KeeperStatus(NamedTuple):
    """A keeper that runs."""

    pid: int
    services: list[KeptStatus]


class Keeper:
    """The keeper of one job; `keeper_of(job)` gives it. `log` is the path of its log.

    An object without `launch` reaches a keeper that runs, and starts none.
    """

    __module__ = "monarch.job"

    def __init__(self, apply_id: str, title: str = "", launch: Callable[[], Launch] | None = None) -> None:
        self._apply_id = apply_id
        self._title = title or f"job {apply_id[:8]}"
        self._launch = launch
        self._folder = os.path.join(credentials.directory(apply_id), FOLDER)
        self.log = os.path.join(self._folder, LOG)

    def serve(self, service: str, key: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Starts the service in the keeper, which is started where none runs; refreshes one that has this key and `config`.

        Gives what `KeptService.start` has returned. `KeeperError` with the type and the text of what it has raised.
        """
        message: dict[str, Any] = {"do": "serve", "service": service, "key": key, "config": dict(config)}
        answer = self._ask(message, is_started=True) or {}
        if SILENT in answer and self._replaced(answer):
            answer = self._ask(message, is_started=True) or {}
        if SILENT in answer:
            # No process gets an answer of these hosts. The service may work without them, or raises an error.
            answer = self._ask({**message, "anyway": True}, is_started=True) or {}
        return answer

    def stop(self, service: str, key: str, *, wait: float | None = None) -> bool:
        """Stops it; False where no keeper runs it. `KeeperError` for what `KeptService.stop` has raised.

        With `wait`, also for what users still see of it (`KeptService.left`): up to so many seconds later where a keeper that was killed
        has begun the service.
        """
        answer = self._ask({"do": "stop", "service": service, "key": key, "wait": wait}, is_started=False)
        if answer is None and os.path.isdir(self._folder):
            with self._starting():
                kept_record.remove(self._folder, service, key)
        return answer is not None and bool(answer.get("stopped"))

    def restore(self) -> None:
        """Starts the keeper again where one that was killed, or that was idle, has left services; else does nothing.

        The services start meanwhile; a request about one of them waits for it.
        """
        if kept_record.load(self._folder):
            self._ask({"do": "status"}, is_started=True)

    def renew(self) -> None:
        """Has a keeper that runs start its services on hosts that have changed, as after `heal`; returns when it has begun to."""
        answer = self._ask({"do": "renew"}, is_started=False)
        if answer is not None and SILENT in answer and not self._replaced(answer):
            self._ask({"do": "renew", "anyway": True}, is_started=False)

    def status(self) -> KeeperStatus | None:
        """The services of the keeper; None where none runs."""
        answer = self._ask({"do": "status"}, is_started=False)
        return None if answer is None else KeeperStatus(answer["pid"], [KeptStatus(**one) for one in answer["services"]])

    def end(self) -> None:
        """Stops all services and ends the keeper; by force after 10 s. Does nothing where none runs."""
        if not os.path.isdir(self._folder):
            return
        pid, wait = None, _END_SECONDS
        try:
            channel = self._greeted()
        except KeeperError:
            channel, wait = None, 0.0  # the keeper has exceeded its time
        try:
            if channel is not None:
                with contextlib.suppress(OSError):
                    channel.send({"do": "end"})
                    channel.take(_END_SECONDS)
            pid = self._locked_by(time.monotonic() + (wait if channel is None else 1.0))
        finally:
            if channel is not None:
                channel.close()
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if self._locked_by(time.monotonic() + 2.0) is not None:
            raise KeeperError(f"its keeper does not end: pid {pid}", title=self._title)

    def _ask(self, message: dict[str, Any], *, is_started: bool) -> dict[str, Any] | None:
        """The answer; None where no keeper runs and none is to be started."""
        channel = self._greeted()
        if channel is None:
            if not is_started:
                return None
            channel = self._started()
        try:
            channel.send(plain(message))
            answer = channel.take().head
        except ChannelEnded:
            raise self._error("its keeper has ended before it answered", "") from None
        except (OSError, ValueError) as e:
            raise self._error("its keeper cannot be asked", f"{type(e).__name__}: {e}") from e
        finally:
            channel.close()
        if "error" in answer:
            error: dict[str, Any] = answer["error"]
            raise KeeperError(error["text"], code=error.get("code"), hint=None, raised=error["type"])
        return answer

    def _error(self, what: str, cause: str) -> KeeperError:
        return KeeperError(what, title=self._title, cause=cause, hint=f"its log is {self.log}: `monarch logs --keeper`")

    def _greeted(self) -> Channel | None:
        """A connection to a keeper that is not about to end."""
        try:
            channel = keeper_channel.connect(self._folder, _GREETING_SECONDS)
        except OSError as e:
            raise self._error("its keeper cannot be reached", f"{type(e).__name__}: {e}") from e
        if channel is None:
            return None
        try:
            channel.take(_GREETING_SECONDS)
            return channel
        except TimeoutError:
            pid, _ = channel.peer()
            channel.close()
            raise self._error(f"its keeper (pid {pid}) does not answer", f"within {_GREETING_SECONDS:.0f} s") from None
        except ChannelError:
            channel.close()
            return None

    def _started(self) -> Channel:
        if self._launch is None:
            raise self._error("no keeper runs", "")
        credentials.restore(self._apply_id, {})
        os.makedirs(self._folder, 0o700, exist_ok=True)
        launch = self._launch()
        with self._starting():
            # Another client may have been faster.
            channel = self._greeted()
            for _ in range(2):
                if channel is None:
                    self._spawn(launch)
                    channel = self._greeted()
        if channel is None:
            raise self._error("its keeper has ended at once", "")
        return channel

    def _replaced(self, answer: dict[str, Any]) -> bool:
        """Replaces the keeper that has given this answer; False where its hosts do not answer another process either."""
        if self._launch is None:
            return False
        launch = self._launch()
        with self._starting():
            channel = self._greeted()
            if channel is None:
                return True
            pid, _ = channel.peer()
            channel.close()
            if pid != answer["pid"]:
                return True  # another client was faster
            try:
                self._spawn(launch, answer[SILENT])
            except KeeperError:  # the log has the reason
                return False
        return True

    @contextlib.contextmanager
    def _starting(self) -> Generator[None]:
        """Holds the lock of the clients that start a keeper."""
        end = time.monotonic() + _START_SECONDS
        with open(os.open(os.path.join(self._folder, _START_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb") as f:
            while True:
                try:
                    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= end:
                        raise self._error("another process is starting its keeper", f"for more than {_START_SECONDS:.0f} s") from None
                    time.sleep(_PAUSE_S)
            yield

    def _spawn(self, launch: Launch, follows: list[Any] | None = None) -> None:
        """Starts the process and waits until it listens; `follows` has the hosts that the keeper which it is to follow has lost."""
        given = {**launch._asdict(), "follows": follows, "folder": self._folder, "apply_id": self._apply_id, "title": self._title}
        config = os.memfd_create("monarch-keeper")
        ready, report = os.pipe()
        try:
            with open(config, "wb", closefd=False) as f:
                f.write(json.dumps(given).encode())
            os.lseek(config, 0, os.SEEK_SET)
            environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
            argv = python_command(_PROCESS, str(config), str(report))
            try:
                session = sessions.start(argv, environment, self._apply_id, self.log, self.log, [config, report])
            except OSError as e:
                raise self._error("its keeper cannot be started", str(e)) from e
            os.close(report)
            report = -1
            answer = _read(ready, time.monotonic() + _START_SECONDS)
        finally:
            for descriptor in (config, ready, report):
                if descriptor >= 0:
                    os.close(descriptor)
        if answer != b"ready":
            if answer is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(session.pid, signal.SIGKILL)
            cause = f"no answer within {_START_SECONDS:.0f} s" if answer is None else answer.decode(errors="replace")
            raise self._error("its keeper cannot be started", cause or "the process has ended")

    def _locked_by(self, end: float) -> int | None:
        """The pid of the keeper that still has the lock at `end`, a monotonic time; None as soon as no process has it."""
        try:
            f = open(os.path.join(self._folder, LOCK), "rb+")
        except OSError:
            return None
        with f:
            while True:
                try:
                    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return None
                except BlockingIOError:
                    if time.monotonic() >= end:
                        f.seek(0)
                        text = f.read(32)
                        return int(text) if text.isdigit() else None
                    time.sleep(_PAUSE_S)


def _read(descriptor: int, end: float) -> bytes | None:
    """All up to the end of the pipe; None after the monotonic time `end`."""
    found = b""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    while poller.poll(max(end - time.monotonic(), 0) * 1000):
        data = os.read(descriptor, 1 << 16)
        if not data:
            return found
        found += data
    return None
