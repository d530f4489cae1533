"""The report of a process at its exit about memory that only handles elsewhere have kept."""

from __future__ import annotations

import pickle

import pytest
from fresh_script import run

from monarch.rdma import RDMABuffer, allocate
from monarch.rdma._process.forgotten import Forgotten
from monarch.rdma._process.process import this_process

# No code touches the memory, so it takes none.
PRELUDE = """
import pickle
from monarch.actor import Actor, endpoint, this_host
from monarch.rdma import RDMABuffer, RDMABufferSet, allocate

HALF = 600 << 20

class Owner(Actor):
    def __init__(self):
        self.kept = []

    @endpoint
    def share(self, keep, **options):
        buffer = RDMABuffer(allocate(HALF), **options)
        if keep:
            self.kept.append(buffer)
        return buffer

def owner():
    procs = this_host().spawn_procs()
    return procs, procs.spawn("owner", Owner)
"""
WORDS = "bytes were held until exit by {} RDMA buffer"


@pytest.mark.parametrize(
    "code",
    [
        "data = [pickle.dumps(RDMABuffer(allocate(HALF))) for _ in range(2)]",
        "data = pickle.dumps(RDMABufferSet({str(i): allocate(HALF) for i in range(2)}))",
        # A part keeps the whole.
        "data = [pickle.dumps(RDMABuffer(allocate(HALF)).restrict(length=8)) for _ in range(2)]",
    ],
)
def test_forgotten_buffers_of_a_script_are_reported(code):
    done = run(code, prelude=PRELUDE)
    assert (done.code, done.left, done.out) == (0, [], "")
    assert len(done.err.splitlines()) == 1
    assert f"1,258,291,200 {WORDS.format(2)}s of which only others had handles" in done.err


@pytest.mark.parametrize(
    "code",
    [
        # Half a gigabyte is below the limit, and the same memory is counted once.
        "pickle.dumps(RDMABuffer(allocate(HALF)))",
        "memory = allocate(HALF)\nfor i in range(5): pickle.dumps(RDMABuffer(memory))",
        # Either a handle exists until the end, or the memory was released.
        "kept = [RDMABuffer(allocate(HALF)) for _ in range(2)]\npickle.dumps(kept)",
        "for i in range(2): RDMABuffer(allocate(HALF))",
        "for i in range(2):\n    with RDMABuffer(allocate(HALF)) as b: pickle.dumps(b)",
        "data = [pickle.dumps(RDMABuffer(allocate(HALF))) for _ in range(2)]\nfor d in data: pickle.loads(d).drop().get()",
    ],
)
def test_script_without_forgotten_buffers_is_silent(code):
    run(code, prelude=PRELUDE).assert_clean()


def forgets_two(code: str) -> None:
    """Two buffers are reported, once."""
    done = run(code, prelude=PRELUDE)
    assert (done.code, done.left) == (0, [])
    assert (done.out + done.err).count(WORDS.format(2)) == 1


def test_forgotten_buffers_of_actors_are_reported():
    code = """
    procs, actor = owner()
    buffers = [actor.share.call_one(False).get() for _ in range(2)]
    procs.stop().get()
    """
    forgets_two(code)


def test_kept_handles_of_actors_are_not_reported():
    """They go with the process, not before it."""
    code = """
    procs, actor = owner()
    buffers = [actor.share.call_one(True).get() for _ in range(2)]
    procs.stop().get()
    procs, actor = owner()
    buffers = [actor.share.call_one(False).get() for _ in range(2)]
    for buffer in buffers:
        buffer.drop().get()
    procs.stop().get()
    procs, actor = owner()
    buffers = [actor.share.call_one(True).get() for _ in range(2)]
    """
    run(code, prelude=PRELUDE).assert_clean()


def test_stopped_actor_counts_as_forgetting():
    code = """
    procs, actor = owner()
    buffers = [actor.share.call_one(True).get() for _ in range(2)]
    actor.stop().get()
    procs.spawn("other", Owner).share.call_one(True).get()
    procs.stop().get()
    """
    forgets_two(code)


def test_buffers_dropped_by_others_are_not_remembered():
    process = this_process()
    forgotten = Forgotten()
    data = []
    for _ in range(5000):
        buffer = RDMABuffer(memoryview(bytearray(8)))
        data.append(pickle.dumps(buffer))
        forgotten.prune(process.bulk)
        forgotten.give(buffer, buffer.__core__, 1, 8)
        del buffer
        if len(data) > 100:
            pickle.loads(data.pop(0)).drop().get()
    assert len(forgotten._forgotten) <= 1025
    for packed in data:
        pickle.loads(packed).drop().get()
    assert forgotten.warning(process.bulk) == ""


def test_warning_counts_covered_bytes_once():
    process = this_process()
    forgotten = Forgotten()
    memory = allocate((1 << 30) + 4096)
    data = []
    for part in (memory[: 1 << 30], memory[4096:]):
        assert forgotten.warning(process.bulk) == ""
        buffer = RDMABuffer(part)
        data.append(pickle.dumps(buffer))
        forgotten.give(buffer, buffer.__core__, 4096 * len(data), buffer.size())
        del buffer
    assert "1,073,745,920 bytes were held until exit by 2 RDMA buffers" in forgotten.warning(process.bulk)
    for packed in data:
        pickle.loads(packed).drop().get()
    assert forgotten.warning(process.bulk) == ""


def test_buffer_that_outlives_the_modules_is_silent():
    done = run(
        """
        class Keeping(Actor):
            @endpoint
            def share(self):
                import builtins
                # The interpreter removes this module last.
                builtins.kept = RDMABuffer(memoryview(bytearray(4096)))
                return builtins.kept

        procs = this_host().spawn_procs()
        buffer = procs.spawn("keeping", Keeping).share.call_one().get()
        procs.stop().get()
        """,
        prelude=PRELUDE,
    )
    done.assert_clean()
    assert done.out == ""
