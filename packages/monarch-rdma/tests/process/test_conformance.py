"""What holds on every path."""

from __future__ import annotations

import pytest
from eventually import eventually
from memory_actors import pattern

from monarch.actor import Channel


@pytest.mark.parametrize("nbytes", [1, 7, 4096, (1 << 20) + 3, (9 << 20) + 5])
def test_bytes_arrive_exactly(pair, nbytes):
    buffer = pair.owner.share.call_one(nbytes, seed=nbytes).get()
    assert pair.reader.path.call_one(buffer).get() == pair.path
    assert pair.reader.read.call_one(buffer).get() == pattern(nbytes, nbytes)
    other = pattern(nbytes, 99)
    pair.reader.write.call_one(buffer, other).get()
    assert pair.owner.content.call_one().get() == other
    pair.owner.drop.call_one().get()


def test_read_and_write_cover_their_range_only(pair):
    buffer = pair.owner.share.call_one(1000).get()
    got = pair.reader.read.call_one(buffer, nbytes=1100).get()
    assert got == pattern(1000) + b"\xee" * 100
    got = pair.reader.read.call_one(buffer, nbytes=300, offset=800).get()
    assert got == pattern(1000)[800:] + b"\xee" * 100
    pair.reader.write.call_one(buffer, b"new", offset=500).get()
    assert pair.owner.content.call_one().get() == pattern(1000)[:500] + b"new" + pattern(1000)[503:]
    pair.owner.drop.call_one().get()


def test_batches_can_be_submitted_again(pair):
    source = pair.owner.share.call_one(5000).get()
    target = pair.owner.share.call_one(3000, seed=2).get()
    data = pattern(2000, 3)
    got, nbytes, ops = pair.reader.batch.call_one([source, target], data).get()
    assert (got, nbytes, ops) == (pattern(5000), 7000, 2)
    assert pair.owner.content.call_one().get() == data + pattern(3000, 2)[2000:]


def test_many_reads_run_at_once(pair):
    buffer = pair.owner.share.call_one(3 << 20).get()
    assert pair.reader.many.call_one(buffer, 8, 5).get() == pattern(3 << 20)


def test_read_can_be_awaited(pair):
    buffer = pair.owner.share.call_one(5 << 20).get()
    reader = pair.reader
    assert reader.read_async.call_one(buffer).get() == pattern(5 << 20)


def test_dropped_by_the_owner(pair):
    buffer = pair.owner.share.call_one(4096).get()
    assert pair.reader.keep.call_one(buffer).get() == pair.path
    assert pair.reader.read_kept.call_one().get() is None
    pair.owner.drop.call_one().get()
    kind, text, _ = pair.reader.read_kept.call_one().get()
    assert kind == "RDMAReleasedError"
    first = text.splitlines()[0]
    assert first.startswith("read of 4,096 bytes, process ") and f"path {pair.path}: dropped by its owner, process " in first
    # Another process that has never used the buffer tries it.
    assert pair.reader.read_outcome.call_one(buffer).get()[0] == "RDMAReleasedError"
    pair.owner.drop.call_one().get()


def test_buffer_can_be_dropped_by_a_holder(pair):
    buffer = pair.owner.share.call_one(4096).get()
    assert pair.reader.drop.call_one(buffer).get()[0] == "RDMAReleasedError"
    assert pair.reader.read_outcome.call_one(buffer).get()[0] == "RDMAReleasedError"
    pair.reader.drop.call_one(buffer).get()


def test_ended_lease_fails_reads(pair):
    buffer = pair.owner.share.call_one(100, lease=0.05).get()
    failed = eventually("a read fails", lambda: pair.reader.read_outcome.call_one(buffer).get())
    assert failed[0] == "RDMAReleasedError" and "its lease ended" in failed[1]


def test_read_only_handles_can_only_be_read(pair):
    buffer = pair.owner.share.call_one(100, readonly=True).get()
    assert buffer.readonly
    assert pair.reader.read.call_one(buffer).get() == pattern(100)
    kind, text = pair.reader.raising.call_one("write_from", buffer, b"x").get()
    assert kind == "RDMAAccessError" and text.startswith("write of 1 bytes, process ")
    assert pair.reader.raising.call_one("drop", buffer).get()[0] == "RDMAAccessError"
    assert pair.owner.content.call_one().get() == pattern(100)


def test_parts(pair):
    buffer = pair.owner.share.call_one(1000).get()
    part = pair.reader.restrict.call_one(buffer, offset=100, length=50).get()
    assert part.size() == 50 and part.readonly
    assert pair.reader.read.call_one(part).get() == pattern(1000)[100:150]
    assert pair.reader.raising.call_one("restrict", part, readonly=False).get()[0] == "RDMAAccessError"
    assert pair.reader.raising.call_one("restrict", buffer, offset=990, length=11).get()[0] == "ValueError"
    writable = pair.reader.restrict.call_one(buffer, offset=900, readonly=False).get()
    pair.reader.write.call_one(writable, b"end", offset=97).get()
    assert pair.owner.content.call_one().get()[-3:] == b"end"
    pair.owner.drop.call_one().get()
    assert pair.reader.read_outcome.call_one(part).get()[0] == "RDMAReleasedError"


def test_parts_that_end_at_once(pair):
    buffer = pair.owner.share.call_one(1000).get()
    seen = pair.reader.parts_that_end_at_once.call_one(buffer, 300).get()
    assert seen == {(i, pattern(1000)[i : i + 100]) for i in range(300)}
    assert pair.reader.read.call_one(buffer).get() == pattern(1000)


def test_handles_that_only_a_transfer_holds(pair):
    nbytes = (3 << 20) + 1
    buffer = pair.owner.share.call_one(nbytes).get()
    assert pair.reader.parts_without_a_name.call_one(buffer, 30).get() == (pattern(nbytes)[:8], pattern(nbytes))
    pair.owner.drop.call_one().get()
    pair.owner.forget.call_one().get()


def test_atomic_operations_change_one_word(pair):
    buffer = pair.owner.share.call_one(16).get()
    first = int.from_bytes(pattern(16)[:8], "little")
    seen = pair.reader.add.call_one(buffer, [1, 5, (1 << 64) - 6]).get()
    assert seen == [first, first + 1, first + 6]
    assert pair.reader.swap.call_one(buffer, first, 7).get() == first
    assert pair.reader.swap.call_one(buffer, first, 8).get() == 7
    assert pair.owner.word.call_one().get() == 7


def test_notice_follows_the_bytes(pair):
    buffer = pair.owner.share.call_one(1 << 20).get()
    data = pattern(1 << 20, 5)
    sending, receiving = Channel.open()
    assert pair.reader.notify.call_one(buffer, data, sending, {"step": 1}).get() is None
    assert receiving.recv().get() == {"step": 1}
    assert pair.owner.content.call_one().get() == data
    # No notice comes after a failure: the next message is the next one sent.
    pair.owner.drop.call_one().get()
    assert pair.reader.notify.call_one(buffer, data, sending, "never").get()[0] == "RDMAReleasedError"
    sending.send("next")
    assert receiving.recv().get() == "next"


def test_sets(pair):
    tensors = {f"layer{i}": pattern(1000 + i, i) for i in range(50)}
    buffers = pair.owner.share_set.call_one(tensors).get()
    assert buffers.keys() == tuple(tensors) and buffers.spec("layer3") == ("B", (1003,))
    sizes = {key: len(value) for key, value in tensors.items()}
    got, nbytes = pair.reader.read_set.call_one(buffers, sizes).get()
    assert (got, nbytes) == (tensors, sum(sizes.values()))
    pair.reader.write_set.call_one(buffers, {"layer7": b"7" * 1007}).get()
    assert pair.owner.tensor_content.call_one("layer7").get() == b"7" * 1007
    assert pair.owner.tensor_content.call_one("layer8").get() == tensors["layer8"]
    assert pair.reader.raising.call_one("plan_read", buffers, {"layer1": memoryview(b"abc")}).get()[0] == "ValueError"
    assert pair.reader.raising.call_one("plan_read", buffers, {"other": memoryview(b"abc")}).get()[0] == "KeyError"


def test_handle_outlives_the_owners_reference(pair):
    buffer = pair.owner.share_and_forget.call_one(5000).get()
    assert pair.reader.read.call_one(buffer).get() == pattern(5000)


def test_ranges_outside(pair):
    buffer = pair.owner.share.call_one(100).get()
    for name, args, options in (
        ("read_into", bytes(99), {}),
        ("read_into", bytes(100), {"offset": 100}),
        ("read_into", bytes(100), {"offset": -1}),
        ("write_from", bytes(101), {}),
        ("write_from", bytes(10), {"offset": 91}),
    ):
        kind, text = pair.reader.raising.call_one(name, buffer, args, **options).get()
        assert kind == "ValueError" and ("does not fit" in text or "outside" in text)
