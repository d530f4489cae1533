"""An owner and a reader that look at what devices do for them."""

from __future__ import annotations

import gc
import warnings
import weakref

from memory_actors import Owner, Reader, outcome

from monarch import extension
from monarch.actor import endpoint
from monarch.extension.bulk import BufferMemory
from monarch.rdma import RDMAAction, RDMABuffer, allocate
from monarch.rdma._buffers.buffer import _received
from monarch.rdma._process.process import DEVICES
from monarch.rdma._transfer.memory import Memory
from monarch.rdma._transfer.operation import READ, Step
from monarch.rdma.paths.host_memory import prepared
from monarch.rdma.verbs.fabric import fabric


class _Noticed(bytearray):
    """Can be referred to weakly."""


class VerbsOwner(Owner):
    @endpoint
    def known_to_devices(self):
        """Buffers, and processes that may reach them."""
        return fabric().owner.count()


class VerbsReader(Reader):
    @endpoint
    def fail(self):
        raise SystemExit(3)

    @endpoint
    def ready(self, buffer):
        connection = fabric().peer(buffer.__core__.parts()[2]).connection
        return connection.ready

    @endpoint
    def read_telling(self, buffer, port):
        """Reports its start."""
        got = bytearray(buffer.size())
        future = buffer.read_into(memoryview(got))
        port.send(None)
        future.get()
        return bytes(got)

    @endpoint
    def failing(self, buffer, port):
        """The same with its outcome."""
        future = buffer.read_into(memoryview(bytearray(buffer.size())))
        port.send(None)
        return outcome(future)

    @endpoint
    def warned(self, buffer):
        """The warnings of two reads."""
        got = memoryview(bytearray(buffer.size()))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            buffer.read_into(got).get()
            buffer.read_into(got).get()
        return [one.category.__name__ for one in seen]

    @endpoint
    def open_all(self, buffers):
        return {buffer.path for entry in buffers._entries.values() for buffer in entry.buffers}

    @endpoint
    def trim(self):
        """Registrations that nothing uses go."""
        gc.collect()
        for _, poller, _ in fabric().rails().ways:
            poller.wake(0.0)
        fabric().rails().registrations.trim()

    @endpoint
    def prepare(self, source, target):
        self.got, self.zeros = bytearray(source.size()), bytearray(target.size())
        self.plan = RDMAAction().read_remote(memoryview(self.got), source).write_remote(target, memoryview(self.zeros)).prepare()
        return self.plan.nbytes

    @endpoint
    def submit(self, times):
        for future in [self.plan.submit() for _ in range(times)]:
            future.get()
        return bytes(self.got)

    @endpoint
    def forget_plan(self):
        self.plan = None

    @endpoint
    def mixed(self, far):
        near = RDMABuffer(memoryview(bytearray(b"near" * 1000)))
        got, own, before = bytearray(far.size()), bytearray(4000), bytearray(8)
        action = RDMAAction().read_remote(memoryview(got), far).read_remote(memoryview(own), near)
        action.submit().get()
        RDMAAction().fetch_add(far, memoryview(before), 1).submit().get()
        return bytes(got), bytes(own), bytes(before)

    @endpoint
    def read_into_allocation(self, buffer, times):
        self.memory = allocate(buffer.size())
        for _ in range(times):
            buffer.read_into(self.memory).get()

    @endpoint
    def free(self):
        self.memory = None
        gc.collect()

    @endpoint
    def ask_owner(self, buffer, body):
        try:
            return extension.ask(buffer.__core__.parts()[2], DEVICES, body).get(timeout=20)
        except extension.RequestError:
            return None

    @endpoint
    def begin_unnamed(self, buffer):
        """A read into memory that nothing here has a name for; whether it is still there."""
        memory = _Noticed(1)
        self.noticed = weakref.ref(memory)
        memory = BufferMemory(memory)
        step = Step(buffer.__core__, READ, Memory(memory.address, 1, False, memory), 1)
        del memory
        self.cell = prepared([step], None).submit(60.0, 1 << 20, None)
        del step
        gc.collect()
        return self.noticed() is not None

    @endpoint
    def unnamed(self):
        """The same, at the end of the read."""
        self.cell.wait(0, 60)
        gc.collect()
        return self.noticed() is not None

    @endpoint
    def forged(self, buffer):
        packed = bytearray(buffer._packed())
        packed[0] ^= 1
        other = _received(bytes(packed))
        return outcome(other.read_into(memoryview(bytearray(other.size()))))[0]
