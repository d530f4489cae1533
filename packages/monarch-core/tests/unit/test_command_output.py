"""The output of a command: whole lines, against `bytes.splitlines`, and the buffer until a reader takes them."""

from __future__ import annotations

import asyncio
import errno
import io
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.extension.command import LONGEST, Lines, OutputBuffer, OutputPipe, prefixed

PIECES = st.lists(st.one_of(st.binary(max_size=20), st.sampled_from([b"\n", b"a\n", b"\n\n", b"\xc3", b"\xa4\n"])))


@given(PIECES)
def test_lines_are_whole_and_complete(pieces: list[bytes]) -> None:
    lines = Lines()
    out = [lines.feed(piece) for piece in pieces]
    assert all(piece.endswith(b"\n") for piece in out if piece)
    rest = lines.end()
    assert b"\n" not in rest
    assert b"".join(out) + rest == b"".join(pieces)
    assert lines.end() == b""


@given(PIECES)
def test_line_is_given_with_its_end(pieces: list[bytes]) -> None:
    lines = Lines()
    seen = b""
    for piece in pieces:
        seen += lines.feed(piece)
        assert seen == b"".join(pieces)[: len(seen)]
    whole = b"".join(pieces)
    assert seen == whole[: whole.rfind(b"\n") + 1]


def test_line_without_an_end_is_cut() -> None:
    lines = Lines()
    assert lines.feed(b"x" * LONGEST) == b""
    assert lines.feed(b"y") == b"x" * LONGEST + b"y"
    assert lines.end() == b""


@given(st.binary(), st.sampled_from([b"[3] ", b""]))
def test_prefix_is_before_each_line(data: bytes, prefix: bytes) -> None:
    shown = prefixed(data, prefix)
    if not prefix or not data:
        assert shown == data
        return
    body = data[:-1] if data.endswith(b"\n") else data
    assert shown == b"".join(prefix + line + b"\n" for line in body.split(b"\n"))


SMALL = st.binary(max_size=30)
# More large ones would be more than Hypothesis prints without a warning.
WRITES = st.lists(st.tuples(st.sampled_from([1, 2]), SMALL)) | st.lists(
    st.tuples(st.sampled_from([1, 2]), SMALL | st.just(b"x" * 9000)), max_size=3
)


@given(WRITES)
def test_streams_keep_their_order_and_each_other(writes: list[tuple[int, bytes]]) -> None:
    buffer = OutputBuffer(100)
    for stream, data in writes:
        buffer.put(stream, data)
    assert buffer.size == sum(len(data) for _, data in writes)
    assert buffer.is_full == (buffer.size >= 100)
    chunks = buffer.take()
    spread = [(stream, byte) for stream, data in writes for byte in data]
    assert [(stream, byte) for stream, data in chunks for byte in data] == spread
    assert (buffer.size, buffer.take()) == (0, [])


def test_small_writes_become_few_chunks() -> None:
    buffer = OutputBuffer(1 << 20)
    for _ in range(100_000):
        buffer.put(1, b"x")
    assert len(buffer.take()) <= 13


class _Disk(io.BytesIO):
    """Takes three bytes at a time, and `room` altogether."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.kept = b""

    def write(self, data: Any) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = bytes(data)[: min(3, self.room)]
        self.room -= len(taken)
        self.kept += taken
        return len(taken)


@pytest.mark.parametrize("room", [100, 5])
def test_copy_is_complete_or_named(room: int) -> None:
    async def main() -> tuple[bytes, list[tuple[int, bytes]]]:
        buffer = OutputBuffer(1 << 10)
        pipe = OutputPipe(asyncio.get_running_loop(), 1, False, buffer, lambda: None)
        disk = _Disk(room)
        pipe.copy, pipe.copy_name = disk, "out/stdout.txt"  # type: ignore[assignment]
        os.write(pipe.command_end, b"0123456789")
        os.close(pipe.command_end)
        pipe.drain()
        return disk.kept, buffer.take()

    kept, chunks = asyncio.run(main())
    assert kept == b"0123456789"[:room] and chunks[-1] == (1, b"0123456789")
    assert chunks[:-1] == ([] if room > 5 else [(2, b"monarch: out/stdout.txt is not complete: No space left on device\n")])
