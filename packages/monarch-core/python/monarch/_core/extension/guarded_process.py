"""A command under a guard, as the proc sees it that started it: signals go down, its start and its end come up."""

from __future__ import annotations

import asyncio
import errno
import marshal
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch._core.extension import command_guard as guard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class CannotStart(Exception):
    """`errno`, and the word that it is about: the program, or the working directory."""

    def __init__(self, number: int, word: str) -> None:
        super().__init__(number, word)
        self.errno = number
        self.word = word


class CommandLine(NamedTuple):
    """What a guard executes. None among the words stands for the place of `script`, a name and a text."""

    argv: Sequence[str | None]
    env: Mapping[str, str]
    workdir: str | None = None
    script: tuple[str, bytes] | None = None
    # `argv[0]` as the program sees it, if it is to see another one.
    program_name: str | None = None


class GuardedProcess:
    """Made and used on one event loop. `ended` gets the wait status; SIGKILL's if the guard was killed."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self.loop.create_future()
        self.pid = 0
        self.started: asyncio.Future[None] = self.loop.create_future()
        self._guard: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._received = bytearray()

    async def start(
        self, line: CommandLine, fds: tuple[int, int, int], tty: bool = False, farewell: Sequence[tuple[int, float]] = ()
    ) -> None:
        """Runs the command on these descriptors; `CannotStart` if that is not possible.

        `farewell`: signals with the pause after each, before all is killed, if this proc is gone.
        """
        ours, theirs = socket.socketpair()
        spec = {
            "argv": list(line.argv),
            "env": dict(line.env),
            "workdir": line.workdir,
            "script": line.script,
            "program_name": line.program_name,
            "fds": fds,
            "tty": tty,
            "farewell": [(int(number), pause) for number, pause in farewell],
        }
        argv = [sys.executable, "-I", "-S", guard.__file__, str(theirs.fileno())]
        inherited = [theirs.fileno(), *({*fds} - {0, 1, 2})]
        null = subprocess.DEVNULL
        try:
            with theirs:
                self._guard = subprocess.Popen(
                    argv, stdin=null, stdout=null, stderr=null, pass_fds=inherited, cwd=None, start_new_session=True
                )
            ours.sendall(guard.frame(spec))
        except OSError as e:
            ours.close()
            if self._guard is not None:
                self._guard.kill()
                self._guard.wait()
            raise CannotStart(e.errno or errno.EIO, argv[0]) from None
        ours.setblocking(False)
        self._socket = ours
        self.loop.add_reader(ours, self._receive)
        await self.started

    def signal(self, number: int) -> None:
        """Sends it to the command's group; SIGKILL goes to all that descends from it."""
        if self._socket is not None and not self.ended.done():
            try:
                self._socket.send(bytes([number]))
            except OSError:  # the guard is gone, which `_receive` is about to see
                return

    def close(self) -> None:
        """Lets go of the guard, which does its farewell if the command still runs."""
        if self._socket is not None:
            self.loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    async def wait_closed(self) -> None:
        """After `close`: until the guard has gone too."""
        if self._guard is None or self._guard.poll() is not None:
            return
        fd = os.pidfd_open(self._guard.pid)
        gone: asyncio.Future[None] = self.loop.create_future()
        self.loop.add_reader(fd, lambda: gone.done() or gone.set_result(None))
        try:
            await gone
        finally:
            self.loop.remove_reader(fd)
            os.close(fd)
            self._guard.poll()

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
        if self._guard is not None:
            self._guard.wait()  # its descriptors are closed, so it is as good as gone
        if not self.started.done():
            self.started.set_exception(CannotStart(errno.ECHILD, sys.executable))
        elif self.pid and not self.ended.done():
            # The kernel has killed the command; no process is left to end the rest of its group.
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except OSError:
                pass
            self.ended.set_result(signal.SIGKILL)


async def end_in_steps(process: GuardedProcess, grace: float) -> None:
    """Ends a command that has been started: SIGINT, SIGTERM after `grace` seconds, and SIGKILL after as many more."""
    await asyncio.wait((process.started,))
    for number in (signal.SIGINT, signal.SIGTERM):
        process.signal(number)
        await asyncio.wait((process.ended,), timeout=grace)
    process.signal(signal.SIGKILL)


def exit_code(status: int) -> int:
    """The exit code of a wait status, as a shell has it."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
