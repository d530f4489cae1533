"""Memory of `allocate`: mapped by others, freed with its views, and flat over any number of buffers."""

from __future__ import annotations

import gc

import pytest
from memory_actors import Owner, Reader, descriptors, pattern, resident

from monarch.actor import this_host
from monarch.rdma import RDMABuffer, RdmaInitError, RDMAUnsupportedError, allocate
from monarch.rdma._process.process import this_process


@pytest.fixture(scope="module")
def procs():
    owners, readers = this_host().spawn_procs(name="owner"), this_host().spawn_procs(name="reader")
    yield owners.spawn("owner", Owner, True), readers.spawn("reader", Reader)
    owners.stop().get()
    readers.stop().get()


@pytest.mark.parametrize("nbytes", [100, 3 << 20])
def test_map(procs, nbytes):
    owner, reader = procs
    buffer = owner.share.call_one(nbytes).get()
    assert reader.map.call_one(buffer).get() == (pattern(nbytes), False)
    assert reader.mapped.call_one(b"written by the reader").get()[:21] == b"written by the reader"
    assert owner.content.call_one().get()[:21] == b"written by the reader"
    # A view outlives the buffer; its memory is not reused as long as the view lives.
    owner.drop.call_one().get()
    owner.forget.call_one().get()
    assert owner.counts.call_one().get() == (0, 1)
    other = owner.share.call_one(nbytes, seed=2).get()
    assert reader.mapped.call_one().get()[21:] == pattern(nbytes)[21:]
    reader.unmap.call_one().get()
    assert owner.settled.call_one((1, 0)).get()
    del other
    owner.drop.call_one().get()
    owner.forget.call_one().get()
    assert owner.settled.call_one((0, 0)).get()


def test_read_only_handle_is_mapped_read_only(procs):
    owner, reader = procs
    buffer = owner.share.call_one(3 << 20, readonly=True).get()
    assert reader.map.call_one(buffer).get() == (pattern(3 << 20), True)
    with pytest.raises(Exception, match="cannot modify read-only memory"):
        reader.mapped.call_one(b"x").get()
    reader.unmap.call_one().get()
    owner.drop.call_one().get()


def test_part_of_a_buffer_is_mapped(procs):
    owner, reader = procs
    buffer = owner.share.call_one(10_000).get()
    part = buffer.restrict(offset=5000, length=100)
    assert reader.map.call_one(part).get() == (pattern(10_000)[5000:5100], True)
    reader.unmap.call_one().get()
    owner.drop.call_one().get()


def test_only_memory_of_allocate_can_be_mapped():
    with RDMABuffer(memoryview(bytearray(10))) as buffer, pytest.raises(RDMAUnsupportedError, match="not allocated by allocate"):
        buffer.map()


def test_new_memory_is_zeroed_and_freed_with_views():
    before = descriptors()
    memory = allocate(3 << 20)
    assert bytes(memory[:100]) == bytes(100) and len(memory) == 3 << 20
    memory[:] = b"x" * len(memory)
    part = memory[100:200]
    assert descriptors() == before + 1
    buffer = RDMABuffer(part)
    memory.release()
    del memory, part
    gc.collect()
    assert descriptors() == before + 1
    assert buffer.path == "local" and bytes(buffer.map()) == b"x" * 100
    buffer.drop().get()
    del buffer
    gc.collect()
    assert descriptors() == before
    for _ in range(3):
        small = allocate(100)
        assert bytes(small) == bytes(100)
        small[:] = b"x" * 100
        small.release()


def test_huge_pages():
    with open("/proc/meminfo") as f:
        free = next(int(line.split()[1]) for line in f if line.startswith("HugePages_Free"))
    if free:
        memory = allocate(100, huge_pages=True)
        memory[99] = 1
        return
    # Without huge pages, memory is reserved for the mapping when it is made.
    with pytest.raises(RdmaInitError, match="huge pages"):
        allocate(100, huge_pages=True)
    assert len(allocate(100, huge_pages=False)) == 100


@pytest.mark.parametrize("arena", [False, True])
def test_ten_thousand_buffers(arena):
    counts = this_process().bulk.counts

    def rounds(times: int) -> None:
        for i in range(times):
            memory = allocate(4096) if arena else memoryview(bytearray(4096))
            buffer = RDMABuffer(memory)
            buffer.read_into(memoryview(bytearray(4096))).get()
            if i % 2:
                buffer.drop().get()

    rounds(500)
    gc.collect()
    opened, used, live = descriptors(), resident(), counts()
    rounds(10_000)
    gc.collect()
    assert (descriptors(), counts()) == (opened, live)
    assert resident() - used < 4096  # kilobytes


def test_ten_thousand_buffers_that_others_use_and_end(pair):
    """By every path: at the owner as at the reader."""

    def usage(sets: int) -> tuple[object, int]:
        for _ in range(sets):
            pair.reader.read_many.call_one(pair.owner.share_many.call_one(500, 64).get(), 64).get()
        assert pair.owner.settled.call_one((0, 0)).get()
        seen = [side.usage.call_one().get() for side in (pair.owner, pair.reader)]
        return [row[:2] for row in seen], sum(row[2] for row in seen)

    opened, used = usage(2)
    growths = []
    # Kilobytes. Threads and their caches take some at first, and a busy machine frees late; a kept buffer, or its record at a reader, would
    # add more each time.
    while len(growths) < 5 and (len(growths) < 2 or min(growths) >= 1000):
        again, more = usage(9)
        assert again == opened
        growths.append(more - used)
        used = more
    assert min(growths) < 1000, growths


def test_buffers_of_another_process_leave_nothing(procs):
    owner, reader = procs
    for i in range(200):
        buffer = owner.share.call_one(64, seed=i).get()
        assert reader.read.call_one(buffer).get() == pattern(64, i)
        (reader.drop if i % 2 else owner.drop).call_one(*([buffer] if i % 2 else [])).get()
    owner.forget.call_one().get()
    assert owner.settled.call_one((0, 0)).get()
