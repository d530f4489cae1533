"""The client's side of the process in which TorchX runs: requests within a time, and the words of what failed."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
from typing import IO, TYPE_CHECKING, Any

from monarch.extension import python_command
from monarch.extension.channel import Channel, ChannelEnded, ChannelError
from monarch.job._machine import sessions
from monarch.job._machine.commands import time_left
from monarch.job.errors import JobError, SubmitError

if TYPE_CHECKING:
    from monarch.job._machine.sessions import Session

REQUEST_TIMEOUT_S = 30.0
_MODULE = "monarch.job.torchx.scheduler_process"
_TAIL_BYTES = 4000


class Connection:
    """A process for one scheduler, started in `directory`; what it prints goes to the end of the file `log`."""

    def __init__(self, scheduler: str, title: str, mark: str, directory: str, log: str) -> None:
        self.title = title
        self._scheduler = scheduler
        self._mark = mark
        self._log = log
        self._logged = os.path.getsize(log) if os.path.exists(log) else 0
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours, max_blob=0)
        # The output file, open and without a name.
        self.printed: IO[bytes] | None = None
        with theirs:
            argv = python_command(_MODULE, str(theirs.fileno()), scheduler)
            self.session: Session = sessions.start(argv, sessions.inherited(), mark, log, log, [theirs.fileno()], directory)

    def __del__(self) -> None:
        # Interrupted before the connection was returned: the process ends with the socket.
        if "_channel" in self.__dict__:
            self._channel.close()

    def request(self, what: str, timeout: float = REQUEST_TIMEOUT_S, **arguments: Any) -> Any:
        """The answer; `SubmitError` with TorchX's words where it refuses, `JobError` where it gives none within `timeout` seconds."""
        self.send(what, **arguments)
        return self.answer(what, timeout)

    def send(self, what: str, **arguments: Any) -> None:
        """A request whose answer is read later."""
        with contextlib.suppress(ChannelError):  # then the answer is missing
            self._channel.send({"what": what, **arguments})

    def answer(self, what: str, timeout: float) -> Any:
        """The answer to the request that was sent last."""
        try:
            answer = self._channel.take(time_left(timeout)).head
        except TimeoutError:
            raise JobError(
                f"the scheduler '{self._scheduler}' of TorchX has not answered within {timeout:g} s ({what})",
                title=self.title,
                cause=self._words(),
            ) from None
        except ChannelEnded:
            raise JobError(f"the process of TorchX ended ({what})", title=self.title, cause=self._words()) from None
        if "error" not in answer:
            return answer["answer"]
        text, command = answer["error"], answer.get("command")
        raise SubmitError(
            f"the scheduler '{self._scheduler}' of TorchX has refused ({what})",
            title=self.title,
            # The command's output has more information than TorchX's error.
            cause="\n".join(filter(None, (text, self._words() if command else ""))),
            command=command,
            exit_code=answer.get("exit_code"),
        )

    def _words(self) -> str:
        """The last of what the process has printed."""
        try:
            with open(self._log, "rb") as f:
                f.seek(max(self._logged, f.seek(0, 2) - _TAIL_BYTES))
                return f.read().decode(errors="replace").strip()
        except OSError:
            return ""

    def leave(self) -> None:
        """The process goes on by itself where it holds the application, and ends otherwise."""
        self._channel.close()

    def end(self) -> list[int]:
        """Ends the process, and the application where it holds that; gives the pids that do not end."""
        self._channel.close()
        return sessions.end([self.session], self._mark, is_everywhere=True)


_connections: dict[str, Connection] = {}
_lock = threading.Lock()


def ask(scheduler: str, title: str, what: str, **arguments: Any) -> Any:
    """Asks a process that this client keeps for its schedulers that know applications by themselves; one that fails is replaced."""
    with _lock:
        connection = _connections.get(scheduler)
        if connection is None or not sessions.is_running(connection.session):
            printed = tempfile.TemporaryFile()
            path = f"/proc/{os.getpid()}/fd/{printed.fileno()}"
            connection = _connections[scheduler] = Connection(scheduler, title, f"client-{os.getpid()}", os.getcwd(), path)
            connection.printed = printed
        connection.title = title
        try:
            return connection.request(what, **arguments)
        except SubmitError:
            raise
        except BaseException:
            # The answer may still come, and would be taken for that of the next request.
            del _connections[scheduler]
            connection.end()
            raise
