"""Memory of a host that the bridge of a gather mount reads by itself (`monarch.rdma`), in the place of bytes in answers.

The bridge names the slot of each large read, and names it again only when it has read it, so no slot is overwritten meanwhile. The memory
is made with the first use and stays registered: to register memory for each read would cost as much as it saves. Measured with a file of
64 MiB between two processes of a busy machine, in pieces of 128 KiB, 1 MiB and 4 MiB: answers 353, 516 and 242 MB/s, slots 392, 1900 and
2017 MB/s, memory that is registered for each read 237, 898 and 1159 MB/s. Small reads are therefore answered with their bytes.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from monarch.actor import MonarchError
from monarch.extension import when_done
from monarch.fs._gather.file_server import LARGEST_READ

if TYPE_CHECKING:
    from monarch.rdma import RDMABuffer

# Slots of one subscription, each with the size of the largest read.
SLOTS = 4
# The fewest bytes of a read that uses a slot.
SMALLEST = 512 << 10
# Seconds that a bridge waits for the bytes before it requests them in an answer.
_READ_SECONDS = 3.0


class Slots:
    """The slots of one subscription, on its host; thread safe for different slots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[int, tuple[memoryview, RDMABuffer, bytes]] = {}
        self._closed = False

    def put(self, slot: int, data: bytes) -> bytes | None:
        """The handle of the slot that ends with these bytes now; None where they have to be sent."""
        if not 0 <= slot < SLOTS or len(data) < SMALLEST:
            return None
        with self._lock:
            try:
                made = None if self._closed else self._made.get(slot) or self._make(slot)
            except (MonarchError, RuntimeError, OSError, MemoryError):
                # No path is allowed, or the process is ending.
                self._closed, made = True, None
        if made is None:
            return None
        made[0][LARGEST_READ - len(data) :] = data
        return made[2]

    def _make(self, slot: int) -> tuple[memoryview, RDMABuffer, bytes]:
        from monarch.rdma import RDMABuffer, allocate

        memory = allocate(LARGEST_READ)
        buffer = RDMABuffer(memory, readonly=True)
        self._made[slot] = memory, buffer, buffer.to_bytes()
        return self._made[slot]

    def close(self) -> None:
        """Ends all handles."""
        with self._lock:
            self._closed = True
            made, self._made = self._made, {}
        for _, buffer, _ in made.values():
            try:
                buffer.drop()
            except (MonarchError, RuntimeError, OSError):
                # The process is ending.
                return


def read_slot(handle: bytes, size: object, then: Callable[[memoryview | None], object]) -> None:
    """Reads the last bytes of a slot, on the side of the bridge; `then` gets None on any thread where they cannot be read.

    A buffer is read to its end, so no handle of a part is asked for: the bridge would wait for the host, and with it all other hosts.
    """
    from monarch.rdma import RDMABuffer

    # In the process of the service: bytes travel by streams if there is no device, and no user has chosen buffers.
    warnings.filterwarnings("ignore", "no RDMA device is used")
    if not isinstance(size, int) or not 0 < size <= LARGEST_READ:
        then(None)
        return
    found = memoryview(bytearray(size))
    try:
        slot = RDMABuffer.from_bytes(handle)
        copied = slot.read_into(found, offset=slot.size() - size, timeout=_READ_SECONDS)
    except (MonarchError, ValueError, RuntimeError, OSError):
        then(None)
        return
    when_done(copied, lambda done: then(found if done.exception(0) is None else None))
