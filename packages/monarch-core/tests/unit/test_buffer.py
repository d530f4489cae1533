"""Buffers: collected, frozen, read like files, pickled by reference."""

from __future__ import annotations

import array
import copy
import io
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._core.pickle import pickling
from monarch._core.pickle.buffer import Buffer, FrozenBuffer


def frozen(data):
    buffer = Buffer()
    buffer.write(data)
    return buffer.freeze()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"abc", b"abc"),
        (bytearray(b"abc"), b"abc"),
        (memoryview(b"abcd")[::2], b"ac"),
        (array.array("H", [1, 2]), array.array("H", [1, 2]).tobytes()),
        (np.arange(4, dtype="u1"), bytes(range(4))),
        (b"", b""),
    ],
)
def test_write(data, expected):
    buffer = Buffer()
    assert buffer.write(data) == len(expected) == len(buffer)
    assert bytes(memoryview(buffer.freeze())) == expected


def test_write_takes_a_copy():
    data = bytearray(b"abc")
    buffer = Buffer()
    buffer.write(data)
    data[0] = 0
    assert buffer.freeze().read() == b"abc"


@pytest.mark.parametrize("data", ["text", 3, None])
def test_write_wants_bytes(data):
    with pytest.raises(TypeError):
        Buffer().write(data)


def test_freeze_empties_the_buffer():
    buffer = Buffer()
    assert len(buffer.freeze()) == 0
    buffer.write(b"one")
    buffer.write(b"two")
    assert repr(buffer) == "Buffer(6 bytes)"
    first = buffer.freeze()
    assert len(buffer) == 0
    buffer.write(b"three")
    assert (first.read(), buffer.freeze().read()) == (b"onetwo", b"three")


@given(st.binary(), st.lists(st.tuples(st.sampled_from(["read", "readline", "readinto"]), st.none() | st.integers(-2, 20))))
def test_reads_like_a_file(data, steps):
    buffer, model = frozen(data), io.BytesIO(data)
    for method, size in steps:
        if method == "readinto":
            target, expected = bytearray(abs(size or 0)), bytearray(abs(size or 0))
            assert buffer.readinto(target) == model.readinto(expected) and target == expected
        else:
            assert getattr(buffer, method)(size) == getattr(model, method)(size)
        assert len(buffer) == len(data) - model.tell()
    assert buffer.read() == model.read() and buffer.read() == b"" and buffer.readline() == b""


def test_reads_give_plain_bytes():
    assert type(frozen(b"abc").read()) is bytes and type(frozen(b"a\nb").readline()) is bytes


def test_pickle_can_read_from_it():
    made = [1, b"x" * 100_000, {"a": "b"}]
    assert pickle.load(frozen(pickle.dumps(made, 5))) == made


def test_memory_is_read_only_and_whole():
    buffer = frozen(b"abc")
    buffer.read(2)
    view = memoryview(buffer)
    assert view.readonly and bytes(view) == b"abc" and view.nbytes == 3
    with pytest.raises(TypeError):
        view[0] = 1
    assert bytes(np.frombuffer(buffer, dtype="u1")) == b"abc"
    assert repr(buffer) == "FrozenBuffer(3 bytes)"


def test_readinto_wants_writable_memory():
    with pytest.raises(TypeError):
        frozen(b"abc").readinto(b"abc")


def test_readinto_wider_items():
    target = array.array("H", [0, 0])
    assert frozen(b"\x01\x00\x02\x00\x03").readinto(target) == 4 and target[0] == array.array("H", b"\x01\x00")[0]


def test_large_buffer_travels_by_reference():
    buffer = frozen(b"x" * 1000)
    data, parts = pickling.dumps(((buffer,), {}))
    assert len(parts) == 1 and parts[0].readonly and len(data) < 300
    assert parts[0].obj is buffer
    (back,), _ = pickling.loads(data, [bytes(parts[0])])
    assert type(back) is FrozenBuffer and back.read() == b"x" * 1000


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("size", [0, 3, 1000])
def test_pickles_with_its_position(protocol, size):
    buffer = frozen(b"abc" * size)
    buffer.read(2)
    for back in (pickle.loads(pickle.dumps(buffer, protocol)), copy.deepcopy(buffer)):
        assert type(back) is FrozenBuffer and bytes(memoryview(back)) == b"abc" * size and len(back) == len(buffer)
