"""The buffer between a command and whoever reads its output."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch.job._output_pipe import OutputBuffer

WRITES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=30) | st.just(b"x" * 9000)))


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
