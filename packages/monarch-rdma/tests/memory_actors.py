"""Actors that own memory, and that read that of others. Free of imports of the test framework, which every process would pay for."""

from __future__ import annotations

import gc
import os
import random
import threading
from functools import lru_cache

from monarch.actor import Actor, endpoint
from monarch.rdma import RDMAAction, RDMABuffer, RDMABufferSet, RDMAError, allocate
from monarch.rdma._process.process import this_process
from tools.frozen import freeze


@lru_cache(4)
def pattern(nbytes: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(nbytes)


def descriptors() -> int:
    """Of shared memory of ours: epochs, hazards, segments, rings. Others come and go on their own."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:monarch-rdma")
        except FileNotFoundError:  # the descriptor of the listing, or closed meanwhile
            continue
    return count


def stop(pid: int) -> None:
    """Returns when none of its threads runs any more: the signal alone takes its time to reach all of them."""
    freeze(pid)
    for thread in os.listdir(f"/proc/{pid}/task"):
        while True:
            with open(f"/proc/{pid}/task/{thread}/stat") as f:
                if f.read().rpartition(")")[2].split()[0] == "T":
                    break


def resident() -> int:
    """Kilobytes, without what is shared with others."""
    with open("/proc/self/smaps_rollup") as f:
        return sum(int(line.split()[1]) for line in f if line.startswith(("Private_Dirty", "Private_Clean")))


def bulk_connections() -> int:
    """Sockets that others have opened to this process's memory, and that are still open."""
    name = f"@monarch-bulk-{this_process().member.proc:016x}"
    with open("/proc/net/unix") as f:
        # The seventh word is the number of the socket; a listener has the flag of accepting sockets.
        rows = [line.split() for line in f if line.rstrip().endswith(name)]
    own: set[str] = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            own.add(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return sum(f"socket:[{row[6]}]" in own and row[3] != "00010000" for row in rows)


def outcome(future):
    """None, or the error as others can see it."""
    try:
        future.get(timeout=25)
    except RDMAError as e:
        return type(e).__name__, str(e), getattr(e, "reason", None)
    return None


class Owner(Actor):
    """Owns memory: `arena` is its kind."""

    def __init__(self, arena=False):
        self.arena = arena
        self.memories = []
        self.buffers = []

    @endpoint
    def share(self, nbytes, seed=1, **options):
        memory = allocate(nbytes) if self.arena else memoryview(bytearray(nbytes))
        memory[:] = pattern(nbytes, seed)
        self.memories.append(memory)
        self.buffers.append(RDMABuffer(memory, **options))
        return self.buffers[-1]

    @endpoint
    def share_and_forget(self, nbytes):
        memory = memoryview(bytearray(pattern(nbytes)))
        return RDMABuffer(memory)

    @endpoint
    def content(self, index=-1):
        return bytes(self.memories[index])

    @endpoint
    def word(self, index=-1):
        return int.from_bytes(self.memories[index][:8], "little")

    @endpoint
    def drop(self, index=-1):
        self.buffers[index].drop().get()

    @endpoint
    def counts(self):
        return this_process().bulk.counts()

    @endpoint
    def settled(self, wanted):
        """Returns when the counts are these: others have let go, or died, and this process was notified."""
        while this_process().bulk.counts() != wanted:
            gc.collect()
        return True

    @endpoint
    def forget(self):
        self.buffers.clear()
        self.memories.clear()

    @endpoint
    def settled_descriptors(self, wanted):
        """Returns when no other process has a connection here any more, and what they needed is closed."""
        while bulk_connections() or descriptors() != wanted:
            gc.collect()
        return True

    @endpoint
    def share_set(self, tensors, **options):
        self.tensors = {key: memoryview(bytearray(value)) for key, value in tensors.items()}
        return RDMABufferSet(self.tensors, **options)

    @endpoint
    def share_many(self, count, nbytes):
        """Handles of these are elsewhere only; what they share is not."""
        self.many = [memoryview(bytearray(nbytes)) for _ in range(count)]
        return RDMABufferSet({str(i): memory for i, memory in enumerate(self.many)})

    @endpoint
    def usage(self):
        """What must not grow: buffers, descriptors; and kilobytes."""
        gc.collect()
        return this_process().bulk.counts(), descriptors(), resident()

    @endpoint
    def tensor_content(self, key):
        return bytes(self.tensors[key])

    @endpoint
    def hold_the_gil(self, ready, until):
        """Until a byte comes; reports first that it is about to."""
        import ctypes

        library = ctypes.PyDLL(None)  # unlike CDLL, it keeps the GIL
        taken = ctypes.create_string_buffer(1)
        wait, tell = os.open(until, os.O_RDWR), os.open(ready, os.O_RDWR)
        try:
            library.write(tell, b"x", 1)
            library.read(wait, taken, 1)
        finally:
            os.close(wait)
            os.close(tell)

    @endpoint
    def pid(self):
        return os.getpid()


class Reader(Actor):
    """Reads, and writes, memory of others."""

    def __init__(self, seccomp=False):
        if seccomp:
            from seccomp import refuse_direct_copies

            refuse_direct_copies()
        self.kept = {}

    @endpoint
    def path(self, buffer):
        return buffer.path

    @endpoint
    def read(self, buffer, nbytes=None, offset=0, timeout=60):
        got = bytearray(b"\xee" * (buffer.size() if nbytes is None else nbytes))
        buffer.read_into(memoryview(got), offset=offset, timeout=timeout).get()
        return bytes(got)

    @endpoint
    def write(self, buffer, data, offset=0):
        buffer.write_from(memoryview(data), offset=offset).get()

    @endpoint
    def keep(self, buffer):
        """And open it, so that later uses find it known."""
        self.kept["buffer"] = buffer
        return buffer.path

    @endpoint
    def read_kept(self, timeout=60):
        buffer = self.kept["buffer"]
        return outcome(buffer.read_into(memoryview(bytearray(buffer.size())), timeout=timeout))

    @endpoint
    def read_outcome(self, buffer, timeout=60):
        return outcome(buffer.read_into(memoryview(bytearray(buffer.size())), timeout=timeout))

    @endpoint
    def read_until_it_fails(self, buffer, port):
        """Reports when the first read is done, and goes on until one fails."""
        memory = memoryview(bytearray(buffer.size()))
        failed, reads = None, 0
        while failed is None:
            failed = outcome(buffer.read_into(memory))
            reads += 1
            if reads == 1:
                port.send(failed)
        return failed

    @endpoint
    def many(self, buffer, threads, times):
        """Several threads read at the same time; True if all of them saw the same."""
        seen = []

        def run():
            memory = bytearray(buffer.size())
            for _ in range(times):
                buffer.read_into(memoryview(memory)).get()
            seen.append(bytes(memory))

        running = [threading.Thread(target=run) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return len(seen) == threads and set(seen) == {seen[0]} and seen[0]

    @endpoint
    def batch(self, buffers, data):
        """Reads the first, writes to the second, both twice."""
        got = bytearray(buffers[0].size())
        action = RDMAAction().read_remote(memoryview(got), buffers[0]).write_remote(buffers[1], memoryview(data))
        plan = action.prepare()
        for future in [plan.submit(), action.submit(), plan.submit(), action.submit()]:
            future.get()
        return bytes(got), plan.nbytes, plan.ops

    @endpoint
    def add(self, buffer, values):
        before = bytearray(8)
        seen = []
        for value in values:
            RDMAAction().fetch_add(buffer, memoryview(before), value).submit().get()
            seen.append(int.from_bytes(before, "little"))
        return seen

    @endpoint
    def add_and_read(self, buffer, other):
        """Starts additions to a buffer whose owner does not answer, and reads another one meanwhile; `added` waits for the additions."""
        self.kept["added"] = [RDMAAction().fetch_add(buffer, memoryview(bytearray(8)), 1).submit() for _ in range(20)]
        return outcome(other.read_into(memoryview(bytearray(other.size()))))

    @endpoint
    def added(self):
        return [outcome(future) for future in self.kept["added"]]

    @endpoint
    def swap(self, buffer, compare, swap):
        before = bytearray(8)
        RDMAAction().compare_and_swap(buffer, memoryview(before), compare, swap).submit().get()
        return int.from_bytes(before, "little")

    @endpoint
    def notify(self, buffer, data, port, value):
        action = RDMAAction().write_remote(buffer, memoryview(data))
        return outcome(action.submit(notify=(port, value)))

    @endpoint
    def map(self, buffer):
        self.kept["map"] = buffer.map()
        view = self.kept["map"]
        return bytes(view), view.readonly

    @endpoint
    def mapped(self, write=b""):
        self.kept["map"][: len(write)] = write
        return bytes(self.kept["map"])

    @endpoint
    def unmap(self):
        self.kept.clear()

    @endpoint
    def restrict(self, buffer, **options):
        return buffer.restrict(**options)

    @endpoint
    def parts_that_end_at_once(self, buffer, times):
        """What reads a part, and drops it, leaves nothing in the way of the next."""
        seen = set()
        for i in range(times):
            with buffer.restrict(offset=i, length=100) as part:
                got = bytearray(100)
                part.read_into(memoryview(got)).get()
            seen.add((i, bytes(got)))
        return seen

    @endpoint
    def parts_without_a_name(self, buffer, times):
        """Only the transfer holds the handle."""
        word, memory = memoryview(bytearray(8)), memoryview(bytearray(buffer.size()))
        for _ in range(times):
            buffer.restrict(length=8).read_into(word).get()
            buffer.restrict().read_into(memory).get()
            RDMAAction().read_remote(word, buffer.restrict(length=8)).submit().get()
            RDMAAction().read_remote(memory, buffer.restrict()).prepare().submit().get()
        return bytes(word), bytes(memory)

    @endpoint
    def drop(self, buffer):
        buffer.drop().get()
        return outcome(buffer.read_into(memoryview(bytearray(buffer.size()))))

    @endpoint
    def read_set(self, buffers, sizes):
        local = {key: memoryview(bytearray(size)) for key, size in sizes.items()}
        plan = buffers.plan_read(local)
        plan.submit().get()
        buffers.read_into(local).get()
        return {key: bytes(value) for key, value in local.items()}, plan.nbytes

    @endpoint
    def read_many(self, buffers, nbytes):
        """Reads each by itself, and one in ten in part; then ends all of them."""
        memory = memoryview(bytearray(nbytes))
        for i, entry in enumerate(buffers._entries.values()):
            buffer = entry.buffers[0]
            buffer.read_into(memory).get()
            if i % 10 == 0:
                buffer.restrict(length=8).read_into(memory).get()
        buffers.drop().get()

    @endpoint
    def usage(self):
        gc.collect()
        return this_process().bulk.counts(), descriptors(), resident()

    @endpoint
    def write_set(self, buffers, tensors):
        buffers.write_from({key: memoryview(value) for key, value in tensors.items()}).get()

    @endpoint
    def raising(self, name, buffer, *args, **options):
        """What a call raises, before there is a future; bytes stand for memory."""
        args = [memoryview(bytearray(arg)) if isinstance(arg, bytes) else arg for arg in args]
        try:
            getattr(buffer, name)(*args, **options)
        except Exception as e:
            return type(e).__name__, str(e)
        return None

    @endpoint
    def read_async(self, buffer):
        import asyncio

        got = bytearray(buffer.size())

        async def read():
            async with buffer.restrict() as part:
                await part.read_into(memoryview(got))

        asyncio.run(read())
        return bytes(got)

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def refuse_direct_copies(self):
        from seccomp import refuse_direct_copies

        refuse_direct_copies()
