"""Frames between services, daemon and mount servers: any cut of the bytes, malformed ones, full sockets, descriptors."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.fs._daemon import socket_messages
from monarch.fs._daemon.socket_messages import Channel, ChannelError, Decoder


def _pair() -> tuple[Channel, Channel]:
    left, right = socket.socketpair()
    return Channel(left), Channel(right, takes_descriptors=True)


def _wire(*messages: tuple[dict[str, object], bytes]) -> bytes:
    left, right = socket.socketpair()
    with right:
        channel = Channel(left)
        for head, blob in messages:
            channel.queue(head, blob)
        assert channel.flush()
        channel.close()
        found = b""
        while data := right.recv(1 << 16):
            found += data
    return found


@given(st.lists(st.tuples(st.dictionaries(st.text(), st.integers()), st.binary(max_size=100)), max_size=4), st.integers(1, 50))
def test_messages_survive_any_cut(messages: list[tuple[dict[str, object], bytes]], step: int) -> None:
    wire = _wire(*messages)
    decoder = Decoder()
    found: list[tuple[dict[str, object], bytes]] = []
    for i in range(0, len(wire), step):
        found += decoder.feed(wire[i : i + step])
    assert found == messages


@given(st.binary(max_size=200))
def test_other_bytes_are_an_error_or_nothing(data: bytes) -> None:
    decoder = Decoder(max_blob=1000)
    try:
        assert decoder.feed(data) == []
    except ChannelError:
        return
    assert len(data) < 16 or data.startswith(b"MFS1")


@pytest.mark.parametrize("head", [b"[]", b"{", b"\xff", b"1", b"[" * 100_000])
def test_malformed_head_is_named(head: bytes) -> None:
    wire = b"MFS1" + len(head).to_bytes(4, "little") + bytes(8) + head
    with pytest.raises(ChannelError, match="malformed head"):
        Decoder().feed(wire)


@pytest.mark.parametrize(("head", "blob"), [(2**32 - 1, 0), (2, 2**63)])
def test_lengths_are_bounded(head: int, blob: int) -> None:
    with pytest.raises(ChannelError, match="malformed prefix"):
        Decoder().feed(b"MFS1" + head.to_bytes(4, "little") + blob.to_bytes(8, "little"))


def test_large_message_crosses_a_full_socket() -> None:
    left, right = _pair()
    content = os.urandom(5 << 20)
    left.queue({"n": 1}, content)
    assert not left.flush()
    found = right.receive()
    while not found:
        left.flush()
        found = right.receive()
    assert left.flush() and found[0].head == {"n": 1} and found[0].blob == content
    left.close()
    with pytest.raises(ChannelError):
        right.receive()
    right.close()


def test_descriptors_travel_with_their_message() -> None:
    left, right = _pair()
    reader, writer = os.pipe()
    left.queue({}, b"", [writer])
    left.flush()
    os.close(writer)
    [message] = right.receive()
    os.write(message.descriptors[0], b"x")
    os.close(message.descriptors[0])
    assert os.read(reader, 2) == b"x" and os.read(reader, 1) == b""
    os.close(reader)
    left.close()
    right.close()


def test_peer_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_messages, "MAX_QUEUED_BYTES", 1 << 20)
    left, right = _pair()
    left.queue({}, bytes(2 << 20))
    with pytest.raises(ChannelError, match="unread"):
        left.queue({})
    left.close()
    right.close()
