"""A command in a terminal of its own: it receives input, and the terminal's output and the exit code are returned."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import struct
import termios
from typing import TYPE_CHECKING

from monarch._core.extension.arguments import check_counts
from monarch._core.extension.command_line import check_command_line
from monarch._core.extension.command_output import pair_above_streams
from monarch._core.extension.guarded_process import CannotStart, GuardedProcess, exit_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch._core.extension.command_line import CommandLine

_READ = 64 << 10
# Seconds between two signals after the client of the terminal has gone; SIGKILL is the last signal. Both pauses fit into `cleanup_timeout`.
_PAUSE = 1.0
FAREWELL = ((signal.SIGHUP, _PAUSE), (signal.SIGTERM, _PAUSE))
_END_OF_FILE = b"\x04"
# Seconds after the end of the input: a command that stays in the foreground longer neither reads the end nor lets the shell read it.
_UNREAD, _LOOK_AGAIN = 1.0, 0.1
# The largest number of rows or columns that the kernel can store.
_LARGEST = (1 << 16) - 1
HUNG_UP = 128 + signal.SIGHUP


class TerminalProcess:
    """One command, created and used on one event loop. A read returns when there is output, a write when the terminal has taken the data.

    `pid` is 0 before the start; `ended` runs with the exit code when the command has ended. `RuntimeError` for a second start, for input
    and output before a start, and for every call after `close`.
    """

    # Default until the object is complete, and if its creation fails.
    _master = -1

    def __init__(self, window: tuple[int, int], ended: Callable[[int], object] | None = None) -> None:
        check_counts("window", window, 2, _LARGEST)
        self.window = window
        self.pid = 0
        self._when_ended = ended
        self._process: GuardedProcess | None = None
        self._is_begun = self._is_closed = False
        # The end of the command and `close` set both, too.
        self._readable, self._writable = asyncio.Event(), asyncio.Event()
        self._writing = asyncio.Lock()
        self._is_hung_up = False

    def __del__(self) -> None:
        # The descriptor of a loop that was closed meanwhile: no read or write waits any more.
        if self._master >= 0:
            os.close(self._master)

    async def start(self, line: CommandLine) -> None:
        """Runs the command with the terminal as its controlling one; `CannotStart` if that is impossible."""
        check_command_line(line)
        if self._is_begun:
            raise RuntimeError(f"start of {line.argv[0]!r}: this TerminalProcess has been started before, and runs one command")
        if self._is_closed:
            raise RuntimeError(f"start of {line.argv[0]!r}: this TerminalProcess is closed")
        self._is_begun = True
        try:
            self._master, slave = pair_above_streams(os.openpty())
        except OSError as e:
            raise CannotStart(e.errno or errno.EIO, "/dev/ptmx") from None
        process = self._process = GuardedProcess()
        try:
            os.set_blocking(self._master, False)
            self.resize(self.window)
            await process.start(line, (slave, slave, slave), tty=True, farewell=FAREWELL)
        except CannotStart:
            process.close()
            await process.wait_closed()
            self._close_master()
            raise
        except BaseException:
            process.close()
            self._close_master()
            raise
        finally:
            os.close(slave)
        self.pid = process.pid
        process.ended.add_done_callback(self._ended)

    def _ended(self, ended: asyncio.Future[int]) -> None:
        if self._when_ended is not None:
            self._when_ended(exit_code(ended.result()))
        self._readable.set()
        self._writable.set()

    async def read(self) -> tuple[bytes, int | None]:
        """The output of the terminal and None; after the last output an empty text and the exit code."""
        while True:
            process, can_read = self._running("read"), True
            try:
                data = os.read(self._master, _READ)
            except BlockingIOError:
                data = b""
            except OSError as e:
                if e.errno != errno.EIO:  # no process has the other end open
                    raise
                data, can_read = b"", False
            if data:
                return data, None
            if process.ended.done():
                return b"", HUNG_UP if self._is_hung_up else exit_code(process.ended.result())
            await self._wait_readable(can_read)

    async def write(self, data: bytes) -> None:
        """Writes typed text to the terminal; drops it if the command has ended."""
        async with self._writing:
            view = memoryview(data)
            while not self._running("write").ended.done() and view:
                try:
                    view = view[os.write(self._master, view) :]
                except BlockingIOError:
                    await self._wait_writable()
                except OSError:  # no process reads the terminal any more
                    return

    async def end_input(self) -> None:
        """Ends the input: a shell that waits for input ends, a shell that waits for a command gets SIGHUP."""
        process = self._running("end_input")
        await self.write(_END_OF_FILE)
        ended, loop = process.ended, asyncio.get_running_loop()
        group, since = self._foreground(), loop.time()
        while not (ended.done() or self._is_closed):
            await asyncio.wait((ended,), timeout=_LOOK_AGAIN)
            found = self._foreground()
            if found != group or found == process.pid:
                group, since = found, loop.time()
            elif loop.time() - since >= _UNREAD:
                await self._hang_up(process)
                return

    def resize(self, size: tuple[int, int]) -> None:
        """Sets rows and columns; the programs in the terminal get SIGWINCH."""
        check_counts("size", size, 2, _LARGEST)
        if self._is_closed:
            raise RuntimeError("resize: the terminal is closed")
        self.window = size
        if self._master >= 0:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    async def close(self) -> None:
        """Closes the terminal. The guard ends a command that still runs, and this method waits for that end."""
        self._is_closed = True
        self._readable.set()
        self._writable.set()
        if self._process is not None:
            self._process.close()
            await self._process.wait_closed()
        self._close_master()

    def _close_master(self) -> None:
        if self._process is not None and self._master >= 0:
            self._process.loop.remove_reader(self._master)
            self._process.loop.remove_writer(self._master)
            os.close(self._master)
            self._master = -1

    def _running(self, what: str) -> GuardedProcess:
        if self._is_closed:
            raise RuntimeError(f"{what}: the terminal is closed")
        if self._process is None or not self.pid:
            raise RuntimeError(f"{what}: the command in the terminal has not been started")
        return self._process

    async def _hang_up(self, process: GuardedProcess) -> None:
        self._is_hung_up = True
        for number, pause in FAREWELL:
            group = self._foreground()
            if group > 0 and group != process.pid:
                try:
                    os.killpg(group, number)
                except OSError:  # the process has ended meanwhile, or belongs to another user
                    pass
            process.signal(number)
            await asyncio.wait((process.ended,), timeout=pause)
        process.signal(signal.SIGKILL)

    def _foreground(self) -> int:
        """The foreground process group of the terminal; -1 without one."""
        try:
            return os.tcgetpgrp(self._master)
        except OSError:
            return -1

    async def _wait_readable(self, can_read: bool) -> None:
        """Waits for output, the end of the command, or `close`; only for the latter two without `can_read`."""
        # The descriptor is watched only while a call waits: unread output would wake the loop again and again.
        loop = asyncio.get_running_loop()
        self._readable.clear()
        if can_read:
            loop.add_reader(self._master, self._readable.set)
        try:
            await self._readable.wait()
        finally:
            if can_read and self._master >= 0:
                loop.remove_reader(self._master)

    async def _wait_writable(self) -> None:
        loop = asyncio.get_running_loop()
        self._writable.clear()
        loop.add_writer(self._master, self._writable.set)
        try:
            await self._writable.wait()
        finally:
            if self._master >= 0:
                loop.remove_writer(self._master)
