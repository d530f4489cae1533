"""One command from its start to its end, with its output."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from monarch._core.extension.arguments import check_count, check_seconds
from monarch._core.extension.command_line import check_command_line
from monarch._core.extension.command_output import OutputBuffer, OutputPipe
from monarch._core.extension.guarded_process import CannotStart, GuardedProcess, end_in_steps, exit_code

if TYPE_CHECKING:
    from monarch._core.extension.command_line import CommandLine

TIMED_OUT = 124
_BUFFERED = 256 << 10


class Finished(NamedTuple):
    """The end of a command: the exit code by the convention of shells, 124 after its time; its output, and the number of bytes left out."""

    code: int
    stdout: bytes
    stderr: bytes
    left_out: int


class _Run:
    """A running command."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.news = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.process = GuardedProcess()
        self.buffer = OutputBuffer(_BUFFERED)
        self.pipes: list[OutputPipe] = []
        self.kept = {1: bytearray(), 2: bytearray()}
        self.left_out = 0
        self.timer: asyncio.TimerHandle | None = None
        # The task that ends the command after its time.
        self.ending: asyncio.Task[None] | None = None

    async def start(self, line: CommandLine) -> None:
        try:
            for number in (1, 2):
                self.pipes.append(OutputPipe(self.loop, number, False, self.buffer, self.news.set))
            await self.process.start(line, (0, self.pipes[0].command_end, self.pipes[1].command_end))
        except OSError as e:
            raise CannotStart(e.errno or errno.EIO, sys.executable) from None
        finally:
            for pipe in self.pipes:
                os.close(pipe.command_end)
        self.process.ended.add_done_callback(self._ended)

    def _ended(self, _: asyncio.Future[int]) -> None:
        for pipe in self.pipes:
            pipe.drain()
        self.news.set()

    async def follow(self) -> None:
        """Collects the output, until the command has ended and its pipes are empty."""
        while True:
            # This comes first: all later output counts as new.
            self.news.clear()
            for pipe in self.pipes:
                pipe.resume()
            for stream, data in self.buffer.take():
                room = max(0, self.limit - len(self.kept[stream]))
                self.kept[stream] += data[:room]
                self.left_out += max(0, len(data) - room)
            if self.process.ended.done() and not any(pipe.is_open for pipe in self.pipes):
                return
            await self.news.wait()

    def end_after(self, timeout: float, grace: float) -> None:
        def end() -> None:
            if not self.process.ended.done():
                self.ending = self.loop.create_task(end_in_steps(self.process, grace))

        self.timer = self.loop.call_later(timeout, end)

    def code(self) -> int:
        """The exit code. A command that ended by itself just before its time was over keeps its own."""
        is_late = self.ending is not None and self.process.was_signalled
        return TIMED_OUT if is_late else exit_code(self.process.ended.result())

    def let_go(self) -> None:
        """Closes all open files, even if the loop has been closed."""
        if self.timer is not None:
            self.timer.cancel()
        if self.ending is not None and not self.loop.is_closed():
            self.ending.cancel()
        for pipe in self.pipes:
            pipe.close()
        self.process.close()


async def run_command(line: CommandLine, *, timeout: float | None = None, grace: float = 5.0, limit: int = 1 << 20) -> Finished:
    """Runs a command to its end, without input; `CannotStart` if that is impossible.

    `TypeError` or `ValueError`, before any process starts, names an argument that no command can have. After `timeout` seconds, and if the
    call is cancelled, the command gets SIGINT, SIGTERM `grace` seconds later, and then SIGKILL. `limit` bytes of each stream are kept.
    """
    check_command_line(line)
    if timeout is not None:
        check_seconds("timeout", timeout, ", or None")
    check_seconds("grace", grace)
    check_count("limit", limit)
    run = _Run(limit)
    can_wait = True
    try:
        await run.start(line)
        if timeout is not None:
            run.end_after(timeout, grace)
        try:
            await run.follow()
        except asyncio.CancelledError:
            await end_in_steps(run.process, grace)
            raise
    except GeneratorExit:  # the loop was closed
        can_wait = False
        raise
    finally:
        run.let_go()
        if can_wait:
            await run.process.wait_closed()
    return Finished(run.code(), bytes(run.kept[1]), bytes(run.kept[2]), run.left_out)
