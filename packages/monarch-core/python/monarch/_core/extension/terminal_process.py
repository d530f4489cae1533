"""A command in a terminal of its own: input goes in, what the terminal shows comes out, and the exit code at the end."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import struct
import termios
from typing import TYPE_CHECKING

from monarch._core.extension.command_line import check_command_line, check_counts
from monarch._core.extension.command_output import above_streams
from monarch._core.extension.guarded_process import CannotStart, GuardedProcess, exit_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch._core.extension.command_line import CommandLine

_READ = 64 << 10
# After each signal when the one who types has gone, before the next; SIGKILL is the last. Both fit into `cleanup_timeout`.
_PAUSE = 1.0
FAREWELL = ((signal.SIGHUP, _PAUSE), (signal.SIGTERM, _PAUSE))
_END_OF_FILE = b"\x04"
# After the end of the input: a command that is in the foreground for so long will not read it, nor let the shell read it.
_UNREAD, _LOOK_AGAIN = 1.0, 0.1
# Rows or columns, as the kernel keeps them.
_LARGEST = (1 << 16) - 1
HUNG_UP = 128 + signal.SIGHUP


class TerminalProcess:
    """Made and used on one event loop. Reads are answered when there is output, writes when the terminal has taken them.

    `pid` is 0 before the start; `ended` runs with the exit code when the command has ended.
    """

    def __init__(self, window: tuple[int, int], ended: Callable[[int], object] | None = None) -> None:
        check_counts("window", window, 2, _LARGEST)
        self.window = window
        self.pid = 0
        self._when_ended = ended
        self._process: GuardedProcess | None = None
        self._master = -1
        self._readable = asyncio.Event()
        self._writing = asyncio.Lock()
        self._is_hung_up = False

    async def start(self, line: CommandLine) -> None:
        """Runs the command with the terminal as its controlling one; `CannotStart` if that is not possible."""
        check_command_line(line)
        self._master, slave = map(above_streams, os.openpty())
        os.set_blocking(self._master, False)
        self.resize(self.window)
        process = GuardedProcess()
        try:
            await process.start(line, (slave, slave, slave), tty=True, farewell=FAREWELL)
        except CannotStart:
            process.close()
            await process.wait_closed()
            self._close_master()
            raise
        finally:
            os.close(slave)
        self._process = process
        self.pid = process.pid
        process.ended.add_done_callback(self._ended)

    def _ended(self, ended: asyncio.Future[int]) -> None:
        if self._when_ended is not None:
            self._when_ended(exit_code(ended.result()))
        self._readable.set()

    async def read(self) -> tuple[bytes, int | None]:
        """What the terminal shows; nothing more and the exit code at the end."""
        process = self._started()
        while True:
            try:
                data = os.read(self._master, _READ)
            except BlockingIOError:
                if not process.ended.done():
                    await self._wait_readable()
                    continue
                data = b""
            except OSError as e:
                if e.errno != errno.EIO:  # no process has the other end open
                    raise
                data = b""
            if data:
                return data, None
            status = await process.ended
            return b"", HUNG_UP if self._is_hung_up else exit_code(status)

    async def write(self, data: bytes) -> None:
        """What was typed."""
        async with self._writing:
            view = memoryview(data)
            while view and self._process is not None and not self._process.ended.done():
                try:
                    view = view[os.write(self._master, view) :]
                except BlockingIOError:
                    await self._wait_writable(self._process)
                except OSError:  # no process reads it any more
                    return

    async def end_input(self) -> None:
        """Nothing more will be typed: a shell that waits for input ends, one that waits for a command is hung up."""
        await self.write(_END_OF_FILE)
        process = self._started()
        ended, loop = process.ended, asyncio.get_running_loop()
        group, since = self._foreground(), loop.time()
        while not ended.done():
            await asyncio.wait((ended,), timeout=_LOOK_AGAIN)
            found = self._foreground()
            if found != group or found == process.pid:
                group, since = found, loop.time()
            elif loop.time() - since >= _UNREAD:
                await self._hang_up(process)
                return

    def resize(self, size: tuple[int, int]) -> None:
        """Rows and columns; the programs in the terminal get SIGWINCH."""
        check_counts("size", size, 2, _LARGEST)
        if self._master >= 0:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    async def close(self) -> None:
        """Lets go of the command, which its guard ends if it still runs, and waits for that."""
        if self._process is not None:
            self._process.close()
            await self._process.wait_closed()
        self._close_master()

    def _close_master(self) -> None:
        if self._master >= 0:
            asyncio.get_running_loop().remove_reader(self._master)
            os.close(self._master)
            self._master = -1

    def _started(self) -> GuardedProcess:
        if self._process is None:
            raise RuntimeError("the command in the terminal has not been started")
        return self._process

    async def _hang_up(self, process: GuardedProcess) -> None:
        self._is_hung_up = True
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
            return os.tcgetpgrp(self._master)
        except OSError:
            return -1

    async def _wait_readable(self) -> None:
        # Only while a call waits: unread output would wake the loop again and again.
        loop = asyncio.get_running_loop()
        self._readable.clear()
        loop.add_reader(self._master, self._readable.set)
        await self._readable.wait()
        if self._master >= 0:
            loop.remove_reader(self._master)

    async def _wait_writable(self, process: GuardedProcess) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_writer(self._master, lambda: ready.done() or ready.set_result(None))
        try:
            await asyncio.wait((ready, process.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_writer(self._master)
