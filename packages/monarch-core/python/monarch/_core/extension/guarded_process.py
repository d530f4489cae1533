"""A command under a guard, as the proc sees it that started it: signals go down, its start and its end come up."""

from __future__ import annotations

import asyncio
import errno
import marshal
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from monarch._core.extension import command_guard as guard
from monarch._core.extension.command_line import check_command_line, check_counts, check_seconds, check_signal
from monarch._core.extension.command_mark import kill_marked, marked, new_mark
from monarch._core.extension.command_output import above_streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch._core.extension.command_line import CommandLine

# Between two looks at the watchdog of a guard, which the command may have stopped.
_LOOK = 1.0
# More than a guard takes to kill all that descends from a command. What is left then is found by its mark.
_KILL_TIMEOUT = 4.0


class CannotStart(Exception):
    """`errno`, and the word that it is about: the program, or the working directory."""

    def __init__(self, number: int, word: str) -> None:
        super().__init__(number, word)
        self.errno = number
        self.word = word


class GuardedProcess:
    """Made and used on one event loop. `ended` gets the wait status; SIGKILL's if the guard was killed."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self.loop.create_future()
        self.pid = 0
        self.started: asyncio.Future[None] = self.loop.create_future()
        self._mark = new_mark()
        self._script: str | None = None
        # Seconds that the signals of the farewell take.
        self._farewell = 0.0
        # The watchdog, the parent of the guard.
        self._guard: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._received = bytearray()
        self._force: asyncio.Task[None] | None = None

    async def start(
        self, line: CommandLine, fds: tuple[int, int, int], tty: bool = False, farewell: Sequence[tuple[int, float]] = ()
    ) -> None:
        """Runs the command on these descriptors; `CannotStart` if that is not possible.

        `fds` become stdin, stdout and stderr of the command; 0 to 2 stand for a stream that is empty. `farewell`: signals with the pause
        after each, before all is killed, if this proc is gone. `TypeError` and `ValueError` for what no command can have.
        """
        check_command_line(line)
        check_counts("fds", fds, 3)
        for number, pause in farewell:
            check_signal("farewell", number)
            check_seconds("farewell", pause)
        self._farewell = sum(pause for _, pause in farewell)
        argv = [sys.executable, "-I", "-S", guard.__file__]
        try:
            self._script = None if line.script is None else os.path.join(tempfile.gettempdir(), f"monarch-script-{self._mark}")
            await self._connect(
                argv,
                {
                    "argv": list(line.argv),
                    "env": marked(line.env, self._mark),
                    "workdir": line.workdir,
                    "script": line.script,
                    "folder": self._script,
                    "program_name": line.program_name,
                    "fds": fds,
                    "tty": tty,
                    "farewell": [(int(number), float(pause)) for number, pause in farewell],
                },
            )
        except OSError as e:
            self.close()
            if self._guard is not None:
                self._guard.kill()
                self._guard.wait()
            raise CannotStart(e.errno or errno.EIO, argv[0]) from None
        await self.started

    async def _connect(self, argv: list[str], spec: dict[str, Any]) -> None:
        """Starts the guard and sends it the specification."""
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        theirs = socket.socket(fileno=above_streams(theirs.detach()))
        null = subprocess.DEVNULL
        with theirs:
            self._guard = subprocess.Popen(
                [*argv, str(theirs.fileno())],
                stdin=null,
                stdout=null,
                stderr=null,
                pass_fds=[theirs.fileno(), *({*spec["fds"]} - {0, 1, 2})],
                env=marked(os.environ, self._mark),
                start_new_session=True,
            )
        self.loop.call_later(_LOOK, self._look)
        try:
            await self.loop.sock_sendall(self._socket, guard.frame(spec))
        except asyncio.CancelledError:
            self.close()
            raise
        self.loop.add_reader(self._socket, self._receive)

    def signal(self, number: int) -> None:
        """Sends it to the command's group; SIGKILL goes to all that descends from it."""
        check_signal("number", number)
        if self._socket is not None and not self.ended.done():
            try:
                self._socket.send(bytes([number]))
            except OSError:  # the guard is gone, which `_receive` is about to see
                return
            if number == signal.SIGKILL:
                self.loop.call_later(_KILL_TIMEOUT, self._end_by_force)

    def close(self) -> None:
        """Lets go of the guard, which does its farewell if the command still runs."""
        if self._socket is not None:
            self.loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    async def wait_closed(self) -> None:
        """After `close`: until the guard has gone too."""
        if self._guard is not None and self._guard.poll() is None:
            fd = os.pidfd_open(self._guard.pid)
            gone: asyncio.Future[None] = self.loop.create_future()
            self.loop.add_reader(fd, lambda: gone.done() or gone.set_result(None))
            try:
                await asyncio.wait((gone,), timeout=self._farewell + _KILL_TIMEOUT)
                if not gone.done():
                    self._start_force()
                    await gone
            finally:
                self.loop.remove_reader(fd)
                os.close(fd)
                self._guard.poll()
        if self._force is None and self._guard is not None and self._guard.returncode < 0 and not self.ended.done():
            # The watchdog was killed. No report shows whether the guard has ended the command.
            self._start_force()
        if self._force is not None:
            await asyncio.shield(self._force)

    def _look(self) -> None:
        """Continues a watchdog that is stopped."""
        if self._guard is None or self._guard.poll() is not None:
            return
        try:
            if os.waitid(os.P_PID, self._guard.pid, os.WSTOPPED | os.WNOHANG) is not None:
                self._guard.send_signal(signal.SIGCONT)
        except ChildProcessError:  # this process ignores SIGCHLD
            return
        self.loop.call_later(_LOOK, self._look)

    def _end_by_force(self) -> None:
        if not self.ended.done():
            self._start_force()

    def _start_force(self) -> None:
        if self._force is None:
            self._force = self.loop.create_task(self._kill_marked())

    async def _kill_marked(self) -> None:
        """Kills all with the mark: the guard, its watchdog and what descends from the command."""
        await self.loop.run_in_executor(None, kill_marked, self._mark)
        if self._script is not None:
            shutil.rmtree(self._script, ignore_errors=True)

    def _receive(self) -> None:
        assert self._socket is not None
        try:
            piece = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self._received += piece
        while len(self._received) >= 4 and len(self._received) >= (size := 4 + int.from_bytes(self._received[:4], "little")):
            message = marshal.loads(bytes(self._received[4:size]))
            del self._received[:size]
            self._take(message)
        if not piece:
            self._lost()

    def _take(self, message: tuple[Any, ...]) -> None:
        word = message[0]
        if word == "started":
            self.pid = message[1]
            if not self.started.done():
                self.started.set_result(None)
        elif word == "failed":
            if not self.started.done():
                self.started.set_exception(CannotStart(message[1], message[2]))
        elif word == "ended" and not self.ended.done():
            self.ended.set_result(message[1])

    def _lost(self) -> None:
        """The guard has gone, by itself or killed."""
        self.close()
        code = 0
        if self._guard is not None:
            code = self._guard.wait()  # its descriptors are closed, so it is as good as gone
        if code >= 0 or self.ended.done():  # the watchdog, or the guard, has ended the command
            self._set_lost()
            return
        self._start_force()
        assert self._force is not None
        self._force.add_done_callback(lambda _: self._set_lost())

    def _set_lost(self) -> None:
        if not self.started.done():
            self.started.set_exception(CannotStart(errno.ECHILD, sys.executable))
        elif self.pid and not self.ended.done():
            self.ended.set_result(signal.SIGKILL)


async def end_in_steps(process: GuardedProcess, grace: float) -> None:
    """Ends a command that has been started: SIGINT, SIGTERM after `grace` seconds, and SIGKILL after as many more."""
    check_seconds("grace", grace)
    await asyncio.wait((process.started,))
    for number in (signal.SIGINT, signal.SIGTERM):
        process.signal(number)
        await asyncio.wait((process.ended,), timeout=grace)
    process.signal(signal.SIGKILL)


def exit_code(status: int) -> int:
    """The exit code of a wait status, as a shell has it."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
