"""Handles: their size on the wire, where they are valid, and when a buffer ends."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import subprocess
import sys
import threading

import pytest

from monarch.config import configured
from monarch.rdma import (
    RDMAAccessError,
    RDMAAction,
    RDMABuffer,
    RDMABufferSet,
    RDMAReleasedError,
    RDMATimeoutError,
    RDMAUnsupportedError,
)
from monarch.rdma._process.capability import CapabilityRecord
from monarch.rdma._process.process import this_process


def memory(nbytes: int = 100) -> memoryview:
    return memoryview(bytearray(nbytes))


def live() -> int:
    gc.collect()
    return this_process().bulk.counts()[0]


def test_pickled_handle_is_small():
    buffer = RDMABuffer(memory())
    data = pickle.dumps(buffer)
    assert len(data) <= 200
    again = pickle.loads(data)
    assert (again.size(), again.readonly, again.owner, again.backend) == (100, False, buffer.owner, "tcp")
    assert again.path == "local"
    assert repr(again) == f"<RDMABuffer of 100 bytes, process {os.getpid()} on {os.uname().nodename}>"
    buffer.drop().get()


def test_handle_travels_as_bytes():
    source = memoryview(bytearray(b"weights" * 10))
    buffer = RDMABuffer(source)
    packed = buffer.to_bytes()
    assert len(packed) <= 150
    again, copy = RDMABuffer.from_bytes(packed), bytearray(70)
    again.read_into(memoryview(copy)).get()
    assert copy == source
    for damaged in (b"", packed[:-20], b"handle", packed + b"\xff"):
        with pytest.raises(RDMAAccessError, match="malformed handle|of another job"):
            RDMABuffer.from_bytes(damaged)
    with pytest.raises(RDMAAccessError, match="str, not bytes"):
        RDMABuffer.from_bytes("handle")
    buffer.drop().get()


def test_handle_of_another_job_is_refused():
    data = pickle.dumps(RDMABuffer(memory()))
    code = """
import pickle, sys
from monarch.rdma import RDMAAccessError
try:
    pickle.loads(bytes.fromhex(sys.argv[1]))
except RDMAAccessError as e:
    print(e)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, data.hex()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "is of another job" in done.stdout


def test_forged_handles():
    from monarch.rdma._buffers.buffer import _received

    buffer = RDMABuffer(memory(), readonly=True)
    packed = buffer._packed()
    flipped = bytes([packed[0] ^ 1]) + packed[1:]
    with pytest.raises(RDMAReleasedError, match="no such buffer"):
        _received(flipped).read_into(memory()).get()
    # The handle claims that it may write.
    writable = packed[:40] + b"\0" + packed[41:]
    assert not _received(writable).readonly
    with pytest.raises(RDMAAccessError):
        _received(writable).write_from(memory()).get()
    longer = packed[:32] + (1 << 40).to_bytes(8, "little") + packed[40:]
    with pytest.raises(RDMAAccessError):
        _received(longer).read_into(memory(10), offset=(1 << 40) - 10).get()


def test_handle_of_an_unreachable_host_is_refused():
    buffer = RDMABuffer(memory())
    away = pickle.loads(pickle.dumps(buffer))
    away._record = CapabilityRecord(b"elsewhere")
    with configured(rdma_allow_tcp_fallback=False):
        for call in (lambda: away.path, lambda: away.read_into(memory()), away.map):
            with pytest.raises(RDMAUnsupportedError, match="`rdma_allow_tcp_fallback` is False"):
                call()


def test_unpickled_handle_ends_its_buffer():
    before = live()
    buffer = RDMABuffer(memory())
    part = buffer.restrict(length=10)
    assert live() == before + 2
    del buffer
    part.read_into(memory()).get()
    assert live() == before + 2
    del part
    assert live() == before


def test_pickled_handle_keeps_its_buffer():
    before = live()
    data = pickle.dumps(RDMABuffer(memory()))
    assert live() == before + 1
    pickle.loads(data).read_into(memory()).get()
    assert live() == before + 1
    pickle.loads(data).drop().get()
    assert live() == before
    # A part that was pickled keeps the whole.
    data = pickle.dumps(RDMABuffer(memory()).restrict(length=10))
    pickle.loads(data).read_into(memory()).get()
    assert live() == before + 2


def test_buffer_ends_with_its_context():
    before = live()
    with RDMABuffer(memory(), readonly=True) as buffer:
        assert live() == before + 1
    assert live() == before
    with pytest.raises(RDMAReleasedError, match="read of 100 bytes, process .* on .*: dropped by its owner"):
        buffer.read_into(memory()).get()

    async def run() -> None:
        async with RDMABuffer(memory()) as buffer:
            await buffer.read_into(memory())
            assert live() == before + 1

    asyncio.run(run())
    assert live() == before


def test_drop_twice_from_anywhere():
    buffer = RDMABuffer(memory())
    other = pickle.loads(pickle.dumps(buffer))
    other.drop().get()
    buffer.drop().get()
    buffer.drop().get()
    with pytest.raises(RDMAReleasedError, match="dropped by"):
        buffer.read_into(memory()).get()
    with pytest.raises(RDMAReleasedError):
        pickle.loads(pickle.dumps(buffer)).write_from(memory()).get()


def test_zero_timeout_moves_no_bytes():
    buffer = RDMABuffer(memory())
    with pytest.raises(RDMATimeoutError, match="0 of 100 bytes") as caught:
        buffer.read_into(memory(), timeout=0).get()
    assert (caught.value.done, caught.value.asked, caught.value.phase) == (0, 100, "opening")
    assert isinstance(caught.value, TimeoutError)


def test_timeout_of_get_cancels_no_copy():
    nbytes = 64 << 20
    source = memoryview(bytearray(b"x" * nbytes))
    got = bytearray(nbytes)
    with RDMABuffer(source) as buffer:
        future = buffer.read_into(memoryview(got))
        try:
            future.get(timeout=0)
        except TimeoutError:
            pass
        future.get()
        assert got == source


def test_empty_action_does_nothing():
    RDMAAction().submit().get()
    plan = RDMAAction().prepare()
    plan.submit().get()
    assert (plan.ops, plan.nbytes) == (0, 0)


def test_thousands_of_operations():
    source = memoryview(bytearray(range(250)) * 40)
    got = memory(10_000)
    with RDMABuffer(source) as buffer:
        parts = [buffer.restrict(offset=i, length=10) for i in range(0, 10_000, 10)]
        action = RDMAAction()
        for _ in range(10):
            for i, part in enumerate(parts):
                action.read_remote(got[i * 10 : i * 10 + 10], part)
        action.submit().get()
        assert got == source


def test_threads_that_add():
    word = memory(8)
    with RDMABuffer(word) as buffer:

        def run() -> None:
            action = RDMAAction().fetch_add(buffer, memory(8), 1)
            for _ in range(200):
                action.submit().get()

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert int.from_bytes(word, "little") == 800


def test_sets_of_tensors():
    torch = pytest.importorskip("torch")
    whole = torch.arange(24, dtype=torch.float32)
    tensors = {
        "matrix": whole.view(4, 6),
        "columns": torch.arange(40, dtype=torch.int64).view(8, 5)[:, 1:3],
        "turned": torch.arange(6).view(2, 3).t(),
        "scalar": torch.tensor(3.5),
    }
    made = RDMABufferSet(tensors)
    assert made.spec("columns") == ("int64", (8, 2))
    for contiguous in (True, False):
        got = {key: torch.zeros_like(value) for key, value in tensors.items()}
        if not contiguous:
            got["columns"] = torch.zeros(2, 8, dtype=torch.int64).t()
        made.read_into(got).get()
        assert all(torch.equal(got[key], tensors[key]) for key in tensors)
    with pytest.raises(ValueError, match="'matrix' is float32 of shape"):
        made.read_into({"matrix": torch.zeros(6, 4)})
    with pytest.raises(ValueError, match="2,000 pieces"):
        RDMABufferSet({"x": torch.zeros(2000, 2)[:, :1]})
    with pytest.raises(ValueError, match="1-D contiguous tensor, got one of shape"):
        RDMABuffer(whole.view(4, 6))
    with RDMABuffer(whole) as buffer:
        got = torch.zeros(24)
        buffer.read_into(got).get()
        assert torch.equal(got, whole)


def test_forked_process_is_refused():
    buffer = RDMABuffer(memory())
    read, write = os.pipe()
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the warning of a fork with threads
        pid = os.fork()
    if pid == 0:
        try:
            buffer.read_into(memory())
        except RuntimeError as e:
            os.write(write, str(e).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with open(read) as f:
        assert "was forked from process" in f.read()
    buffer.read_into(memory()).get()


def test_processes_of_a_universe_share_no_memory():
    from monarch.actor.testing import Universe

    with Universe(), pytest.raises(RDMAUnsupportedError, match="buffers are for real processes"):
        RDMABuffer(memory())
    with RDMABuffer(memory()) as buffer:
        buffer.read_into(memory()).get()


def test_set_is_dropped_as_a_whole():
    before = live()
    made = RDMABufferSet({str(i): memory() for i in range(20)})
    other = pickle.loads(pickle.dumps(made))
    assert live() == before + 20
    other.drop().get()
    made.drop().get()
    assert live() == before
    with pytest.raises(RDMAReleasedError):
        made.read_into({"3": memory()}).get()
    frozen = RDMABufferSet({"x": memory()}, readonly=True)
    with pytest.raises(RDMAAccessError, match="the set is read-only"):
        frozen.write_from({"x": memory()})
    with pytest.raises(RDMAAccessError):
        pickle.loads(pickle.dumps(frozen)).drop()
    frozen.drop().get()
    assert live() == before
