"""Messages between processes of one machine: cuts of the bytes, malformed ones, full sockets, descriptors, ends, private folders."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._core.channel import channel as module
from monarch._core.channel.channel import Decoder
from monarch.extension.channel import (
    AsyncChannel,
    Channel,
    ChannelEnded,
    ChannelError,
    Message,
    PeerGone,
    connect,
    listen,
    make_private,
    open_private,
)


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
        found += [(head, blob) for head, blob, _ in decoder.feed(wire[i : i + step])]
    assert found == messages


@given(st.binary(max_size=200))
def test_other_bytes_are_an_error_or_nothing(data: bytes) -> None:
    decoder = Decoder(max_blob=1000)
    try:
        assert decoder.feed(data) == []
    except ChannelError:
        return
    assert len(data) < 17 or data.startswith(b"MCH1")


@pytest.mark.parametrize("head", [b"[]", b"{", b"\xff", b"1", b"[" * 100_000])
def test_malformed_head_is_named(head: bytes) -> None:
    wire = b"MCH1\0" + len(head).to_bytes(4, "little") + bytes(8) + head
    with pytest.raises(ChannelError, match="malformed head"):
        Decoder().feed(wire)


@pytest.mark.parametrize(("head", "blob"), [(2**32 - 1, 0), (2, 2**63)])
def test_lengths_are_bounded(head: int, blob: int) -> None:
    with pytest.raises(ChannelError, match="malformed prefix"):
        Decoder().feed(b"MCH1\0" + head.to_bytes(4, "little") + blob.to_bytes(8, "little"))


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
    left.send({"n": 1})
    left.send({"n": 2}, b"", [writer])
    left.send({"n": 3})
    os.close(writer)
    counts: dict[int, list[int]] = {}
    for _ in range(3):
        message = right.take(5.0)
        counts[message.head["n"]] = message.descriptors
    assert [len(counts[n]) for n in (1, 2, 3)] == [0, 1, 0]
    os.write(counts[2][0], b"x")
    os.close(counts[2][0])
    assert os.read(reader, 2) == b"x" and os.read(reader, 1) == b""
    os.close(reader)
    left.close()
    right.close()


def test_descriptors_that_are_not_accepted_are_an_error() -> None:
    left, right = socket.socketpair()
    sender, receiver = Channel(left), Channel(right)
    sender.send({}, b"", [left.fileno()])
    with pytest.raises(ChannelError, match="1 descriptors, of which 0"):
        receiver.take(5.0)
    with pytest.raises(ValueError, match="5 descriptors"):
        sender.send({}, b"", [left.fileno()] * 5)
    sender.close()
    receiver.close()


def test_peer_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_QUEUE_BYTES", 1 << 20)
    left, right = socket.socketpair()
    sender = Channel(left, max_blob=1 << 20)
    for _ in range(2):
        sender.queue({}, bytes(1 << 20))
    with pytest.raises(ChannelError, match="unread"):
        sender.queue({})
    sender.close()
    right.close()


def test_blocked_sender_and_reader_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALL_SECONDS", 0.05)
    left, right = _pair()
    with pytest.raises(ChannelError, match="takes nothing"):
        left.send({}, bytes(64 << 20))
    with pytest.raises(ChannelError, match="no more of a message"):
        right.take()
    left.close()
    right.close()


def test_reader_without_limit_waits_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALL_SECONDS", 0.05)
    left, right = socket.socketpair()
    data = _wire(({"n": 1}, b"rest"))
    left.sendall(data[:-2])
    later = threading.Timer(0.3, lambda: left.sendall(data[-2:]))
    later.start()
    receiver = Channel(right, limits_stalls=False)
    assert receiver.take(10.0).blob == b"rest"
    later.join()
    left.close()
    receiver.close()


def test_oversized_message_is_refused_before_it_is_queued() -> None:
    left, right = socket.socketpair()
    small = Channel(left, max_blob=4)
    with pytest.raises(ValueError, match="5 bytes is too large"):
        small.send({}, b"12345")
    small.send({}, b"1234")
    small.close()
    receiver = Channel(right)
    assert receiver.take(5.0).blob == b"1234"
    receiver.close()


def test_end_comes_after_all_messages() -> None:
    left, right = _pair()
    for i in range(3):
        left.send({"i": i})
    left.close()
    assert [right.take(5.0).head["i"] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ChannelEnded):
        right.take()
    right.close()


def test_end_within_a_message_is_an_error() -> None:
    left, right = socket.socketpair()
    left.send(_wire(({"a": 1}, b"blob"))[:-1])
    left.close()
    receiver = Channel(right)
    with pytest.raises(ChannelError, match="within a message") as caught:
        receiver.take(5.0)
    assert not isinstance(caught.value, ChannelEnded)
    receiver.close()


def test_late_message_is_kept_after_a_timeout() -> None:
    left, right = _pair()
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        right.take(0.01)
    left.send({"late": True})
    assert right.take(5.0).head == {"late": True}
    left.close()
    right.close()


def test_descriptors_of_untaken_messages_are_closed() -> None:
    left, right = _pair()
    reader, writer = os.pipe()
    left.send({"n": 1})
    left.send({"n": 2}, b"", [writer])
    os.close(writer)
    assert right.take(5.0).head == {"n": 1}
    left.close()
    right.close()
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_large_messages_go_both_ways_at_once() -> None:
    left, right = _pair()
    content = os.urandom(8 << 20)

    def echo() -> None:
        message = right.take(20.0)
        right.send(message.head, message.blob)

    thread = threading.Thread(target=echo)
    thread.start()
    left.send({"n": 7}, content)
    answer = left.take(20.0)
    thread.join()
    assert (answer.head, answer.blob) == ({"n": 7}, content)
    left.close()
    right.close()


def test_requests_have_answers_and_an_end() -> None:
    async def main() -> list[str]:
        ours, theirs = socket.socketpair()
        ends: list[str] = []

        def serve(message: Message) -> None:
            if message.head["do"] == "end":
                server.end("asked to")
            elif message.head["do"] == "double":
                server.answer(message, {"n": 2 * message.head["n"]}, message.blob)

        server = AsyncChannel(Channel(theirs), serve, ends.append)
        client = AsyncChannel(Channel(ours), lambda message: None, ends.append)
        both = await asyncio.gather(*(client.request({"do": "double", "n": n}, b"x") for n in (1, 2)))
        assert [message.head["n"] for message in both] == [2, 4]
        cancelled = asyncio.ensure_future(client.request({"do": "nothing"}))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(PeerGone):
            await client.request({"do": "end"})
        with pytest.raises(PeerGone, match="has ended"):
            await client.request({"do": "double", "n": 1})
        return ends

    ends = asyncio.run(main())
    assert ends[0] == "asked to" and len(ends) == 2


def test_folder_of_any_length_has_a_socket(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["x" * 60] * 4)
    make_private(folder)
    with listen(folder, "s"):
        pass
    # In the place of one that no process has any more.
    with listen(folder, "s") as listener, connect(folder, "s") as sock:
        listener.setblocking(True)
        accepted, _ = listener.accept()
        Channel(accepted).check_peer()
        accepted.close()
        sock.close()
    with pytest.raises(ConnectionRefusedError):
        connect(folder, "s")
    with pytest.raises(FileNotFoundError):
        connect(folder, "other")


def test_listener_that_accepts_nothing_is_a_timeout(tmp_path: Path) -> None:
    make_private(tmp_path / "folder")
    descriptor = open_private(tmp_path / "folder")
    with listen(descriptor, "s"):
        waiting: list[socket.socket] = []
        with pytest.raises(BlockingIOError):
            for _ in range(1000):
                waiting.append(connect(descriptor, "s", 0.01))
        for sock in waiting:
            sock.close()
    os.close(descriptor)


def test_folder_of_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(PermissionError, match="mode 755"):
        open_private(tmp_path / "open")
    make_private(tmp_path / "open")
    os.close(open_private(tmp_path / "open"))
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        make_private(tmp_path / "file")
