"""Buffers over devices that fail, refuse, and forget. The devices stand for real ones (`process_fabric`); those are in `tests/verbs`."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from eventually import eventually
from memory_actors import pattern, stop
from other_hosts import other_hosts
from process_fabric import Fabric, process_fabric
from verbs_actors import VerbsOwner, VerbsReader

from monarch.actor import Channel
from monarch.config import configured

MB = 1 << 20


class Setting(NamedTuple):
    fabric: Fabric
    owner: Any
    reader: Any
    readers: Any


@contextlib.contextmanager
def setting(near=("near",), far=("far",), *, arena=False, **environment: str) -> Iterator[Setting]:
    """Two hosts that have these devices; none: not even in name."""
    with contextlib.ExitStack() as stack:
        fabric = stack.enter_context(process_fabric())
        hosts = [stack.enter_context(other_hosts(**(fabric.devices(*names) if names else {}), **environment)) for names in (far, near)]
        owners, readers = [host.spawn_procs(name="procs") for host in hosts]
        yield Setting(fabric, owners.spawn("owner", VerbsOwner, arena), readers.spawn("reader", VerbsReader), readers)
        for procs in (owners, readers):
            procs.stop().get()


@pytest.fixture
def two_rails() -> Iterator[Setting]:
    with setting(("near0", "near1"), ("far0", "far1")) as made:
        yield made


def test_two_rails_carry_a_read(two_rails):
    buffer = two_rails.owner.share.call_one(20 * MB + 7).get()
    assert two_rails.reader.read.call_one(buffer).get() == pattern(20 * MB + 7)
    assert two_rails.reader.ready.call_one(buffer).get() == [True, True]


def test_rail_cut_during_a_transfer_is_no_error(two_rails):
    buffer = two_rails.owner.share.call_one(20 * MB).get()
    assert two_rails.reader.read.call_one(buffer).get() == pattern(20 * MB)
    two_rails.fabric.begin("slow", "near0")
    sending, receiving = Channel.open()
    reading = two_rails.reader.read_telling.call_one(buffer, sending)
    receiving.recv().get()
    two_rails.fabric.begin("cut", "near0")
    two_rails.fabric.end("slow", "near0")
    assert reading.get() == pattern(20 * MB)
    assert two_rails.reader.path.call_one(buffer).get() in ("verbs:near0", "verbs:near1")


def test_streams_replace_rails_that_are_all_cut(two_rails):
    buffer = two_rails.owner.share.call_one(20 * MB).get()
    assert two_rails.reader.read.call_one(buffer).get() == pattern(20 * MB)
    two_rails.fabric.begin("cut", "near0")
    two_rails.fabric.begin("cut", "near1")
    data = pattern(20 * MB, 2)
    two_rails.reader.write.call_one(buffer, data).get()
    assert two_rails.owner.content.call_one().get() == data
    assert two_rails.reader.read.call_one(buffer).get() == data


def test_failure_without_streams_lists_each_try():
    with setting(MONARCH_RDMA_ALLOW_TCP_FALLBACK="false") as s:
        buffer = s.owner.share.call_one(4 * MB).get()
        assert buffer.backend == "ibverbs"
        assert s.reader.path.call_one(buffer).get() == "verbs:near"
        s.fabric.begin("cut", "near")
        kind, text, _ = s.reader.read_outcome.call_one(buffer, timeout=5).get()
        assert kind == "RDMATransferError"
        first, *others = text.splitlines()
        assert first.startswith("read of 4,194,304 bytes, process ") and "path verbs" in first
        assert "near: no answer after all retries" in text and "bytes 0 to 1,048,576" in text
        # The error of an ended buffer has precedence over other errors.
        s.owner.drop.call_one().get()
        assert s.reader.read_outcome.call_one(buffer, timeout=5).get()[0] == "RDMAReleasedError"


@pytest.mark.parametrize("trouble", ["none", "full"])
def test_devices_that_refuse_leave_it_to_streams(trouble):
    """A queue pair, or the memory of the owner."""
    with setting() as s:
        s.fabric.begin(trouble, "far")
        buffer = s.owner.share.call_one(3 * MB).get()
        assert s.reader.read.call_one(buffer).get() == pattern(3 * MB)
        if trouble == "none":
            assert s.reader.path.call_one(buffer).get() == "tcp"
        assert s.reader.warned.call_one(buffer).get() == (["RDMATcpFallbackWarning"] if trouble == "none" else [])


def test_memory_of_the_reader_that_devices_refuse():
    with setting() as s:
        buffer = s.owner.share.call_one(3 * MB).get()
        assert s.reader.path.call_one(buffer).get() == "verbs:near"
        s.fabric.begin("full", "near")
        assert s.reader.read.call_one(buffer).get() == pattern(3 * MB)


def test_process_without_devices_reads_by_tcp():
    with setting(near=()) as s:
        buffer = s.owner.share.call_one(MB).get()
        assert buffer.backend == "ibverbs"
        assert s.reader.warned.call_one(buffer).get() == ["RDMATcpFallbackWarning"]
        assert s.reader.path.call_one(buffer).get() == "tcp"


def test_devices_that_settings_forbid():
    with setting(MONARCH_RDMA_DISABLE_IBVERBS="true") as s:
        buffer = s.owner.share.call_one(MB).get()
        assert buffer.backend == "tcp" and s.reader.path.call_one(buffer).get() == "tcp"


def test_only_the_device_of_the_setting():
    with setting(("near0", "near1"), ("far0", "far1"), MONARCH_RDMA_IBVERBS_TARGET="nic:near1") as s:
        buffer = s.owner.share.call_one(MB).get()
        # The owner has no device of that name.
        assert buffer.backend == "tcp"
    with setting(("a", "b"), ("a", "b"), MONARCH_RDMA_IBVERBS_TARGET="nic:b") as s:
        buffer = s.owner.share.call_one(MB).get()
        assert s.reader.path.call_one(buffer).get() == "verbs:b" and s.reader.ready.call_one(buffer).get() == [True]


def test_drop_ends_when_no_device_reaches_memory():
    with setting() as s:
        before = s.fabric.keys()
        buffers = [s.owner.share.call_one(5000).get() for _ in range(3)]
        for buffer in buffers:
            assert s.reader.path.call_one(buffer).get() == "verbs:near"
            assert s.reader.read.call_one(buffer).get() == pattern(5000)
        # Memory that is read once is registered with the reader's devices only for that time; the owner's stays registered.
        assert s.fabric.keys() >= before + 3
        s.owner.drop.call_one(0).get()
        s.owner.drop.call_one(1).get()
        assert s.reader.drop.call_one(buffers[2]).get()[0] == "RDMAReleasedError"
        assert s.owner.known_to_devices.call_one().get() == (0, 1)
        s.reader.trim.call_one().get()
        assert s.fabric.keys() == before
        s.owner.forget.call_one().get()
        assert s.owner.settled.call_one((0, 0)).get()


def test_many_buffers_leave_nothing():
    with setting() as s:
        buffers = s.owner.share_many.call_one(300, 64).get()
        assert s.reader.open_all.call_one(buffers).get() == {"verbs:near"}
        s.reader.read_many.call_one(buffers, 64).get()
        s.reader.trim.call_one().get()
        assert s.owner.settled.call_one((0, 0)).get()
        assert s.fabric.keys() == 0


def test_small_single_read_needs_no_key():
    with setting() as s:
        buffer = s.owner.share.call_one(5000).get()
        assert s.reader.read.call_one(buffer).get() == pattern(5000) and s.fabric.keys() == 0
        assert s.reader.read.call_one(buffer).get() == pattern(5000) and s.fabric.keys() >= 1
        large = s.owner.share.call_one(100_000).get()
        assert s.reader.read.call_one(large).get() == pattern(100_000) and s.fabric.keys() >= 2


def test_plan_keeps_its_memory_registered():
    with setting() as s:
        source, target = s.owner.share.call_one(100_000).get(), s.owner.share.call_one(9 * MB).get()
        assert s.reader.prepare.call_one(source, target).get() == 9 * MB + 100_000
        keys = s.fabric.keys()
        assert s.reader.submit.call_one(5).get() == pattern(100_000)
        assert s.fabric.keys() == keys
        assert s.owner.content.call_one().get() == bytes(9 * MB)
        s.reader.forget_plan.call_one().get()
        while s.fabric.keys() > 2:
            s.reader.trim.call_one().get()


def test_batch_covers_devices_and_local_memory():
    with setting() as s:
        far = s.owner.share.call_one(50_000).get()
        assert s.reader.mixed.call_one(far).get() == (pattern(50_000), b"near" * 1000, pattern(50_000)[:8])


def test_allocation_stays_registered_until_it_is_freed():
    with setting(arena=True) as s:
        buffer = s.owner.share.call_one(2 * MB).get()
        s.reader.read_into_allocation.call_one(buffer, 3).get()
        s.reader.trim.call_one().get()
        # The keys are the owner's export, and all of the reader's allocation, once.
        assert s.fabric.keys() == 2
        s.reader.free.call_one().get()

        def keys_after_trimming() -> int:
            s.reader.trim.call_one().get()
            return s.fabric.keys()

        eventually("one key is left", keys_after_trimming, lambda keys: keys <= 1)


def test_killed_reader_is_forgotten():
    with setting() as s:
        buffer = s.owner.share.call_one(MB).get()
        assert s.reader.read.call_one(buffer).get() == pattern(MB)
        assert s.owner.known_to_devices.call_one().get() == (1, 1)
        os.kill(s.reader.pid.call_one().get(), signal.SIGKILL)
        eventually("the reader is forgotten", lambda: s.owner.known_to_devices.call_one().get(), lambda known: known == (1, 0))


def test_reader_ends_despite_an_unresponsive_owner():
    with configured(process_exit_timeout="300s"), setting(MONARCH_RDMA_QP_INIT_TIMEOUT="300s") as s:
        buffer = s.owner.share.call_one(MB).get()
        assert s.reader.path.call_one(buffer).get() == "verbs:near"
        # Its queues have failed, and a question for others will be in flight.
        s.fabric.begin("cut", "near")
        assert s.reader.read.call_one(buffer).get() == pattern(MB)
        pid = s.owner.pid.call_one().get()
        stop(pid)
        try:
            s.fabric.end("cut", "near")
            kind, _, _ = s.reader.read_outcome.call_one(buffer, timeout=0.2).get()
            assert kind == "RDMATimeoutError"
            s.readers.stop().get()
        finally:
            os.kill(pid, signal.SIGCONT)


def test_transfer_keeps_its_memory():
    with setting((), ()) as s:
        buffer = s.owner.share.call_one(100).get()
        assert s.reader.read.call_one(buffer).get() == pattern(100)
        pid = s.owner.pid.call_one().get()
        stop(pid)
        try:
            assert s.reader.begin_unnamed.call_one(buffer).get()
        finally:
            os.kill(pid, signal.SIGCONT)
        assert not s.reader.unnamed.call_one().get()


def test_malformed_requests_get_no_answer(two_rails):
    buffer = two_rails.owner.share.call_one(100).get()
    for body in (b"", b"\0", b"\1", b"\2\xff\xff\xff\xff", b"\1\1\0\0\0\3\0\0\0abc", b"\2\1\0\0\0\1\0\0\0x", b"\7nonsense" * 50):
        assert two_rails.reader.ask_owner.call_one(buffer, body).get() is None
    assert two_rails.reader.forged.call_one(buffer).get() == "RDMAReleasedError"
    assert two_rails.reader.read.call_one(buffer).get() == pattern(100)
