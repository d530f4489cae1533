"""The output of a command: from its pipe into a bounded buffer, whole line by whole line if several ranks share a console."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


# Bytes of the longest line. A longer line is cut, so that a line without an end is not kept for ever.
LONGEST = 64 << 10


class Lines:
    """Returns the fed bytes in order, in pieces that end with a line feed, except for a piece of a line that is too long."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """The complete lines so far, together; empty if there is none."""
        end = data.rfind(b"\n") + 1
        if end == 0 and len(self._rest) + len(data) <= LONGEST:
            self._rest += data
            return b""
        if end == 0:
            end = len(data)
        whole = bytes(self._rest) + data[:end]
        self._rest[:] = data[end:]
        return whole

    def end(self) -> bytes:
        """The rest: a line without an end."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


def prefixed(data: bytes, prefix: bytes) -> bytes:
    """The data with the prefix before each line and an end after the last line."""
    if not prefix or not data:
        return data
    body = data[:-1] if data.endswith(b"\n") else data
    return prefix + body.replace(b"\n", b"\n" + prefix) + b"\n"


_READ = 64 << 10
_TOGETHER = 8 << 10


class OutputBuffer:
    """Chunks of several streams, in the order in which they were read. The pipes that fill the buffer pause while it is full."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._chunks: list[tuple[int, bytes]] = []

    @property
    def is_full(self) -> bool:
        return self.size >= self.limit

    def put(self, stream: int, data: bytes) -> None:
        if not data:
            return
        self.size += len(data)
        # Small writes are joined, so that chunks are few and little is copied.
        if self._chunks and self._chunks[-1][0] == stream and len(self._chunks[-1][1]) + len(data) <= _TOGETHER:
            self._chunks[-1] = (stream, self._chunks[-1][1] + data)
        else:
            self._chunks.append((stream, data))

    def take(self) -> list[tuple[int, bytes]]:
        taken, self._chunks, self.size = self._chunks, [], 0
        return taken


def above_streams(fd: int) -> int:
    """The descriptor, or a duplicate above 2: the system gives the numbers of closed standard streams to the next opened file."""
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def pair_above_streams(pair: tuple[int, int]) -> tuple[int, int]:
    """The pair with both descriptors above 2. If one fails, both are closed."""
    first, second = pair
    try:
        first = above_streams(first)
    except OSError:
        os.close(second)
        raise
    try:
        return first, above_streams(second)
    except OSError:
        os.close(first)
        raise


class OutputPipe:
    """The reading end of one stream of a command. It is read while the buffer has room; a full buffer makes the command wait.

    `command_end` is the other end, which the creator of the pipe closes once the command has it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stream: int, by_line: bool, buffer: OutputBuffer, changed: Callable[[], None]
    ) -> None:
        self.loop = loop
        self.stream = stream
        self.buffer = buffer
        self.changed = changed
        self.lines = Lines() if by_line else None
        self.copy: BinaryIO | None = None
        # The name of the copy, for the message that the copy is not complete.
        self.copy_name = ""
        self.fd, self.command_end = pair_above_streams(os.pipe2(os.O_CLOEXEC))
        os.set_blocking(self.fd, False)
        self.is_open = True
        # The command has ended: only the present content of the pipe counts.
        self.draining = False
        self._reading = False

    def __del__(self) -> None:
        # The pipe of a loop that was closed meanwhile, which holds a pipe that it reads. If no pipe could be made, there is nothing to
        # close.
        if hasattr(self, "is_open"):
            self.close()

    def resume(self) -> None:
        """Continues to read if there is room again."""
        if not self.is_open or self.buffer.is_full:
            return
        if self.draining:
            while self.is_open and not self.buffer.is_full:
                self._read()
        elif not self._reading:
            self._reading = True
            self.loop.add_reader(self.fd, self._read)

    def drain(self) -> None:
        """Notes that the command has ended."""
        self.draining = True
        self._pause()
        self.resume()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._pause()
            os.close(self.fd)
            if self.copy is not None:
                self.copy.close()

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self.loop.remove_reader(self.fd)

    def _read(self) -> None:
        try:
            data = os.read(self.fd, _READ)
        except BlockingIOError:
            if not self.draining:
                return
            data = b""
        if data:
            self._copy(data)
            self.buffer.put(self.stream, data if self.lines is None else self.lines.feed(data))
        else:
            if self.lines is not None:
                self.buffer.put(self.stream, self.lines.end())
            self.close()
        if self.buffer.is_full:
            self._pause()
        self.changed()

    def _copy(self, data: bytes) -> None:
        if self.copy is None:
            return
        view = memoryview(data)
        try:
            while view:  # a nearly full disk takes a part of the data
                view = view[self.copy.write(view) :]
        except OSError as e:
            name = self.copy_name or self.copy.name
            self.copy.close()
            self.copy = None
            # The message goes beside the stream, which continues: a full disk is no reason to stop a command.
            self.buffer.put(2, f"monarch: {name} is not complete: {e.strerror}\n".encode(errors="surrogateescape"))
