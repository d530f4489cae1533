"""A command under a guard, in the proc that started it: the proc sends signals, the guard reports the start and the end."""

from __future__ import annotations

import asyncio
import errno
import marshal
import os
import signal
import socket
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from monarch._core.extension import command_guard as guard
from monarch._core.extension.arguments import check_counts, check_seconds
from monarch._core.extension.command_line import check_command_line, check_signal
from monarch._core.extension.command_mark import marked, new_mark
from monarch._core.extension.command_output import above_streams
from monarch._core.extension.command_watchdog import LOOK, Watchdog

if TYPE_CHECKING:
    from collections.abc import Sequence
    from threading import Thread

    from monarch._core.extension.command_line import CommandLine

# Seconds, more than a guard needs to kill all descendants of a command. The mark finds processes that are left then.
_KILL_TIMEOUT = 4.0


class CannotStart(Exception):
    """A command cannot start: `errno`, and the subject: the program, the working directory, or a file that cannot be written."""

    def __init__(self, number: int, word: str) -> None:
        super().__init__(number, word)
        self.errno = number
        self.word = word

    def __str__(self) -> str:
        return f"cannot start {self.word!r}: {os.strerror(self.errno)}"


class GuardedProcess:
    """One command, created and used on one event loop.

    `ended` gets the wait status; SIGKILL's if the guard was killed. `was_signalled`: a signal of `signal` came before that end.
    """

    # Defaults until the object is complete, and if its creation fails.
    _socket: socket.socket | None = None
    _watchdog: Watchdog | None = None

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        # Why a program for an interpreter with modules has been started without them.
        self.objection = ""
        self.ended: asyncio.Future[int] = self.loop.create_future()
        self.pid = 0
        self.was_signalled = False
        # The pid of the forked process that is about to execute the command.
        self._forked = 0
        self.started: asyncio.Future[None] = self.loop.create_future()
        self._mark = new_mark()
        self._script: str | None = None
        # Seconds that the farewell signals take.
        self._farewell = 0.0
        self._is_begun = self._is_closed = False
        # Bytes that the guard has not taken yet: the specification, then signals.
        self._unsent = bytearray()
        self._received = bytearray()
        self._force: asyncio.Future[None] | None = None
        # The thread that waits for the watchdog if the loop is closed.
        self._reaper: Thread | None = None

    def __del__(self) -> None:
        # An open loop holds a process whose watchdog has not been reaped.
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._reap_without_loop()

    async def start(
        self, line: CommandLine, fds: tuple[int, int, int], tty: bool = False, farewell: Sequence[tuple[int, float]] = ()
    ) -> None:
        """Runs the command on these descriptors; `CannotStart` if that is impossible, `RuntimeError` after another start, or a `close`.

        `fds` become stdin, stdout and stderr of the command; 0 to 2 stand for an empty stream. `farewell`: signals with the pause
        after each, before the guard kills all, if this proc is gone. `TypeError` and `ValueError` for an impossible command.
        """
        check_command_line(line)
        check_counts("fds", fds, 3)
        for number, pause in farewell:
            check_signal("farewell", number)
            check_seconds("farewell", pause)
        if self._is_begun:
            raise RuntimeError(f"start of {line.argv[0]!r}: this GuardedProcess has been started before, and runs one command")
        if self._is_closed:
            raise RuntimeError(f"start of {line.argv[0]!r}: this GuardedProcess is closed")
        self._is_begun = True
        self._farewell = sum(pause for _, pause in farewell)
        self._script = None if line.script is None else os.path.join(tempfile.gettempdir(), f"monarch-script-{self._mark}")
        self._unsent += guard.frame(
            {
                "argv": [word if word is None else _plain(word) for word in line.argv],
                "env": {_plain(name): _plain(value) for name, value in marked(line.env, self._mark).items()},
                "workdir": line.workdir and _plain(line.workdir),
                "script": line.script and (_plain(line.script[0]), bytes(line.script[1])),
                "folder": self._script,
                "program_name": line.program_name and _plain(line.program_name),
                "fds": tuple(map(int, fds)),
                "tty": bool(tty),
                "farewell": [(int(number), float(pause)) for number, pause in farewell],
            }
        )
        try:
            self._connect(fds, line)
        except OSError as e:
            self._let_go()
            self.started.cancel()
            raise CannotStart(e.errno or errno.EIO, sys.executable) from None
        try:
            await self.started
        except CannotStart:  # the guard has ended
            raise
        except BaseException:
            self._is_closed = True
            self._let_go()
            raise

    def _connect(self, fds: tuple[int, int, int], line: CommandLine) -> None:
        """Starts the guard, or takes the one with modules, and begins to send the specification."""
        if not (line.is_preloaded and self._take_guard(fds, line)):
            self._start_guard(fds)
        assert self._watchdog is not None and self._socket is not None
        self._watchdog.mark, self._watchdog.folder = self._mark, self._script
        self.loop.call_later(LOOK, self._look)
        self.loop.add_reader(self._socket, self._receive)
        self._send()

    def _take_guard(self, fds: tuple[int, int, int], line: CommandLine) -> bool:
        """Takes the guard that was forked from an interpreter with modules; false if this proc has none for the command."""
        from monarch._core.extension import prepared_guard

        prepared, self.objection = prepared_guard.take(line.env)
        if prepared is None:
            return False
        self._socket, self._watchdog = prepared.socket, prepared_guard.ForkedWatchdog(prepared.pid)
        try:
            socket.send_fds(self._socket, [b"\0"], sorted({*fds} - {0, 1, 2}))
        except OSError:  # the guard was killed
            self.objection = "the process with the modules has ended"
            self._socket.close()
            self._watchdog.wait()
            return False
        self._socket.setblocking(False)
        return True

    def _start_guard(self, fds: tuple[int, int, int]) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        theirs = socket.socket(fileno=above_streams(theirs.detach()))
        null = subprocess.DEVNULL
        with theirs:
            self._watchdog = Watchdog(
                [sys.executable, "-I", "-S", guard.__file__, str(theirs.fileno())],
                stdin=null,
                stdout=null,
                stderr=null,
                pass_fds=[theirs.fileno(), *({*fds} - {0, 1, 2})],
                env=marked(os.environ, self._mark),
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        """Sends a signal to the command's group. SIGKILL goes to all descendants of the command."""
        check_signal("number", number)
        if self._socket is not None and not self.ended.done():
            self.was_signalled = True
            self._unsent.append(number)
            self._send()
            if number == signal.SIGKILL:
                self.loop.call_later(_KILL_TIMEOUT, self._end_by_force)

    def close(self) -> None:
        """Closes the socket to the guard, which sends the farewell signals if the command still runs. Also works on a closed loop."""
        self._is_closed = True
        self._let_go()
        if self._is_begun and not self.started.done() and not self.loop.is_closed():
            self.started.set_exception(RuntimeError("the command was closed while it was being started"))

    def _let_go(self) -> None:
        if self._socket is not None:
            self.loop.remove_reader(self._socket)
            self.loop.remove_writer(self._socket)
            self._socket.close()
            self._socket = None
        if self.loop.is_closed():
            self._reap_without_loop()

    def _reap_without_loop(self) -> None:
        if self._watchdog is None or self._reaper is not None:
            return
        if self._watchdog.poll() is None or (self._watchdog.returncode < 0 and self._force is None and not self.ended.done()):
            self._reaper = self._watchdog.reap(self._farewell + _KILL_TIMEOUT)

    async def wait_closed(self) -> None:
        """Waits, after `close`, until the guard has ended too."""
        fd = -1
        if self._watchdog is not None and self._watchdog.poll() is None and self._reaper is None:
            try:
                fd = os.pidfd_open(self._watchdog.pid)
            except OSError:  # no descriptor is left
                self._reap_without_loop()
        if self._reaper is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._reaper.join)
            return
        if self._watchdog is not None and fd >= 0:
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
                self._watchdog.poll()
        if self._force is None and self._watchdog is not None and (self._watchdog.returncode or 0) < 0 and not self.ended.done():
            # The watchdog was killed. No report shows whether the guard has ended the command.
            self._start_force()
        if self._force is not None:
            await asyncio.shield(self._force)

    def _look(self) -> None:
        """Continues a stopped watchdog."""
        if self._watchdog is not None and self._watchdog.poll() is None:
            self._watchdog.continue_if_stopped()
            self.loop.call_later(LOOK, self._look)

    def _end_by_force(self) -> None:
        if not self.ended.done():
            self._start_force()

    def _start_force(self) -> None:
        if self._force is None and self._watchdog is not None:
            self._force = self.loop.run_in_executor(None, self._watchdog.kill_all)

    def _send(self) -> None:
        if self._socket is None:
            return
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # the guard has ended, which `_receive` notices
            self._unsent.clear()
        if self._unsent:
            self.loop.add_writer(self._socket, self._send)
        else:
            self.loop.remove_writer(self._socket)

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
        if word == "forked":
            self._forked = message[1]
        elif word == "started":
            self.pid = self._forked
            if not self.started.done():
                self.started.set_result(None)
        elif word == "failed":
            if not self.started.done():
                self.started.set_exception(CannotStart(message[1], message[2]))
        elif word == "ended" and not self.ended.done():
            _, status, self.was_signalled = message
            self.ended.set_result(status)

    def _lost(self) -> None:
        """Handles the end of the guard, by itself or by a kill."""
        self._let_go()
        code = 0
        if self._watchdog is not None:
            code = self._watchdog.wait()  # the watchdog's descriptors are closed, so its end is near
        if code >= 0 or self.ended.done():  # the watchdog or the guard has ended the command
            self._set_lost()
            return
        self._start_force()
        assert self._force is not None
        self._force.add_done_callback(lambda _: self._set_lost())

    def _set_lost(self) -> None:
        if not self._forked:
            if not self.started.done():
                self.started.set_exception(CannotStart(errno.ECHILD, sys.executable))
            return
        if not self.started.done():
            self.pid = self._forked
            self.started.set_result(None)
        if self.pid and not self.ended.done():
            self.ended.set_result(signal.SIGKILL)


def _plain(text: str) -> str:
    """The text as a plain `str`: an instance of a subclass cannot be marshalled."""
    return str.__str__(text)


async def end_in_steps(process: GuardedProcess, grace: float) -> None:
    """Ends a started command: SIGINT, SIGTERM after `grace` seconds, and SIGKILL after another `grace` seconds."""
    check_seconds("grace", grace)
    await asyncio.wait((process.started,))
    for number in (signal.SIGINT, signal.SIGTERM):
        process.signal(number)
        await asyncio.wait((process.ended,), timeout=grace)
    process.signal(signal.SIGKILL)


def exit_code(status: int) -> int:
    """The exit code of a wait status, by the convention of shells."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
