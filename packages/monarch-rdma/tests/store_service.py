"""A service that has memory, and its declaration as a wheel would have it."""

from __future__ import annotations

import os

from monarch._core.config import entry_points
from monarch.actor import Actor, endpoint
from monarch.extension import Service
from monarch.rdma import RDMABuffer


class Store(Actor):
    """Of `size` bytes of the same value. Procs run it too."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(os.urandom(1) * size)
        self.buffer = RDMABuffer(memoryview(self.data))

    @endpoint
    def share(self) -> RDMABuffer:
        return self.buffer

    @endpoint
    def fetch(self, buffer: RDMABuffer) -> tuple[bytes, str]:
        """What it reads, and by which path."""
        copy = bytearray(buffer.size())
        buffer.read_into(memoryview(copy)).get(timeout=20)
        return bytes(copy), buffer.path

    @endpoint
    def put(self, buffer: RDMABuffer, value: int) -> None:
        buffer.write_from(memoryview(bytearray([value]) * buffer.size())).get(timeout=20)

    @endpoint
    def content(self) -> bytes:
        return bytes(self.data)

    @endpoint
    def pass_on(self, other: object, buffer: RDMABuffer) -> tuple[bytes, str]:
        """Has another one read, with a handle that this one was given."""
        return other.fetch.call_one(buffer).get(timeout=20)  # type: ignore


def declare(name: str, shared: bool) -> str:
    value = Service(Store, shared=shared, arguments={"size": 100_000})
    entry_points._known[("monarch.service", name)] = entry_points.LoadedEntry("monarch.service", name, "wheel 1.0", "wheel:x", value)
    return name
