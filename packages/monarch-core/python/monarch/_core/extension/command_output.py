"""The output of a command: from its pipe, whole line by whole line where several ranks share a console, into a bounded buffer."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


# A longer line is cut: one without an end must not be kept.
LONGEST = 64 << 10


class Lines:
    """What it has been fed comes out in order, in pieces that end with a line feed, except for a piece of a line that is too long."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """The lines that are complete now, together; nothing if there is none."""
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
        """What is left: a line without an end."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


def prefixed(data: bytes, prefix: bytes) -> bytes:
    """Each line of it begins with the prefix, and the last one has an end."""
    if not prefix or not data:
        return data
    body = data[:-1] if data.endswith(b"\n") else data
    return prefix + body.replace(b"\n", b"\n" + prefix) + b"\n"


_READ = 64 << 10
_TOGETHER = 8 << 10


class OutputBuffer:
    """Chunks of several streams, in the order in which they were read. The pipes that fill it pause while it is full."""

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
        # Few chunks, and little to copy, however small the writes are.
        if self._chunks and self._chunks[-1][0] == stream and len(self._chunks[-1][1]) + len(data) <= _TOGETHER:
            self._chunks[-1] = (stream, self._chunks[-1][1] + data)
        else:
            self._chunks.append((stream, data))

    def take(self) -> list[tuple[int, bytes]]:
        taken, self._chunks, self.size = self._chunks, [], 0
        return taken


def above_streams(fd: int) -> int:
    """The descriptor, or in its place one above 2: the numbers of closed streams are given to what is opened next."""
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def pair_above_streams(pair: tuple[int, int]) -> tuple[int, int]:
    """The same for both; neither is left open where there is no number for one of them."""
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
    """The reading end of one stream of a command: read while the buffer has room, which makes the command wait when it has none.

    `command_end` is the other end, which the maker of the pipe closes when the command has it.
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
        # Of the copy, for the message that it is not complete.
        self.copy_name = ""
        self.fd, self.command_end = pair_above_streams(os.pipe2(os.O_CLOEXEC))
        os.set_blocking(self.fd, False)
        self.is_open = True
        # The command has ended: what is in the pipe is all that counts.
        self.draining = False
        self._reading = False

    def __del__(self) -> None:
        # Of a loop that was closed meanwhile, which holds a pipe that it reads. Where no pipe could be made, there is nothing to close.
        if hasattr(self, "is_open"):
            self.close()

    def resume(self) -> None:
        """Reads on if there is room again."""
        if not self.is_open or self.buffer.is_full:
            return
        if self.draining:
            while self.is_open and not self.buffer.is_full:
                self._read()
        elif not self._reading:
            self._reading = True
            self.loop.add_reader(self.fd, self._read)

    def drain(self) -> None:
        """The command has ended."""
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
            while view:  # a disk that is almost full takes a part
                view = view[self.copy.write(view) :]
        except OSError as e:
            name = self.copy_name or self.copy.name
            self.copy.close()
            self.copy = None
            # Beside the stream, which goes on: a full disk is no reason to stop a command.
            self.buffer.put(2, f"monarch: {name} is not complete: {e.strerror}\n".encode(errors="surrogateescape"))
