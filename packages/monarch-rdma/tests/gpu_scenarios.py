"""What holds for memory of GPUs: each function is a script, `python -c "from gpu_scenarios import NAME; NAME()"`.

They run with torch and a GPU where there is one (tests/gpu), and with what stands for both elsewhere (tests/process).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import warnings
from pathlib import Path

# The helpers of core's tests, for scripts as for pytest.
sys.path.append(str(Path(__file__).parents[2] / "monarch-core" / "tests" / "process"))

from eventually import eventually
from gpu_actors import Both, Owner, Reader, content, tensor, zeros
from memory_actors import pattern

import monarch.actor
from monarch.actor import Channel, this_host
from monarch.rdma import RDMABuffer, RDMATcpFallbackWarning, probe

# One byte, less than a pinned piece, and more than two.
SIZES = (1, 5000, (9 << 20) + 1)


def pair(owner=None, reader=None):
    owners, readers = this_host().spawn_procs(name="owner"), this_host().spawn_procs(name="reader")
    return owners.spawn("owner", Owner, **(owner or {})), readers.spawn("reader", Reader, **(reader or {}))


def every_pair_of_ends():
    owner, reader = pair()
    for nbytes in SIZES:
        for there, here in (("cuda:0", "cuda:0"), ("cuda:0", "host"), ("host", "cuda:0")):
            buffer = owner.share.call_one(nbytes, seed=nbytes, device=there).get()
            assert reader.read.call_one(buffer, here).get() == pattern(nbytes, nbytes), (nbytes, there, here)
            assert (reader.path.call_one(buffer).get() == "cuda-ipc") == (there != "host")
            data = pattern(nbytes // 2 + 1, 7)
            reader.write.call_one(buffer, data, here, offset=nbytes - len(data)).get()
            expected = pattern(nbytes, nbytes)[: nbytes - len(data)] + data
            assert owner.content.call_one().get() == expected
            assert reader.read.call_one(buffer, here, offset=nbytes // 2).get()[: nbytes - nbytes // 2] == expected[nbytes // 2 :]
            owner.drop.call_one().get()


def own_memory():
    owner, _ = pair()
    for nbytes in SIZES:
        for there, here in (("cuda:0", "cuda:0"), ("cuda:0", "host"), ("host", "cuda:0")):
            owner.share.call_one(nbytes, device=there).get()
            assert owner.read_own.call_one(here).get() == ("local", pattern(nbytes))
    buffer = RDMABuffer(tensor(b"mine"))
    again = pickle.loads(pickle.dumps(buffer))
    again.write_from(memoryview(b"ours")).get()
    got = zeros(4)
    buffer.read_into(got).get()
    assert content(got) == b"ours" and again.path == "local"


def handles():
    owner, reader = pair()
    nbytes = 100_000
    buffer = owner.share.call_one(nbytes).get()
    assert len(pickle.dumps(buffer)) <= 200
    assert buffer.size() == nbytes and not buffer.readonly
    cuts = [(0, 1), (5, 100), (nbytes - 7, 7)]
    assert reader.parts.call_one(buffer, cuts).get() == [pattern(nbytes)[start : start + length] for start, length in cuts]
    # A part of a part is passed on.
    part = buffer.restrict(offset=1000, length=500, readonly=False).restrict(offset=100, length=50, readonly=False)
    assert reader.read.call_one(part).get() == pattern(nbytes)[1100:1150]
    reader.write.call_one(part, b"part", offset=10).get()
    assert owner.content.call_one().get()[1110:1114] == b"part"
    frozen = buffer.restrict()
    assert reader.raising.call_one("write", frozen).get()[0] == "RDMAAccessError"
    kind, text = reader.raising.call_one("map", buffer).get()
    assert kind == "RDMAUnsupportedError" and "memory of a GPU cannot be mapped" in text, text
    for what in ("add", "add into a GPU"):
        assert reader.raising.call_one(what, buffer).get()[0] == "RDMAUnsupportedError"
    kind, text, _ = reader.read_outcome.call_one(buffer, timeout=0).get()
    assert kind == "RDMATimeoutError" and f"0 of {nbytes:,} bytes" in text, text
    owner.drop.call_one().get()
    for gone in (buffer, part):
        kind, text, _ = reader.read_outcome.call_one(gone).get()
        assert kind == "RDMAReleasedError" and "dropped by its owner" in text, text


def the_owner_keeps_what_is_shared():
    owner, reader = pair()
    buffers = [owner.share.call_one(3000, seed=i).get() for i in range(20)]
    reader.keep.call_one(buffers).get()
    owner.forget_the_tensor.call_one().get()
    assert reader.read_kept.call_one().get() == [pattern(3000, i) for i in range(20)]
    # They belong to one allocation, which is opened once, and closed with the last handle.
    assert reader.settled_imports.call_one(1).get()
    for i in range(20):
        owner.drop.call_one(i).get()
    assert reader.read_outcome.call_one(buffers[0]).get()[0] == "RDMAReleasedError"
    reader.forget.call_one().get()
    del buffers
    assert reader.settled_imports.call_one(0).get()
    eventually("no allocation is open", lambda: owner.counts.call_one().get(), lambda counts: counts == (0, 0))
    # The same reader does it once more.
    buffer = owner.share.call_one(3000, seed=5).get()
    assert reader.read.call_one(buffer).get() == pattern(3000, 5)


def batches_and_sets():
    owner, reader = pair()
    buffers = [owner.share.call_one(5000 + i, seed=i, device=device).get() for i, device in enumerate(("cuda:0", "cuda:0", "host"))]
    sending, receiving = Channel.open()
    data = pattern(3000, 9)
    assert reader.batch.call_one(buffers, data, sending, "done").get() == (None, pattern(5000, 0), pattern(5001, 1))
    assert receiving.recv().get() == "done"
    assert owner.content.call_one().get()[:3000] == data
    owner.drop.call_one(1).get()
    assert reader.batch.call_one([buffers[0], buffers[0], buffers[2]], data, sending, "again").get()[0] is None
    assert receiving.recv().get() == "again"
    sizes = {f"layer{i}": 1000 + i for i in range(30)}
    made = owner.share_set.call_one(sizes).get()
    expected = {key: bytes(n) if i % 3 == 2 else pattern(n, i) for i, (key, n) in enumerate(sizes.items())}
    for device in ("cuda:0", "cpu"):
        assert {key: bytes(value) for key, value in reader.read_set.call_one(made, device).get().items()} == expected
    made.drop().get()


def killed_owner():
    monarch.actor.unhandled_fault_hook = lambda failure: None
    owner, reader = pair()
    buffer = owner.share.call_one(8 << 20).get()
    pid = owner.pid.call_one().get()
    sending, receiving = Channel.open()
    reading = reader.read_until_it_fails.call_one(buffer, sending)
    assert receiving.recv().get() is None
    os.kill(pid, signal.SIGKILL)
    kind, text, _ = reading.get()
    assert kind == "RDMAPeerLostError" and "path" in text, (kind, text)
    assert reader.path_error.call_one(buffer).get()[0] == "RDMAPeerLostError"


def killed_reader():
    monarch.actor.unhandled_fault_hook = lambda failure: None
    readers = this_host().spawn_procs(name="mortal")
    owner, _ = pair()
    buffer = owner.share.call_one(1000).get()
    reader = readers.spawn("reader", Reader)
    reader.keep.call_one([buffer]).get()
    pid = readers.spawn("who", Owner).pid.call_one().get()
    owner.drop.call_one().get()
    assert owner.counts.call_one().get() == (0, 1)
    os.kill(pid, signal.SIGKILL)
    eventually("no allocation is open", lambda: owner.counts.call_one().get(), lambda counts: counts == (0, 0))


def probed():
    row = next(row for row in probe() if row.name == "cuda-ipc")
    assert row.usable and row.rails >= 1 and not row.reason, row


def expandable_segments():
    """The setting of torch, and what stands for it."""
    owner, reader = pair(owner={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "MONARCH_FAKE_NO_EXPORT": "1"})
    # The memory has more than one piece of the allocator.
    nbytes = (33 << 20) + 5
    buffer = owner.share.call_one(nbytes).get()
    assert reader.path.call_one(buffer).get() == "cuda-ipc+staged"
    assert reader.read.call_one(buffer, "cuda:0").get() == pattern(nbytes)
    assert "expandable_segments:False" in owner.warned.call_one().get()[0]


def another_host():
    """The owner's Python copies between its GPU and memory of the other host, whichever process owns that."""
    from other_hosts import other_hosts

    monarch.actor.unhandled_fault_hook = lambda failure: None
    with other_hosts() as far, warnings.catch_warnings():
        warnings.simplefilter("ignore", RDMATcpFallbackWarning)
        owners, readers = far.spawn_procs(name="owner"), this_host().spawn_procs(name="reader")
        owner, reader = owners.spawn("owner", Owner), readers.spawn("reader", Reader)
        for nbytes in SIZES:
            for there, here in (("cuda:0", "cuda:0"), ("cuda:0", "host"), ("host", "cuda:0")):
                buffer = owner.share.call_one(nbytes, seed=nbytes, device=there).get()
                assert reader.path.call_one(buffer).get() == ("tcp" if there == "host" else "tcp+staged")
                assert reader.read.call_one(buffer, here).get() == pattern(nbytes, nbytes), (nbytes, there, here)
                reader.write.call_one(buffer, b"!", here, offset=nbytes - 1).get()
                assert owner.content.call_one().get() == pattern(nbytes, nbytes)[:-1] + b"!"
        # The client is the reader, and no process can dial it.
        buffer = owner.share.call_one(nbytes).get()
        got = memoryview(bytearray(nbytes))
        buffer.read_into(got).get()
        assert bytes(got) == pattern(nbytes)
        owner.drop.call_one().get()
        kind, text, _ = reader.read_outcome.call_one(buffer).get()
        assert kind == "RDMAReleasedError" and "dropped by its owner" in text, text
        buffer = owner.share.call_one(nbytes).get()
        assert reader.path.call_one(buffer).get() == "tcp+staged"
        os.kill(owner.pid.call_one().get(), signal.SIGKILL)
        assert reader.read_outcome.call_one(buffer).get()[0] == "RDMAPeerLostError"


@contextlib.contextmanager
def _between_hosts(path, owner=None, reader=None, **devices):
    """Reads and writes between a GPU of one host and both kinds of memory of another, by devices in name only."""
    from other_hosts import other_hosts
    from process_fabric import process_fabric

    monarch.actor.unhandled_fault_hook = lambda failure: None
    with contextlib.ExitStack() as stack:
        fabric = stack.enter_context(process_fabric())
        for what, device in devices.items():
            fabric.begin(what, device)
        far, near = (stack.enter_context(other_hosts(**fabric.devices(name))) for name in ("far", "near"))
        owners, readers = far.spawn_procs(name="owner"), near.spawn_procs(name="reader")
        the_owner, the_reader = owners.spawn("owner", Owner, **(owner or {})), readers.spawn("reader", Reader, **(reader or {}))
        for nbytes in SIZES:
            buffer = the_owner.share.call_one(nbytes, seed=nbytes).get()
            assert the_reader.path.call_one(buffer).get() == path
            for here in ("cuda:0", "host"):
                assert the_reader.read.call_one(buffer, here).get() == pattern(nbytes, nbytes), (nbytes, here)
                the_reader.write.call_one(buffer, b"!", here, offset=nbytes - 1).get()
                assert the_owner.content.call_one().get() == pattern(nbytes, nbytes)[:-1] + b"!"
                the_reader.write.call_one(buffer, pattern(nbytes, nbytes), here).get()
        part = buffer.restrict(offset=1000, length=100)
        assert the_reader.read.call_one(part).get() == pattern(nbytes, nbytes)[1000:1100]
        assert the_reader.raising.call_one("write", part).get()[0] == "RDMAAccessError"
        buffers = [the_owner.share.call_one(5000 + i, seed=i, device=device).get() for i, device in enumerate(("cuda:0", "cuda:0", "host"))]
        sending, receiving = Channel.open()
        data = pattern(3000, 9)
        assert the_reader.batch.call_one(buffers, data, sending, "done").get() == (None, pattern(5000, 0), pattern(5001, 1))
        assert receiving.recv().get() == "done"
        assert the_owner.content.call_one().get()[:3000] == data
        yield the_owner, the_reader


def devices_between_hosts():
    with _between_hosts("verbs:near") as (owner, reader):
        buffer = owner.share.call_one(100_000).get()
        assert reader.read.call_one(buffer).get() == pattern(100_000)
        owner.drop.call_one().get()
        kind, text, _ = reader.read_outcome.call_one(buffer).get()
        assert kind == "RDMAReleasedError" and "dropped by its owner" in text, text


def devices_that_cannot_reach_the_owners_gpu():
    with _between_hosts("tcp+staged", owner={"MONARCH_FAKE_NO_DMA": "1"}):
        pass


def devices_that_cannot_reach_the_readers_gpu():
    with _between_hosts("verbs:near", nodma="near"):
        pass


# Only the stand-in for a driver can be made to do this.


def two_devices_that_are_seen_in_another_order():
    # The reader's first device is the owner's second.
    owner, reader = pair(reader={"MONARCH_FAKE_FIRST": "1"})
    buffer = owner.share.call_one(70_000, device="cuda:1").get()
    assert reader.read.call_one(buffer).get() == pattern(70_000)
    assert reader.path.call_one(buffer).get() == "cuda-ipc"
    unseen = owner.share.call_one(70_000, device="cuda:0").get()
    kind, text = reader.path_error.call_one(unseen).get()
    assert kind == "RDMAUnsupportedError" and "is not visible to this process" in text, text
    assert reader.read_outcome.call_one(unseen).get()[0] == "RDMAUnsupportedError"


def memory_that_is_not_exported():
    """The owner copies, when it is asked; its Python takes part."""
    not_exported = {"MONARCH_FAKE_NO_EXPORT": "1"}
    owner, reader = pair(owner=not_exported)
    for nbytes in SIZES:
        buffer = owner.share.call_one(nbytes, seed=nbytes).get()
        assert reader.path.call_one(buffer).get() == "cuda-ipc+staged"
        for here in ("cuda:0", "host"):
            assert reader.read.call_one(buffer, here).get() == pattern(nbytes, nbytes)
            reader.write.call_one(buffer, b"!", here, offset=nbytes - 1).get()
            assert owner.content.call_one().get() == pattern(nbytes, nbytes)[:-1] + b"!"
            reader.write.call_one(buffer, pattern(nbytes, nbytes), here).get()
    assert owner.read_own.call_one("cuda:0").get() == ("local", pattern(SIZES[-1], SIZES[-1]))
    (warned,) = owner.warned.call_one().get()
    called = {"NVIDIA": "cuIpcGetMemHandle: CUDA_ERROR_INVALID_VALUE (1)", "AMD": "hipIpcGetMemHandle: hipErrorInvalidValue (1)"}
    assert called[os.environ["MONARCH_FAKE_MAKER"]] in warned and "expandable_segments:False" in warned
    part = buffer.restrict(offset=1000, length=100, readonly=False)
    assert reader.read.call_one(part).get() == pattern(SIZES[-1], SIZES[-1])[1000:1100]
    reader.write.call_one(part, b"part", "host", offset=50).get()
    assert owner.content.call_one().get()[1050:1054] == b"part"
    # These handles claim to be writable, or longer than they are.
    frozen = owner.share.call_one(5000, readonly=True).get()
    frozen._readonly = frozen.__core__.readonly = False
    failed = reader.write_outcome.call_one(frozen, b"x").get()
    assert failed is not None and owner.content.call_one().get() == pattern(5000), failed
    longer = owner.share.call_one(5000).get()
    longer._size = longer.__core__.nbytes = 5001
    kind, text, _ = reader.read_outcome.call_one(longer).get()
    assert kind == "RDMAUnsupportedError" and "bytes to 5,001 of a tensor of 5,000" in text, text
    owner.drop.call_one().get()
    longer._size = longer.__core__.nbytes = 5000
    kind, text, _ = reader.read_outcome.call_one(longer).get()
    assert kind == "RDMAReleasedError" and "dropped by its owner" in text, text
    monarch.actor.unhandled_fault_hook = lambda failure: None
    os.kill(owner.pid.call_one().get(), signal.SIGKILL)
    assert reader.read_outcome.call_one(buffer).get()[0] == "RDMAPeerLostError"


def two_that_copy_for_each_other():
    variables = {"MONARCH_FAKE_NO_EXPORT": "1"}
    sides = [this_host().spawn_procs(name=name).spawn(name, Both, **variables) for name in ("one", "other")]
    nbytes = (9 << 20) + 1
    buffers = [side.share.call_one(nbytes, seed=i).get() for i, side in enumerate(sides)]
    reading = [side.read_often.call_one(buffer, 10) for side, buffer in zip(sides, buffers[::-1], strict=True)]
    assert [future.get() for future in reading] == [pattern(nbytes, 1), pattern(nbytes, 0)]
