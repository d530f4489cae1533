"""Reads and writes between two processes by real devices, over wires that lose packets, and are cut."""

from __future__ import annotations

import hashlib
import os
import resource
from contextlib import contextmanager

import pytest
from verbs_far import Far
from verbs_owner import pattern
from verbs_reader import Reader

from monarch.rdma.verbs.connection import COMPLETE, EXHAUSTED, REFUSED, TIMED_OUT
from monarch.rdma.verbs.readiness import too_little_locked_memory
from monarch.rdma.verbs.registration import Allocation

MB = 1 << 20


@contextmanager
def joined(nbytes, near=("rxe0",), far=("rxe1",), *, writable=True):
    owner = Far(*far)
    try:
        reader = Reader(owner.ask, near, nbytes, writable=writable)
        try:
            reader.owner = owner.process
            yield reader
        finally:
            reader.close()
    finally:
        owner.end()


def both_ways(reader, nbytes):
    """Reads, then writes something else, byte for byte."""
    assert reader.move(False, (0, nbytes)).state == COMPLETE
    assert reader.memory[:nbytes] == pattern(nbytes)
    reader.memory[:nbytes] = os.urandom(nbytes)
    assert reader.move(True, (0, nbytes)).state == COMPLETE
    assert reader.ask("digest", 0, nbytes) == reader.digest(0, nbytes)


def test_sizes():
    with joined(4 * MB + 4096) as reader:
        for nbytes in (4096, 32768, 32769, MB, 4 * MB, 4 * MB + 13):
            whole = reader.ask("digest", 0, 4 * MB + 4096)
            reader.memory[:] = bytes(len(reader.memory))
            assert reader.move(False, (0, nbytes)).state == COMPLETE
            assert reader.digest(0, nbytes) == reader.ask("digest", 0, nbytes)
            assert not any(reader.memory[nbytes : nbytes + 4096]) and reader.ask("digest", 0, 4 * MB + 4096) == whole
            reader.memory[:] = os.urandom(len(reader.memory))
            tail = reader.ask("digest", nbytes, 64)
            assert reader.move(True, (0, nbytes)).state == COMPLETE
            assert reader.digest(0, nbytes) == reader.ask("digest", 0, nbytes) and reader.ask("digest", nbytes, 64) == tail


def test_many_small_operations_complete():
    with joined(MB) as reader:
        assert reader.move(False, *((i * 1024, 512) for i in range(1000))).state == COMPLETE
        expected = pattern(MB)
        for i in range(1000):
            assert reader.memory[i * 1024 : i * 1024 + 1024] == expected[i * 1024 : i * 1024 + 512] + bytes(512)


def test_lost_packets(netem):
    netem("wire0", "loss", "1%")
    netem("wire1", "loss", "1%")
    with joined(4 * MB) as reader:
        both_ways(reader, 4 * MB)


def test_two_rails_share_the_work(wires):
    with joined(8 * MB, ("rxe0", "rxe2"), ("rxe1", "rxe3")) as reader:
        both_ways(reader, 8 * MB)
        assert reader.connection.ready == [True, True]


def test_rail_cut_during_a_transfer_is_replaced(netem):
    with joined(16 * MB, ("rxe0", "rxe2"), ("rxe1", "rxe3")) as reader:
        # The data in flight there would take seconds, so the wire is cut before.
        netem("wire1", "rate", "16mbit", "limit", "100")
        transfer = reader.start(False, (0, 16 * MB))
        netem("wire1", "loss", "100%", "limit", "100")
        assert reader.ended.get() is transfer
        assert transfer.state == COMPLETE and reader.memory[:] == pattern(16 * MB)
        assert transfer.attempts and {one.rail for one in transfer.attempts} == {"rxe0"}
        assert transfer.attempts[0].status.startswith("no answer after all retries")


def test_read_only_and_dropped_memory_is_refused():
    with joined(MB, writable=False) as reader:
        transfer = reader.move(True, (0, 4096))
        assert transfer.state == REFUSED and "remote" in transfer.attempts[0].status
        assert reader.ask("digest", 0, MB) == hashlib.sha256(pattern(MB)).hexdigest()
        # The queue that failed is replaced.
        assert reader.move(False, (0, MB)).state == COMPLETE
        reader.ask("drop")
        reader.memory[:] = bytes(MB)
        assert reader.move(False, (0, MB)).state == REFUSED
        assert reader.memory[:] == bytes(MB)


def test_time_is_up_and_then_it_is_quiet(netem):
    with joined(4 * MB) as reader:
        netem("wire1", "loss", "100%")
        transfer = reader.move(False, (0, 4 * MB), timeout=0.2)
        assert transfer.state == TIMED_OUT and transfer.done < 4 * MB
        before = reader.digest(0, 4 * MB)
        netem("wire1", "loss", "0%")
        assert reader.digest(0, 4 * MB) == before
        assert reader.move(False, (0, 4 * MB)).state == COMPLETE
        assert reader.memory[:] == pattern(4 * MB)


def test_killed_owner_ends_a_running_transfer(netem):
    with joined(4 * MB) as reader:
        netem("wire1", "rate", "16mbit", "limit", "100")
        transfer = reader.start(False, (0, 4 * MB))
        reader.owner.kill()
        assert reader.ended.get() is transfer
        assert transfer.state == EXHAUSTED and sum(n for _, _, n in transfer.left()) == 4 * MB - transfer.done
        assert reader.connection.troubles


def test_registrations_are_kept_and_given_back():
    with joined(MB) as reader:
        cache = reader.registrations
        assert cache.pinned == MB
        for step in range(3):
            lease = cache.acquire(reader.rails[0], Allocation(reader.address, MB // 2, step or None))
            cache.release(lease)
        cache.trim()
        assert cache.pinned == 2 * MB
        cache.forget(reader.address, 1)
        assert cache.pinned == MB


def test_memory_that_cannot_be_registered():
    with joined(4096) as reader:
        with pytest.raises(OSError, match="registering 4,096 bytes on rxe0"):
            reader.rails[0].register(1 << 12, 4096)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, resource.RLIM_INFINITY))
        try:
            assert too_little_locked_memory() is None  # root needs no limit
        finally:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
