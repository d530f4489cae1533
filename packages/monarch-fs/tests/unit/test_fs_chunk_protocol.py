"""The bytes of requests and answers of the relay: what was encoded comes back, anything else is refused with bounds."""

from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.fs._relay.chunk_protocol import (
    ChunkAnswer,
    ChunkProtocolError,
    ChunkRequest,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from monarch.fs._relay.failure import FetchFailure

IDS = st.binary(min_size=32, max_size=32)
FAILURES = st.builds(FetchFailure, st.sampled_from(sorted(errno.errorcode)), st.text(max_size=50), st.booleans(), st.booleans())


@given(st.text(max_size=60), st.lists(IDS, min_size=1, max_size=20), st.tuples(*[st.booleans()] * 4))
def test_request_comes_back(tree: str, ids: list[bytes], flags: tuple[bool, bool, bool, bool]) -> None:
    request = ChunkRequest(tree, tuple(ids), *flags)
    assert decode_request(encode_request(request)) == request


@given(
    st.dictionaries(IDS, st.binary(max_size=3000), max_size=10),
    st.dictionaries(IDS, FAILURES, max_size=5),
    st.dictionaries(IDS, st.tuples(st.integers(1, 4 << 20), st.binary(min_size=1, max_size=200)), max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_answer_comes_back(
    contents: dict[bytes, bytes], failures: dict[bytes, FetchFailure], offered: dict[bytes, tuple[int, bytes]], known: bool, compress: bool
) -> None:
    found = decode_answer(encode_answer(ChunkAnswer(contents, failures, known, offered), compress=compress))
    assert {id: bytes(content) for id, content in found.contents.items()} == contents
    assert (found.failures, found.known, found.offered) == (failures, known, offered)


@pytest.mark.parametrize("offer", [(0, b"handle"), ((4 << 20) + 1, b"handle"), (1, b""), (1, bytes((8 << 10) + 1))])
def test_offers_have_bounds(offer: tuple[int, bytes]) -> None:
    with pytest.raises(ChunkProtocolError, match="a handle of"):
        decode_answer(encode_answer(ChunkAnswer({}, {}, offered={b"l" * 32: offer})))


def test_text_is_compressed_and_noise_is_not() -> None:
    text, noise = b"def f(x): return x\n" * 5000, os.urandom(100_000)
    assert len(encode_answer(ChunkAnswer({b"t" * 32: text}, {}), compress=True)) < len(text) // 10
    assert len(encode_answer(ChunkAnswer({b"n" * 32: noise}, {}), compress=True)) > len(noise)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(raw: bytes) -> None:
    for decode in (decode_request, decode_answer):
        with pytest.raises(ChunkProtocolError):
            decode(raw)


@given(st.data())
def test_damaged_answers_are_read_or_refused(data: st.DataObject) -> None:
    answer = ChunkAnswer(
        {b"a" * 32: b"text " * 300, b"b" * 32: b"x"}, {b"c" * 32: FetchFailure(5, "why")}, offered={b"d" * 32: (9, b"handle")}
    )
    raw = bytearray(encode_answer(answer, compress=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    try:
        found = decode_answer(bytes(raw))
    except ChunkProtocolError:
        return
    assert sum(map(len, found.contents.values())) <= 4 << 20


def test_declared_size_bounds_decompression() -> None:
    raw = bytearray(encode_answer(ChunkAnswer({b"a" * 32: bytes(1 << 20)}, {}), compress=True))
    # The size in the head is smaller than that of the frame.
    raw[8:12] = (1000).to_bytes(4, "little")
    with pytest.raises(ChunkProtocolError):
        decode_answer(bytes(raw))
