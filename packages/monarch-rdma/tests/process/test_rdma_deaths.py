"""Owners and readers that die, stop, or hold their GIL; and a kernel that changes its mind."""

from __future__ import annotations

import os
import signal

import pytest
from memory_actors import Owner, Reader, pattern, stop

from monarch.actor import Channel, this_host


def test_owner_killed_in_the_middle(mortals):
    buffer = mortals.owner.share.call_one(32 << 20).get()
    # The path is open before the owner is killed: on a busy machine streams carry the reads of a path that is not open yet.
    assert mortals.reader.keep.call_one(buffer).get() == mortals.path
    sending, receiving = Channel.open()
    pid = mortals.owner.pid.call_one().get()
    reading = mortals.reader.read_until_it_fails.call_one(buffer, sending)
    assert receiving.recv().get() is None
    os.kill(pid, signal.SIGKILL)
    kind, text, _ = reading.get()
    assert kind == "RDMAPeerLostError"
    first = text.splitlines()[0]
    assert first.startswith("read of 33,554,432 bytes, process ") and f"path {mortals.path}: the owner's process is gone" in first
    # The error stays the same, also for a process that has never used the buffer; it has the reason of the end, once that is known.
    assert "Killed(sig=9)" in _text_with_reason(mortals.reader, buffer).splitlines()[1]


def _text_with_reason(reader, buffer) -> str:
    """The news of a death may be a moment behind the error."""
    reason = None
    while reason is None:
        kind, text, reason = reader.read_outcome.call_one(buffer).get()
        assert kind == "RDMAPeerLostError"
    assert reason == "signal"
    return text


def test_owner_killed_before_the_first_use(mortals):
    buffer = mortals.owner.share.call_one(100).get()
    os.kill(mortals.owner.pid.call_one().get(), signal.SIGKILL)
    with pytest.raises(Exception, match="Killed"):
        mortals.owner.pid.call_one().get()
    assert "Killed(sig=9)" in _text_with_reason(mortals.reader, buffer)


def test_owner_that_exits(mortals):
    owner = this_host().spawn_procs(name="short")
    buffer = owner.spawn("short", Owner).share.call_one(4096).get()
    assert mortals.reader.keep.call_one(buffer).get()
    owner.stop().get()
    kind, text, _ = mortals.reader.read_kept.call_one().get()
    assert kind == "RDMAReleasedError" and "its process has exited" in text


def test_owner_that_is_stopped(mortals):
    buffer = mortals.owner.share.call_one(100).get()
    pid = mortals.owner.pid.call_one().get()
    stop(pid)
    try:
        kind, text, _ = mortals.reader.read_outcome.call_one(buffer, timeout=0.1).get()
        assert kind == "RDMATimeoutError" and "time-out of 0.1 s during opening: 0 of 100 bytes" in text
        waiting = mortals.reader.read_outcome.call_one(buffer)
    finally:
        os.kill(pid, signal.SIGCONT)
    # Neither the unread answer nor the wait itself disturbs the next operation.
    assert waiting.get() is None
    assert mortals.reader.read.call_one(buffer).get() == pattern(100)


def test_unresponsive_owner_delays_no_other(mortals):
    word = mortals.owner.share.call_one(8).get()
    assert mortals.reader.keep.call_one(word).get() == mortals.path
    others = this_host().spawn_procs(name="other")
    large = others.spawn("other", Owner).share.call_one(9 << 20).get()
    pid = mortals.owner.pid.call_one().get()
    stop(pid)
    try:
        assert mortals.reader.add_and_read.call_one(word, large).get() is None
    finally:
        os.kill(pid, signal.SIGCONT)
    assert mortals.reader.added.call_one().get() == [None] * 20
    before = int.from_bytes(pattern(8), "little")
    assert mortals.owner.word.call_one().get() == (before + 20) % (1 << 64)
    others.stop().get()


def test_owner_whose_gil_is_held(mortals, tmp_path):
    ready, until = tmp_path / "ready", tmp_path / "until"
    os.mkfifo(ready)
    os.mkfifo(until)
    known = mortals.owner.share.call_one(2 << 20).get()
    assert mortals.reader.keep.call_one(known).get() == mortals.path
    fresh = mortals.owner.share.call_one(1000).get()
    told, go = os.open(ready, os.O_RDWR), os.open(until, os.O_RDWR)
    holding = mortals.owner.hold_the_gil.call_one(str(ready), str(until))
    try:
        assert os.read(told, 1) == b"x"
        assert mortals.reader.read_kept.call_one().get() is None
        assert mortals.reader.read.call_one(fresh).get() == pattern(1000)
    finally:
        os.write(go, b"x")
        os.close(go)
        os.close(told)
    holding.get()


def test_reader_killed_in_the_middle(mortals):
    # Resources that the owner opens for a first reader stay open.
    first = mortals.owner.share.call_one(5000).get()
    assert mortals.reader.read.call_one(first).get() == pattern(5000)
    pid = mortals.reader.pid.call_one().get()
    buffer = mortals.owner.share.call_one(32 << 20).get()
    sending, receiving = Channel.open()
    reading = mortals.reader.read_until_it_fails.call_one(buffer, sending)
    assert receiving.recv().get() is None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Exception, match="Killed"):
        reading.get()
    mortals.owner.drop.call_one().get()
    mortals.owner.drop.call_one(0).get()
    mortals.owner.forget.call_one().get()
    assert mortals.owner.settled.call_one((0, 0)).get()
    # The rest is the table of epochs, and the segment of small allocations.
    left = 2 if mortals.path == "shm" else 1
    assert mortals.owner.settled_descriptors.call_one(left).get()
    # A later consumer finds the same state, and leaves nothing either.
    buffer = mortals.owner.share.call_one(5000, seed=3).get()
    procs = mortals.near.spawn_procs(name="fresh")
    reader = procs.spawn("fresh", Reader, mortals.path == "shm-staged")
    assert reader.path.call_one(buffer).get() == mortals.path
    assert reader.read.call_one(buffer).get() == pattern(5000, 3)
    procs.stop().get()
    mortals.owner.drop.call_one().get()
    mortals.owner.forget.call_one().get()
    assert mortals.owner.settled.call_one((0, 0)).get()
    assert mortals.owner.settled_descriptors.call_one(left).get()


def test_withdrawn_permission_changes_the_transport(mortals):
    buffer = mortals.owner.share.call_one(9 << 20).get()
    small = mortals.owner.share.call_one(5000, seed=2).get()
    assert mortals.reader.keep.call_one(buffer).get() == mortals.path
    mortals.reader.refuse_direct_copies.call_one().get()
    assert mortals.reader.read.call_one(small).get() == pattern(5000, 2)
    assert mortals.reader.read_kept.call_one().get() is None
    assert mortals.reader.read.call_one(buffer).get() == pattern(9 << 20)
    mortals.reader.write.call_one(small, b"still").get()
    assert mortals.owner.content.call_one().get()[:5] == b"still"
    # The stand-in for devices in these tests needs the same permission.
    others = {"shm": "shm", "tcp": "tcp", "verbs:near": "tcp"}
    assert mortals.reader.path.call_one(buffer).get() == others.get(mortals.path, "shm-staged")
