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

from monarch._core.extension.arguments import check_counts
from monarch._core.extension.command_line import check_command_line
from monarch._core.extension.command_output import pair_above_streams
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
    """One command, made and used on one event loop. Reads are answered when there is output, writes when the terminal has taken them.

    `pid` is 0 before the start; `ended` runs with the exit code when the command has ended. `RuntimeError` for a second start, for input
    and output before a start, and for everything after `close`.
    """

    # Until it has been made, and where it cannot be.
    _master = -1

    def __init__(self, window: tuple[int, int], ended: Callable[[int], object] | None = None) -> None:
        check_counts("window", window, 2, _LARGEST)
        self.window = window
        self.pid = 0
        self._when_ended = ended
        self._process: GuardedProcess | None = None
        self._is_begun = self._is_closed = False
        # Also set by the end of the command, and by `close`.
        self._readable, self._writable = asyncio.Event(), asyncio.Event()
        self._writing = asyncio.Lock()
        self._is_hung_up = False

    def __del__(self) -> None:
        # Of a loop that was closed meanwhile: no read or write waits any more.
        if self._master >= 0:
            os.close(self._master)

    async def start(self, line: CommandLine) -> None:
        """Runs the command with the terminal as its controlling one; `CannotStart` if that is not possible."""
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
        """What the terminal shows; nothing more and the exit code at the end."""
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
        """What was typed; dropped if the command has ended."""
        async with self._writing:
            view = memoryview(data)
            while not self._running("write").ended.done() and view:
                try:
                    view = view[os.write(self._master, view) :]
                except BlockingIOError:
                    await self._wait_writable()
                except OSError:  # no process reads it any more
                    return

    async def end_input(self) -> None:
        """Nothing more will be typed: a shell that waits for input ends, one that waits for a command is hung up."""
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
        """Rows and columns; the programs in the terminal get SIGWINCH."""
        check_counts("size", size, 2, _LARGEST)
        if self._is_closed:
            raise RuntimeError("resize: the terminal is closed")
        self.window = size
        if self._master >= 0:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    async def close(self) -> None:
        """Lets go of the command, which its guard ends if it still runs, and waits for that."""
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

    async def _wait_readable(self, can_read: bool) -> None:
        """Until there is output, the command has ended, or the terminal is closed; only for the latter two without `can_read`."""
        # Only while a call waits: unread output would wake the loop again and again.
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
