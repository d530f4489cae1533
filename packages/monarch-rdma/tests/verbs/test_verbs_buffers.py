"""Buffers over real devices, between processes of hosts that the runtime takes for two: each in a network of its own."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from memory_actors import pattern
from other_hosts import other_hosts
from verbs_actors import VerbsOwner, VerbsReader

from monarch.actor import Channel

MB = 1 << 20


class Pair(NamedTuple):
    owner: Any
    reader: Any


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """A wire between them."""
    with contextlib.ExitStack() as stack:
        devices = ({"MONARCH_RDMA_IBVERBS_TARGET": f"nic:{name}"} for name in ("rxe1", "rxe0"))
        owners, readers = [stack.enter_context(other_hosts(**one)).spawn_procs(name="procs") for one in devices]
        yield Pair(owners.spawn("owner", VerbsOwner), readers.spawn("reader", VerbsReader))
        for procs in (owners, readers):
            procs.stop().get()


def test_small_buffers_and_their_path(pair):
    buffer = pair.owner.share.call_one(100).get()
    assert buffer.backend == "ibverbs"
    # The second read opens devices, for which an emulated machine may need longer than the 2 s that `path` waits.
    for _ in range(2):
        assert pair.reader.read.call_one(buffer).get() == pattern(100)
    assert pair.reader.path.call_one(buffer).get() == "verbs:rxe0"
    pair.reader.write.call_one(buffer, b"new", offset=50).get()
    assert pair.owner.content.call_one().get() == pattern(100)[:50] + b"new" + pattern(100)[53:]


def test_dropped_buffers_cannot_be_reached(pair):
    buffer = pair.owner.share.call_one(4096).get()
    assert pair.reader.keep.call_one(buffer).get() == "verbs:rxe0"
    assert pair.reader.read_kept.call_one().get() is None
    pair.owner.drop.call_one().get()
    kind, text, _ = pair.reader.read_kept.call_one().get()
    assert kind == "RDMAReleasedError" and "path verbs:rxe0: dropped by its owner, process " in text
    again = pair.owner.share.call_one(4096, seed=3).get()
    assert pair.reader.read.call_one(again).get() == pattern(4096, 3)


def test_read_only_parts(pair):
    buffer = pair.owner.share.call_one(10_000).get()
    part = pair.reader.restrict.call_one(buffer, offset=5000, length=100).get()
    assert pair.reader.read.call_one(part).get() == pattern(10_000)[5000:5100]
    assert pair.reader.path.call_one(part).get() == "verbs:rxe0"
    assert pair.reader.raising.call_one("write_from", part, b"x").get()[0] == "RDMAAccessError"


def test_large_buffers_both_ways(pair):
    nbytes = 9 * MB + 5
    buffer = pair.owner.share.call_one(nbytes).get()
    assert pair.reader.read.call_one(buffer).get() == pattern(nbytes)
    data = pattern(nbytes, 2)
    pair.reader.write.call_one(buffer, data).get()
    assert pair.owner.content.call_one().get() == data


def test_batches_and_sets(pair):
    source, target = pair.owner.share.call_one(50_000).get(), pair.owner.share.call_one(3000, seed=2).get()
    assert pair.reader.batch.call_one([source, target], pattern(2000, 3)).get() == (pattern(50_000), 52_000, 2)
    tensors = {f"layer{i}": pattern(1000 + i, i) for i in range(30)}
    buffers = pair.owner.share_set.call_one(tensors).get()
    assert pair.reader.read_set.call_one(buffers, {key: len(value) for key, value in tensors.items()}).get()[0] == tensors


def test_lost_packets(pair, netem):
    buffer = pair.owner.share.call_one(4 * MB).get()
    netem("wire0", "loss", "1%")
    netem("wire1", "loss", "1%")
    assert pair.reader.read.call_one(buffer).get() == pattern(4 * MB)


def test_cut_wire_falls_back_to_streams(pair, netem):
    buffer = pair.owner.share.call_one(4 * MB).get()
    assert pair.reader.path.call_one(buffer).get() == "verbs:rxe0"
    netem("wire1", "loss", "100%")
    assert pair.reader.read.call_one(buffer).get() == pattern(4 * MB)


def test_killed_owner_fails_a_running_transfer(netem):
    with contextlib.ExitStack() as stack:
        devices = ({"MONARCH_RDMA_IBVERBS_TARGET": f"nic:{name}"} for name in ("rxe1", "rxe0"))
        owners, readers = [stack.enter_context(other_hosts(**one)).spawn_procs(name="procs") for one in devices]
        owner, reader = owners.spawn("owner", VerbsOwner), readers.spawn("reader", VerbsReader)
        buffer = owner.share.call_one(4 * MB).get()
        assert reader.path.call_one(buffer).get() == "verbs:rxe0"
        netem("wire1", "rate", "16mbit", "limit", "100")
        sending, receiving = Channel.open()
        pid = owner.pid.call_one().get()
        reading = reader.failing.call_one(buffer, sending)
        receiving.recv().get()
        os.kill(pid, signal.SIGKILL)
        kind, text, _ = reading.get()
        assert kind == "RDMAPeerLostError" and "path verbs:rxe0: the owner's process is gone" in text
        for procs in (owners, readers):
            procs.stop().get()
