"""One command from its start to its end, with what it has printed."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, NamedTuple

from monarch._core.extension.command_line import check_command_line, check_count, check_seconds
from monarch._core.extension.command_output import OutputBuffer, OutputPipe
from monarch._core.extension.guarded_process import GuardedProcess, end_in_steps, exit_code

if TYPE_CHECKING:
    from monarch._core.extension.command_line import CommandLine

TIMED_OUT = 124
_BUFFERED = 256 << 10


class Finished(NamedTuple):
    """How a command has ended: the code as a shell has it, 124 after its time; what it has printed, and how many bytes were left out."""

    code: int
    stdout: bytes
    stderr: bytes
    left_out: int


class _Run:
    """The command while it runs."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.news = asyncio.Event()
        self.process = GuardedProcess()
        self.buffer = OutputBuffer(_BUFFERED)
        loop = asyncio.get_running_loop()
        self.pipes = [OutputPipe(loop, number, False, self.buffer, self.news.set) for number in (1, 2)]
        self.kept = {1: bytearray(), 2: bytearray()}
        self.left_out = 0
        self.timed_out = False

    async def start(self, line: CommandLine) -> None:
        try:
            await self.process.start(line, (0, self.pipes[0].command_end, self.pipes[1].command_end))
        finally:
            for pipe in self.pipes:
                os.close(pipe.command_end)
        self.process.ended.add_done_callback(self._ended)

    def _ended(self, _: asyncio.Future[int]) -> None:
        for pipe in self.pipes:
            pipe.drain()
        self.news.set()

    async def follow(self) -> None:
        """Keeps what is printed, until the command has ended and its pipes are empty."""
        while True:
            # First of all: what is read from here on is news.
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

    async def time_out(self, timeout: float, grace: float) -> None:
        await asyncio.wait((self.process.ended,), timeout=timeout)
        if not self.process.ended.done():
            self.timed_out = True
            await end_in_steps(self.process, grace)

    async def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        self.process.close()
        await self.process.wait_closed()


async def run_command(line: CommandLine, *, timeout: float | None = None, grace: float = 5.0, limit: int = 1 << 20) -> Finished:
    """Runs a command to its end, without input; `CannotStart` if that is not possible.

    `TypeError` or `ValueError`, before anything starts, names an argument that no command can have. After `timeout` seconds, and where this
    is cancelled, the command gets SIGINT, SIGTERM `grace` seconds later, and then SIGKILL. Of each stream `limit` bytes are kept.
    """
    check_command_line(line)
    if timeout is not None:
        check_seconds("timeout", timeout, ", or None")
    check_seconds("grace", grace)
    check_count("limit", limit)
    run = _Run(limit)
    timer: asyncio.Task[None] | None = None
    try:
        await run.start(line)
        if timeout is not None:
            timer = asyncio.create_task(run.time_out(timeout, grace))
        try:
            await run.follow()
        except asyncio.CancelledError:
            await end_in_steps(run.process, grace)
            raise
    finally:
        if timer is not None:
            timer.cancel()
        await run.close()
    code = TIMED_OUT if run.timed_out else exit_code(run.process.ended.result())
    return Finished(code, bytes(run.kept[1]), bytes(run.kept[2]), run.left_out)
