"""The near end: local memory, rails with their pollers, and a connection to an owner."""

from __future__ import annotations

import hashlib
import mmap
import queue
from ctypes import addressof, c_char

from monarch.rdma.verbs.connect_record import QueueRecord, RegionRecord
from monarch.rdma.verbs.connection import Connection, Piece
from monarch.rdma.verbs.devices import ports
from monarch.rdma.verbs.poller import Poller
from monarch.rdma.verbs.pyverbs_provider import PyverbsProvider
from monarch.rdma.verbs.registration import Allocation, Registrations, budget


class Reader:
    """`ask` is how questions get to the owner."""

    def __init__(self, ask, devices, nbytes, *, writable=True):
        self.ask = ask
        self.memory = mmap.mmap(-1, nbytes)
        self.address = addressof(c_char.from_buffer(self.memory))
        found = {port.device: port for port in ports()}
        self.rails = [PyverbsProvider().open(found[name]) for name in devices]
        self.registrations = Registrations(budget())
        self.leases = [self.registrations.acquire(rail, Allocation(self.address, nbytes, 1)) for rail in self.rails]
        self.pollers = [Poller(rail, idle=self.registrations.trim) for rail in self.rails]
        self.connection = Connection([(r, p, 1.0) for r, p in zip(self.rails, self.pollers, strict=True)], self.dial)
        self.remote = RegionRecord.unpack(ask("share", nbytes, writable))
        self.ended = queue.SimpleQueue()
        self.connection.open()

    def dial(self, offers):
        try:
            answers = self.ask("connect", *(offer.pack() for offer in offers))
        except EOFError:
            raise OSError("the owner is gone") from None
        return [None if answer is None else QueueRecord.unpack(answer) for answer in answers]

    def start(self, write, *ranges, timeout=60.0):
        keys = [lease.region.key for lease in self.leases]
        pieces = [Piece(write, self.address + at, n, keys, self.remote.address + at, self.remote.keys) for at, n in ranges]
        return self.connection.submit(pieces, timeout, self.ended.put)

    def move(self, write, *ranges, timeout=60.0):
        """A transfer from start to end."""
        transfer = self.start(write, *ranges, timeout=timeout)
        assert self.ended.get() is transfer
        return transfer

    def digest(self, offset, nbytes):
        return hashlib.sha256(self.memory[offset : offset + nbytes]).hexdigest()

    def close(self):
        self.connection.close()
        for poller in self.pollers:
            poller.close()
        for lease in self.leases:
            self.registrations.release(lease)
        self.registrations.close()
        for rail in self.rails:
            rail.close()
