"""Large arguments and results: snapshots, private copies, shared memory that is freed."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from eventually import eventually

from monarch._core.process.current import current_process
from monarch.actor import Actor, Buffer, FrozenBuffer, SupervisionError, endpoint, this_host
from tools.frozen import freeze

MIB = 1 << 20
SIZES = [0, 1, 255, 256, 257, 4096, 65535, 65536, 65537, MIB, 3 * MIB + 5]


class Holder(Actor):
    def __init__(self):
        self.held = []

    @endpoint
    def echo(self, value):
        return value

    @endpoint
    def hold(self, value):
        self.held.append(value)
        return len(value)

    @endpoint
    def change(self, value):
        """Writes into its argument, and returns the new content."""
        before = bytes(value[:4])
        value[:4] = b"mine"
        self.held.append(value)
        return before, bytes(value[:4])

    @endpoint
    def kinds(self, *values):
        return [type(v).__name__ for v in values]

    @endpoint
    def writable(self, array):
        return array.flags.writeable, int(array.sum())

    @endpoint
    def checksum(self, *parts):
        import zlib

        total = 0
        for part in parts:
            total = zlib.crc32(part, total)
        return total

    @endpoint
    def same_object(self, a, b):
        return a is b

    @endpoint
    def pass_on(self, other, value):
        return other.change.call_one(value).get(), bytes(value[:4])

    @endpoint
    def release(self):
        self.held.clear()

    @endpoint
    def pid(self):
        return os.getpid()


@pytest.fixture(scope="module")
def holders():
    with this_host().spawn_procs({"gpus": 2}) as mesh:
        yield mesh.spawn("holder", Holder)


@pytest.fixture(scope="module")
def one(holders):
    return holders.slice(gpus=0)


def reserved():
    return current_process().native.stats()[1]


@pytest.mark.parametrize("size", SIZES)
def test_bytes_there_and_back(one, size):
    data = os.urandom(size)
    back = one.echo.call_one(data).get()
    assert type(back) is bytes
    assert back == data


@pytest.mark.parametrize("size", SIZES)
def test_writable_bytes_there_and_back(one, size):
    data = bytearray(os.urandom(size))
    back = one.echo.call_one(data).get()
    assert type(back) is bytearray
    assert back == data
    back += b"still a bytearray"
    assert len(back) == size + 17


@pytest.mark.parametrize("size", SIZES)
def test_arrays_are_writable(one, size):
    array = np.arange(size, dtype=np.uint8)
    back = one.echo.call_one(array).get()
    assert back.flags.writeable
    assert np.array_equal(back, array)
    back[:] = 0
    assert np.array_equal(one.echo.call_one(array).get(), array)


def test_quarter_of_a_gibibyte(one):
    array = np.arange(256 * MIB // 8, dtype=np.int64)
    assert one.writable.call_one(array).get() == (True, int(array.sum()))


def test_large_result_to_several_ranks(holders):
    array = np.arange(32 * MIB // 8, dtype=np.int64)
    found = holders.echo.call(array).get()
    for value in found.values():
        assert np.array_equal(value, array)
        value[0] = 7
    assert [int(v[1]) for v in found.values()] == [1, 1]


@pytest.mark.parametrize("size", [1000, MIB])
def test_receivers_do_not_share(holders, size):
    data = bytearray(b"orig" * (size // 4))
    found = holders.change.call(data).get()
    assert list(found.values()) == [(b"orig", b"mine")] * 2
    assert data[:4] == b"orig"
    assert list(holders.change.call(data).get().values()) == [(b"orig", b"mine")] * 2
    holders.release.call().get()


@pytest.mark.parametrize("size", [1000, MIB])
def test_changes_do_not_travel_through_a_third(holders, size):
    data = bytearray(b"orig" * (size // 4))
    found = holders.slice(gpus=0).pass_on.call_one(holders.slice(gpus=1), data).get()
    assert found == ((b"orig", b"mine"), b"orig")
    holders.release.call().get()


@pytest.mark.parametrize("size", [1000, 100_000, 16 * MIB])
def test_arguments_are_a_snapshot(one, size):
    import zlib

    data = bytearray(os.urandom(size))
    expected = zlib.crc32(data)
    futures = []
    for _ in range(5):
        futures.append(one.checksum.call_one(data))
        # The data may be changed as soon as the adverb has returned.
        data[:] = bytes(size)
        data[:] = data
        futures.append(one.checksum.call_one(data))
        data[:] = os.urandom(size)
        futures.append(one.checksum.call_one(data))
        expected_now = zlib.crc32(data)
        data[:] = bytes(size)
        assert futures[-1].get() == expected_now
        assert futures[-2].get() == zlib.crc32(bytes(size))
    assert futures[0].get() == expected


def test_readonly_stays_readonly(one):
    array = np.arange(MIB, dtype=np.uint8)
    array.flags.writeable = False
    writable, _ = one.writable.call_one(array).get()
    assert writable is False
    assert one.kinds.call_one(bytes(MIB), bytearray(MIB), FrozenBuffer(bytes(MIB))).get() == ["bytes", "bytearray", "FrozenBuffer"]


def test_identities_inside_a_message_are_kept(one):
    data = bytes(MIB)
    assert one.same_object.call_one(data, data).get() is True
    assert one.same_object.call_one(bytearray(data), bytearray(data)).get() is False


@pytest.mark.parametrize("count", [10, 2000])
@pytest.mark.parametrize("size", [300, 5000])
def test_many_small_parts(one, count, size):
    import zlib

    parts = [os.urandom(size) for _ in range(count)]
    assert one.checksum.call_one(*parts).get() == zlib.crc32(b"".join(parts))
    copies = one.echo.call_one([bytearray(p) for p in parts]).get()
    assert b"".join(copies) == b"".join(parts)


def test_non_contiguous_and_fortran_arrays(one):
    base = np.arange(64 * 1024, dtype=np.int32).reshape(256, 256)
    for array in (base[::2, ::3], np.asfortranarray(base), base.T, base[:, 5]):
        back = one.echo.call_one(array).get()
        assert np.array_equal(back, array)
        assert back.flags.writeable


def test_frozen_buffer(one):
    buffer = Buffer()
    assert buffer.write(b"head\n") == 5
    assert buffer.write(memoryview(bytearray(MIB))) == MIB
    frozen = buffer.freeze()
    back = one.echo.call_one(frozen).get()
    assert back.readline() == b"head\n"
    assert len(back) == MIB
    assert frozen.read(4) == b"head"


def test_arena_is_used_again(one):
    data = bytes(48 * MIB)
    one.hold.call_one(data).get()
    one.release.call_one().get()
    before = reserved()
    for _ in range(20):
        assert one.hold.call_one(data).get() == len(data)
        one.release.call_one().get()
    assert reserved() <= max(before, 128 * MIB) + 64 * MIB


def state(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rpartition(") ")[2][0]


def kill_during(mesh, pid, call):
    """Kills a process during a call to it, so that the call raises the failure."""
    freeze(pid)
    eventually(f"process {pid} is stopped", lambda: state(pid), lambda seen: seen == "T")
    future = call()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SupervisionError, match=r"Killed\(sig=9\)"):
        future.get()
    mesh.stop().get()


def test_buffers_of_a_killed_receiver_are_reclaimed():
    data = bytes(96 * MIB)
    for _ in range(8):
        mesh = this_host().spawn_procs()
        actor = mesh.spawn("holder", Holder)
        assert actor.hold.call_one(bytearray(data)).get() == len(data)
        kill_during(mesh, actor.pid.call_one().get(), actor.pid.call_one)
        # Kept buffers would take eight times as much as one of them.
        assert reserved() <= 3 * len(data) + 128 * MIB


def test_buffers_of_undelivered_messages_are_reclaimed():
    """Messages in flight to a receiver that never took them."""
    data = bytearray(72 * MIB)
    for _ in range(8):
        mesh = this_host().spawn_procs()
        actor = mesh.spawn("holder", Holder)
        kill_during(mesh, actor.pid.call_one().get(), lambda actor=actor: actor.hold.call_one(data))
        assert reserved() <= 5 * len(data) + 64 * MIB


def test_actors_in_the_client_get_copies_too():
    from monarch.actor import this_proc

    actor = this_proc().spawn("here", Holder)
    data = bytearray(b"orig" * MIB)
    assert actor.change.call_one(data).get() == (b"orig", b"mine")
    assert data[:4] == b"orig"
    array = np.zeros(MIB)
    back = actor.echo.call_one(array).get()
    back[0] = 1
    assert array[0] == 0
    actor.stop().get()
