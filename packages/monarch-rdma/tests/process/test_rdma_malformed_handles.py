"""Handles that no process has made: they are errors of RDMA, where they are unpickled or where they are used."""

from __future__ import annotations

import contextlib
import random
import struct

import pytest

from monarch.rdma import RDMAAccessError, RDMABuffer, RDMABufferSet, RDMAError
from monarch.rdma._buffers.buffer import _ON_DEVICE, _PICKLED, _received

SIZE = 4096
# Positions of fields in the pickled form.
SIZE_AT, BACKEND_AT = struct.calcsize("<16sQQ"), struct.calcsize("<16sQQQ?Qi8s")


@pytest.fixture(scope="module")
def packed() -> bytes:
    buffer = RDMABuffer(memoryview(bytearray(SIZE)))
    return buffer._packed()


def changed(packed: bytes, at: int, news: bytes) -> bytes:
    return packed[:at] + news + packed[at + len(news) :]


def use(handle: bytes) -> None:
    """What others do with a handle; nothing but an error of RDMA may come of it."""
    buffer = _received(handle)
    memory = memoryview(bytearray(SIZE))
    if buffer.size() <= SIZE:
        buffer.read_into(memory, timeout=2).get()
    with contextlib.suppress(RDMAAccessError):
        buffer.write_from(memory[: min(SIZE, buffer.size())], timeout=2).get()
    assert buffer.path
    buffer.restrict(length=1)


def test_truncated_handle_is_refused(packed: bytes) -> None:
    for length in range(_PICKLED.size):
        with pytest.raises(RDMAAccessError, match=f"malformed handle of an RDMA buffer: {length} bytes of at least"):
            _received(packed[:length])


@pytest.mark.parametrize("handle", [None, "text", 7, ["list"], bytearray(100), b""])
def test_handle_of_another_type_is_refused(handle: object) -> None:
    with pytest.raises(RDMAAccessError, match="malformed handle"):
        _received(handle)


@pytest.mark.parametrize("size", [0, (1 << 56) + 1, 1 << 63, (1 << 64) - 1])
def test_handle_of_absurd_size_is_refused(packed: bytes, size: int) -> None:
    with pytest.raises(RDMAAccessError, match=f"malformed handle of an RDMA buffer: a buffer of {size:,} bytes"):
        _received(changed(packed, SIZE_AT, size.to_bytes(8, "little")))


def test_handle_with_unknown_backend_is_refused(packed: bytes) -> None:
    with pytest.raises(RDMAAccessError, match="malformed handle of an RDMA buffer: backend 99"):
        _received(changed(packed, BACKEND_AT, b"\x63"))


def test_handle_with_half_an_offset_is_refused(packed: bytes) -> None:
    handle = changed(packed, BACKEND_AT, bytes([_ON_DEVICE]))[: _PICKLED.size]
    for rest in (b"", b"\1" * 7, b"\xff" * 8):
        with pytest.raises(RDMAAccessError, match="malformed handle"):
            _received(handle + rest)


def test_handle_with_a_malformed_host_is_refused(packed: bytes) -> None:
    with pytest.raises(RDMAAccessError, match="malformed handle"):
        _received(packed[: _PICKLED.size] + b"\xff\xfe")


def test_garbage_is_an_error_of_rdma(packed: bytes) -> None:
    chance = random.Random(1)
    # The owner's host is left out: a reader would wait for a missing host.
    places = [at for at in range(len(packed)) if not BACKEND_AT - 8 <= at < BACKEND_AT and not BACKEND_AT < at < _PICKLED.size]
    for _ in range(200):
        handle = packed
        for _ in range(chance.randrange(1, 4)):
            handle = changed(handle, chance.choice(places), chance.randbytes(1))
        with contextlib.suppress(RDMAError):
            use(handle)
    for _ in range(200):
        with pytest.raises(RDMAError):
            use(chance.randbytes(chance.randrange(200)))


@pytest.mark.parametrize(
    "rows",
    [
        None,
        [None],
        [("weights", "float32")],
        [(7, "B", (SIZE,), ())],
        [("weights", "B", (SIZE,), ())],
        [("weights", "B", (SIZE,), ("no buffer",))],
        [("weights", "B", "shape", ())],
    ],
)
def test_malformed_set_is_refused(rows: object) -> None:
    with pytest.raises(RDMAAccessError, match="malformed handle of an RDMA buffer set: "):
        RDMABufferSet._received(rows, False)


def test_set_with_buffers_of_other_bytes_is_refused() -> None:
    buffer = RDMABuffer(memoryview(bytearray(2 * SIZE)))
    forged: RDMABufferSet = RDMABufferSet._received([("weights", "B", (SIZE,), (buffer,))], False)
    with pytest.raises(RDMAAccessError, match="the buffers of 'weights' have other bytes than its shape"):
        forged.read_into({"weights": memoryview(bytearray(SIZE))}).get()
