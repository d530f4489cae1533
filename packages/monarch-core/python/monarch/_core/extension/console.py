"""The console for the output of commands: the stdout and stderr of this process, written without blocking the event loop."""

from __future__ import annotations

import asyncio
import codecs
import errno
import io
import os
import select
import stat
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

# The bytes that a writable pipe or terminal takes without blocking (PIPE_BUF of Linux).
_PIECE = 4096


class Console:
    """Writes the output of commands on one event loop. Output without a reader is dropped; `broken` is then called, once."""

    def __init__(self, broken: Callable[[], None]) -> None:
        self._sinks = {1: _Sink("stdout"), 2: _Sink("stderr")}
        self._broken = broken

    async def write(self, stream: int, data: bytes) -> None:
        """Returns when the data is written; no other data of the same stream comes between."""
        sink = self._sinks[stream]
        async with sink.lock:
            if sink.is_broken:
                return
            try:
                await sink.write(data)
                return
            except (OSError, ValueError) as e:  # the other end or the script has closed the stream; or the disk is full
                sink.is_broken = True
                why = e.strerror if isinstance(e, OSError) and e.errno != errno.EPIPE else None
        self._broken()
        if why is not None and stream == 1:
            await self.write(2, f"monarch: stdout is not complete: {why}\n".encode())

    async def close(self) -> None:
        """Completes characters that were begun, and flushes."""
        for sink in self._sinks.values():
            async with sink.lock:
                if not sink.is_broken:
                    try:
                        sink.end()
                    except (OSError, ValueError):
                        sink.is_broken = True


class _Sink:
    def __init__(self, name: str) -> None:
        # The present stream is kept: the script may replace it while the command runs.
        self.stream: TextIO | None = getattr(sys, name)
        self.fd = _descriptor(self.stream)
        self.waits = self.fd is not None and not stat.S_ISREG(os.fstat(self.fd).st_mode)
        self.decoder: Any = codecs.getincrementaldecoder("utf-8")("replace") if self.fd is None else None
        self.lock = asyncio.Lock()
        self.is_broken = self.stream is None

    async def write(self, data: bytes) -> None:
        assert self.stream is not None
        if self.fd is None:
            self.stream.write(self.decoder.decode(data))
            self.stream.flush()
            return
        # Text that the script printed before comes first.
        self.stream.flush()
        view = memoryview(data)
        while view:
            if self.waits:
                await _writable(self.fd)
            try:
                view = view[os.write(self.fd, view[:_PIECE] if self.waits else view) :]
            except BlockingIOError:
                continue

    def end(self) -> None:
        if self.fd is None and self.stream is not None:
            self.stream.write(self.decoder.decode(b"", True))
            self.stream.flush()


def _descriptor(stream: TextIO | None) -> int | None:
    """The descriptor that takes bytes unchanged; None for an object by which a notebook or a test has replaced the stream."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


async def _writable(fd: int) -> None:
    if select.select([], [fd], [], 0)[1]:
        return
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    # Another execution of this loop does not wait for the descriptor: the lock is held.
    loop.add_writer(fd, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_writer(fd)
