"""Slots that the bridge of a gather mount reads by itself, and what it does where it cannot."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import pytest

from monarch.actor import Actor, endpoint, this_host
from monarch.extension.channel import Channel
from monarch.fs._gather.bridge import Bridge
from monarch.fs._gather.bridge_request import BridgeRequest, Point
from monarch.fs._gather.file_server import LARGEST_READ, FileServer
from monarch.fs._gather.host_request import Body, answer, decode, encode
from monarch.fs._gather.slots import SLOTS, SMALLEST, Slots, read_slot
from monarch.fs._relay.peer import Peer
from tools.frozen import freeze


@pytest.fixture
def slots() -> Iterator[Slots]:
    found = Slots()
    yield found
    found.close()


def read(handle: bytes, size: object) -> bytes | None:
    done = threading.Event()
    found: list[memoryview | None] = []

    def then(data: memoryview | None) -> None:
        found.append(data)
        done.set()

    read_slot(handle, size, then)
    assert done.wait(20)
    return None if found[0] is None else bytes(found[0])


def test_bytes_of_a_slot_are_read(slots: Slots) -> None:
    first, second = os.urandom(LARGEST_READ), os.urandom(SMALLEST)
    handle = slots.put(0, first)
    assert handle is not None and read(handle, len(first)) == first
    # The slot has other bytes, and the same handle.
    assert slots.put(0, second) == handle and read(handle, len(second)) == second


def test_small_reads_and_unknown_slots_get_inline_bytes(slots: Slots) -> None:
    assert slots.put(0, b"x" * (SMALLEST - 1)) is None
    for slot in (-1, SLOTS, 1 << 40):
        assert slots.put(slot, b"x" * SMALLEST) is None


def test_slot_that_has_ended_is_not_read(slots: Slots) -> None:
    handle = slots.put(1, b"x" * SMALLEST)
    assert handle is not None
    slots.close()
    assert read(handle, SMALLEST) is None and slots.put(1, b"x" * SMALLEST) is None
    for wrong in (b"", b"no handle", handle[:-1]):
        assert read(wrong, SMALLEST) is None
    for size in (0, -1, LARGEST_READ + 1, 1 << 62, None, "1", 1.0):
        assert read(handle, size) is None


class Owner(Actor):
    def __init__(self) -> None:
        self.slots = Slots()

    @endpoint
    async def put(self) -> tuple[int, bytes]:
        handle = self.slots.put(0, b"x" * SMALLEST)
        assert handle is not None
        return os.getpid(), handle


def is_stopped(pid: int) -> bool:
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def test_bridge_does_not_wait_for_a_silent_host() -> None:
    procs = this_host().spawn_procs(name="owner")
    pid, handle = procs.spawn("owner", Owner).put.call_one().get()
    freeze(pid)
    while not is_stopped(pid):  # polls: a thread that runs answers still, and only the parent is notified
        time.sleep(0.002)  # sleeps: between two looks
    try:
        found: Queue[memoryview | None] = Queue()
        read_slot(handle, SMALLEST, found.put)
        # The call has returned before the end of the time of the read.
        assert found.empty()
        assert found.get(timeout=30) is None
    finally:
        os.kill(pid, signal.SIGCONT)
    procs.stop().get()


def test_answer_names_its_slot(slots: Slots, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"y" * SMALLEST)
    server = FileServer(str(tmp_path), lambda _: None)
    try:
        attr = server.attr(b"large")
        body: Body = {"op": "read", "path": "large", "file": attr.identity, "offset": 0, "size": LARGEST_READ}
        assert decode(answer(server, body, slots)).blob == b"y" * SMALLEST
        found = decode(answer(server, body | {"slot": 2}, slots))
        assert found.body["size"] == SMALLEST and read(found.blob, SMALLEST) == b"y" * SMALLEST
        # A truncated file has few bytes left: they are in the answer.
        os.truncate(tmp_path / "large", 3)
        assert decode(answer(server, body | {"slot": 2}, slots)).blob == b"yyy"
    finally:
        server.close()


def test_unreadable_slot_is_requested_again_with_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(0, "", ())
    bridge = Bridge(BridgeRequest("/m", [Point("a", "/r", peer)], peer, 1 << 20, False, 60.0))
    ours, theirs = socket.socketpair()
    bridge._channel = Channel(ours)
    host = bridge._hosts[0]
    sent: list[Body] = []

    def ask(peer: Peer, body: bytes, then: object) -> None:
        sent.append(decode(body).body)

    def fail(handle: bytes, size: int, then: Callable[[None], object]) -> None:
        then(None)

    monkeypatch.setattr("monarch.fs._gather.bridge.ask_peer", ask)
    monkeypatch.setattr("monarch.fs._gather.bridge.read_slot", fail)
    bridge._take({"call": 7, "host": 0}, encode({"op": "read", "path": "f", "file": [1, 2], "offset": 0, "size": SMALLEST}))
    slot = sent[0]["slot"]
    assert slot not in host.slots and host.taken == {7: slot}
    bridge._answered(host, host.epoch, 7, encode({"attr": [0] * 7, "size": SMALLEST}, b"handle"))
    bridge._events.popleft()()
    assert "slot" not in sent[1] and sent[1]["op"] == "read" and 7 in host.pending
    # The host may still write to the slot.
    assert slot not in host.slots
    bridge._answered(host, host.epoch, 7, encode({"attr": [0] * 7}, b"z" * SMALLEST))
    assert not host.pending and not host.taken
    # A malformed answer is passed to the server, which refuses it.
    bridge._take({"call": 9, "host": 0}, encode({"op": "read", "path": "f", "file": [1, 2], "offset": 0, "size": SMALLEST}))
    for malformed in (b"", b"\xff", b"[" * 100_000, b"[]"):
        host.pending[9], host.taken[9] = (0.0, b""), 0
        bridge._answered(host, host.epoch, 9, malformed)
        assert 9 not in host.pending
    # An answer for an earlier server is dropped: its calls have the same numbers as others.
    bridge._pulled(host, host.epoch, -1, 8, b"", 0, {"size": 1}, memoryview(b"z"))
    theirs.close()
    bridge._channel.close()
    bridge._end_events()
