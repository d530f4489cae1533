"""Large contents, which the other side reads from memory by itself (`monarch.rdma`).

An answer carries the handle of the memory in the place of the content. That costs less than half of the processor time of an answer with
the content, is done by the device where both hosts have one, and a content that several children ask for is in memory once. The last
contents stay offered; a handle of an earlier one is of no use, and the chunk is asked for again, with its content.

Pieces that cannot be offered are sent: where no path of `monarch.rdma` is allowed, or the process ends.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from monarch.actor import MonarchError
from monarch.extension import when_done
from monarch.fs._tree.node import PIECE_BYTES

if TYPE_CHECKING:
    from monarch.rdma import RDMABuffer

# The most seconds for which a content remains offered: its requests or its reader have ended by then.
_LEASE_SECONDS = 120.0
# Seconds without a request after which a content is no longer offered: a host that waits longer for a copy requests the content.
OFFER_SECONDS = 60.0
# More concurrent reads are not faster, and the first one ends later.
_READS = 8
_SPARE_BUFFERS = 16


class Offers:
    """Offers the last `most` contents; thread safe."""

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._lock = threading.Lock()
        # Buffer, handle, and the time of the last request; the most recent is at the end.
        self._offered: OrderedDict[bytes, tuple[RDMABuffer, bytes, float]] = OrderedDict()
        # Whether offers are impossible.
        self._refused = False

    def handle(self, id: bytes) -> bytes | None:
        """The handle of a content that is offered."""
        with self._lock:
            found = self._offered.get(id)
            if found is None:
                return None
            self._offered.move_to_end(id)
            self._offered[id] = (*found[:2], self._clock())
            return found[1]

    def offer(self, id: bytes, content: bytes | memoryview) -> bytes | None:
        """The handle of the content, for any process of the job; None where it has to be sent. Nothing writes to its memory any more."""
        if self._refused:
            return None
        from monarch.rdma import RDMABuffer

        try:
            buffer = RDMABuffer(memoryview(content), readonly=True, lease=_LEASE_SECONDS)
            packed = buffer.to_bytes()
        except (MonarchError, RuntimeError, OSError):
            self._refused = True
            return None
        with self._lock:
            ended = [self._offered.pop(id)] if id in self._offered else []
            self._offered[id] = buffer, packed, self._clock()
            while len(self._offered) > self._most:
                ended.append(self._offered.popitem(last=False)[1])
        self._end(ended)
        return packed

    def expire(self) -> None:
        """Ends what was not asked for since `OFFER_SECONDS`: a copy takes less, and memory is not held for a transfer that has ended."""
        ended: list[tuple[RDMABuffer, bytes, float]] = []
        until = self._clock() - OFFER_SECONDS
        with self._lock:
            while self._offered and next(iter(self._offered.values()))[2] <= until:
                ended.append(self._offered.popitem(last=False)[1])
        self._end(ended)

    def close(self) -> None:
        with self._lock:
            self._refused = True
            ended, self._offered = list(self._offered.values()), OrderedDict()
        self._end(ended)

    def _end(self, ended: list[tuple[RDMABuffer, bytes, float]]) -> None:
        """Copies that run are completed."""
        for buffer, _, _ in ended:
            with suppress(MonarchError, RuntimeError, OSError):
                buffer.drop()


class Pulled:
    """The last contents that were read from others and verified, at most `most`: what others ask for next. Thread safe."""

    def __init__(self, most: int, give_back: Callable[[memoryview], None]) -> None:
        self._most, self._give_back = most, give_back
        self._lock = threading.Lock()
        self._contents: OrderedDict[bytes, memoryview] = OrderedDict()

    def keep(self, id: bytes, content: memoryview) -> None:
        """The content is read-only from now on."""
        with self._lock:
            spare = [self._contents.pop(id)] if id in self._contents else []
            self._contents[id] = content
            while len(self._contents) > self._most:
                spare.append(self._contents.popitem(last=False)[1])
        for one in spare:
            self._give_back(one)

    def take(self, id: bytes) -> memoryview | None:
        """The content, which is the caller's from now on."""
        with self._lock:
            return self._contents.pop(id, None)

    def clear(self) -> None:
        with self._lock:
            self._contents.clear()


class _Read(NamedTuple):
    owner: Hashable
    handle: bytes
    size: int
    then: Callable[[memoryview | None], object]


class Puller:
    """Reads contents that others offer, some of each process at a time; thread safe.

    A process that is stopped keeps its own reads waiting, and those of no other.
    """

    def __init__(self) -> None:
        # In the process of the service: files travel by streams if there is no device, and no user has chosen buffers.
        warnings.filterwarnings("ignore", "no RDMA device is used")
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, deque[_Read]] = {}
        self._running: Counter[Hashable] = Counter()
        self._beginning: set[Hashable] = set()
        self._spare: list[bytearray] = []

    def read(self, owner: Hashable, handle: bytes, size: int, then: Callable[[memoryview | None], object], *, urgent: bool = False) -> None:
        """`then` gets the content, on any thread, or None where it cannot be read. Its bytes are not verified. Urgent ones go first."""
        with self._lock:
            waiting = self._waiting.setdefault(owner, deque())
            (waiting.appendleft if urgent else waiting.append)(_Read(owner, handle, size, then))
        self._begin(owner)

    def give_back(self, content: memoryview) -> None:
        """The content is of no use any more: its memory is for the next one."""
        whole = content.obj
        content.release()
        with self._lock:
            if isinstance(whole, bytearray) and len(whole) == PIECE_BYTES and len(self._spare) < _SPARE_BUFFERS:
                self._spare.append(whole)

    def _begin(self, owner: Hashable) -> None:
        """Begins what may begin. One thread at a time does so: a read that ends at once begins the next one by this loop, not below it."""
        with self._lock:
            if owner in self._beginning:
                return
            self._beginning.add(owner)
        while True:
            with self._lock:
                waiting = self._waiting.get(owner)
                if not waiting or self._running[owner] >= _READS:
                    if not waiting:
                        self._waiting.pop(owner, None)
                    self._beginning.discard(owner)
                    return
                read = waiting.popleft()
                self._running[owner] += 1
                whole = self._spare.pop() if self._spare and read.size <= PIECE_BYTES else bytearray(max(read.size, PIECE_BYTES))
            self._start(read, memoryview(whole)[: read.size])

    def _start(self, read: _Read, content: memoryview) -> None:
        from monarch.rdma import RDMABuffer

        try:
            buffer = RDMABuffer.from_bytes(read.handle)
            if buffer.size() != len(content):
                raise ValueError(f"a handle of {buffer.size()} bytes")
            copied = buffer.read_into(content)
        except (MonarchError, ValueError, RuntimeError, OSError):
            self._ended(read, None)
            return

        def ended(_: object) -> None:
            try:
                copied.get(timeout=0)
            except Exception:
                self._ended(read, None)
            else:
                self._ended(read, content)

        when_done(copied, ended)

    def _ended(self, read: _Read, content: memoryview | None) -> None:
        with self._lock:
            self._running[read.owner] -= 1
            if not self._running[read.owner]:
                del self._running[read.owner]
        read.then(content)
        self._begin(read.owner)
