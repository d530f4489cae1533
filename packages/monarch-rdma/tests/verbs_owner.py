"""A process that owns memory: `verbs_owner.py DESCRIPTOR DEVICE...` answers questions on a socket until it is closed."""

from __future__ import annotations

import hashlib
import mmap
import sys
from ctypes import addressof, c_char
from multiprocessing.connection import Connection

from monarch.rdma.verbs.acceptor import Acceptor, Export
from monarch.rdma.verbs.connect_record import QueueRecord
from monarch.rdma.verbs.devices import ports
from monarch.rdma.verbs.memory import Range
from monarch.rdma.verbs.pyverbs_provider import PyverbsProvider


class Owner:
    def __init__(self, devices):
        found = {port.device: port for port in ports()}
        self.rails = [PyverbsProvider().open(found[name]) for name in devices]
        self.acceptor = Acceptor(self.rails)
        self.memory = self.export = None

    def connect(self, *offers):
        answers = self.acceptor.answer("peer", [QueueRecord.unpack(offer) for offer in offers])
        return [answer and answer.pack() for answer in answers]

    def share(self, nbytes, writable):
        """Memory with a pattern, as a packed record."""
        self.memory = mmap.mmap(-1, nbytes)
        self.memory[:] = pattern(nbytes)
        self.export = Export(self.rails, Range(addressof(c_char.from_buffer(self.memory)), nbytes), writable=writable)
        return self.export.record.pack()

    def digest(self, offset, nbytes):
        return hashlib.sha256(self.memory[offset : offset + nbytes]).hexdigest()

    def drop(self):
        self.export.close()

    def close(self):
        if self.export is not None:
            self.export.close()
        self.acceptor.forget("peer")
        for rail in self.rails:
            rail.close()


def pattern(nbytes):
    # The period of the pattern divides neither packets nor slices.
    return (bytes(range(251)) * (nbytes // 251 + 1))[:nbytes]


def main(descriptor, *devices):
    pipe = Connection(int(descriptor))
    owner = Owner(devices)
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            break
        try:
            pipe.send((True, getattr(owner, name)(*arguments)))
        except (OSError, ValueError) as e:
            pipe.send((False, str(e)))
    owner.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
