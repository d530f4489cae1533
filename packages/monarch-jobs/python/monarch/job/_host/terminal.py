"""The actor that runs a program in a terminal of its own on a host: the host's half of `shell`."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import pwd
import signal
import socket
import struct
import termios

from monarch.actor import Actor, concurrent_endpoint
from monarch.job._files import audit
from monarch.job._host.command import Refusal
from monarch.job._host.guarded_process import CannotStart, CommandLine, GuardedProcess, exit_code

_READ = 64 << 10
# After each signal when the client has gone, before the next one; SIGKILL is the last. Both fit into `cleanup_timeout`.
_PAUSE = 1.0
FAREWELL = ((signal.SIGHUP, _PAUSE), (signal.SIGTERM, _PAUSE))
_END_OF_FILE = b"\x04"
# After the end of the input: a command that is in the foreground for so long will not read it, nor let the shell read it.
_UNREAD, _LOOK_AGAIN = 1.0, 0.1
HUNG_UP = 128 + signal.SIGHUP


class Terminal(Actor):
    """Reads are answered when there is output, writes when the terminal has taken them."""

    _is_system_actor = True

    def __init__(self, env: dict[str, str], workdir: str | None, window: tuple[int, int], asked: audit.Origin) -> None:
        self.asked = asked
        self.env = env
        self.workdir = workdir
        self.window = window
        self.process: GuardedProcess | None = None
        self.master = -1
        self.readable = asyncio.Event()
        self.writing = asyncio.Lock()
        self.is_hung_up = False

    @concurrent_endpoint
    async def start(self) -> Refusal | str:
        """Starts the user's shell as a login shell; the name of the host, or why it cannot be."""
        program = self.env.get("SHELL") or os.environ.get("SHELL") or _shell_of_user()
        environment = {**os.environ, "SHELL": program, **self.env}
        name = "-" + os.path.basename(program)
        self.master, slave = os.openpty()
        os.set_blocking(self.master, False)
        self._set_size(self.window)
        process = GuardedProcess()
        try:
            line = CommandLine((program,), environment, self.workdir, program_name=name)
            await process.start(line, (slave, slave, slave), tty=True, farewell=FAREWELL)
        except CannotStart as e:
            self._record(f"cannot start {e.word!r}: {os.strerror(e.errno)}", program)
            return Refusal(socket.gethostname(), (program,), e.errno, e.word)
        finally:
            os.close(slave)
        self.process = process
        self._record("begun", program)
        process.ended.add_done_callback(self._ended)
        return socket.gethostname()

    def _ended(self, ended: asyncio.Future[int]) -> None:
        self._record(f"ended with {exit_code(ended.result())}", None)
        self.readable.set()

    def _record(self, outcome: str, program: str | None) -> None:
        pid = None if self.process is None else self.process.pid
        audit.record_here(self.asked, "host.shell", outcome, command=program, workdir=self.workdir, pid=pid)

    @concurrent_endpoint
    async def read(self) -> tuple[bytes, int | None]:
        """What the terminal shows; nothing more and the exit code at the end."""
        assert self.process is not None
        while True:
            try:
                data = os.read(self.master, _READ)
            except BlockingIOError:
                if not self.process.ended.done():
                    await self._wait_readable()
                    continue
                data = b""
            except OSError as e:
                if e.errno != errno.EIO:  # no process has the other end open
                    raise
                data = b""
            if data:
                return data, None
            status = await self.process.ended
            return b"", HUNG_UP if self.is_hung_up else exit_code(status)

    @concurrent_endpoint
    async def write(self, data: bytes) -> None:
        """What was typed."""
        await self._write(data)

    @concurrent_endpoint
    async def end_input(self) -> None:
        """Nothing more will be typed: a shell that waits for input ends, one that waits for a command is hung up."""
        await self._write(_END_OF_FILE)
        assert self.process is not None
        ended, loop = self.process.ended, asyncio.get_running_loop()
        group, since = self._foreground(), loop.time()
        while not ended.done():
            await asyncio.wait((ended,), timeout=_LOOK_AGAIN)
            found = self._foreground()
            if found != group or found == self.process.pid:
                group, since = found, loop.time()
            elif loop.time() - since >= _UNREAD:
                await self._hang_up(self.process)
                return

    async def _hang_up(self, process: GuardedProcess) -> None:
        self.is_hung_up = True
        for number, pause in FAREWELL:
            group = self._foreground()
            if group > 0 and group != process.pid:
                try:
                    os.killpg(group, number)
                except OSError:  # ended meanwhile, or another user's
                    pass
            process.signal(number)
            await asyncio.wait((process.ended,), timeout=pause)
        process.signal(signal.SIGKILL)

    def _foreground(self) -> int:
        """The process group that has the terminal; -1 without one."""
        try:
            return os.tcgetpgrp(self.master)
        except OSError:
            return -1

    async def _write(self, data: bytes) -> None:
        async with self.writing:
            view = memoryview(data)
            while view and self.process is not None and not self.process.ended.done():
                try:
                    view = view[os.write(self.master, view) :]
                except BlockingIOError:
                    await self._wait_writable()
                except OSError:  # no process reads it any more
                    return

    @concurrent_endpoint
    async def resize(self, size: tuple[int, int]) -> None:
        """Rows and columns; the programs in the terminal get SIGWINCH."""
        self._set_size(size)

    async def __cleanup__(self, exc: Exception | None) -> None:
        if self.process is not None:
            # The guard ends what still runs.
            self.process.close()
            await self.process.wait_closed()
        if self.master >= 0:
            asyncio.get_running_loop().remove_reader(self.master)
            os.close(self.master)
            self.master = -1

    def _set_size(self, size: tuple[int, int]) -> None:
        if self.master >= 0:
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    async def _wait_readable(self) -> None:
        # Only while a call waits: unread output would wake the loop again and again.
        loop = asyncio.get_running_loop()
        self.readable.clear()
        loop.add_reader(self.master, self.readable.set)
        await self.readable.wait()
        if self.master >= 0:
            loop.remove_reader(self.master)

    async def _wait_writable(self) -> None:
        assert self.process is not None
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_writer(self.master, lambda: ready.done() or ready.set_result(None))
        try:
            await asyncio.wait((ready, self.process.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_writer(self.master)


def _shell_of_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    except KeyError:  # a container whose user has no entry
        return "/bin/sh"
