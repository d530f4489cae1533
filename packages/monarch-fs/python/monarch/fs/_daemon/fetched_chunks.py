"""The chunks of a mount server: from the store, or asked for through the daemon.

Equal chunks share one request. A request that is under way when the daemon ends is repeated to the next daemon. Its waiting reads end by
the time limit of the back end. Contents for which the store had no room are kept for a moment: the kernel reads a chunk in several
pieces.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from typing import Any

from monarch.extension.channel import Head, Message
from monarch.fs._kernel.poll_loop import Waiter
from monarch.fs._store.store import Store

# The most bytes of contents without room in the store that are kept.
PASSED_BYTES = 64 << 20


class _Request:
    __slots__ = ("again", "waiter")

    def __init__(self) -> None:
        # The content; None if it is in the store.
        self.waiter: Waiter[bytes | None] = Waiter()
        # Whether the content itself is requested: the store of the answering service is not that of this mount, or has dropped the chunk.
        self.again = False


class _Part:
    """An awaitable of a part of a chunk."""

    def __init__(self, chunks: FetchedChunks, request: _Request, id: bytes, offset: int, size: int) -> None:
        self._chunks, self._request, self._place = chunks, request, (id, offset, size)

    def __await__(self) -> Generator[Any, None, bytes]:
        content = yield from self._request.waiter.__await__()
        id, offset, size = self._place
        found = self._chunks.local(id, offset, size) if content is None else content[offset : offset + size]
        if found is None:
            raise OSError(errno.EIO, "the chunk was removed from the store before it was read")
        return found


class FetchedChunks:
    """`ChunkSource` of a mount server. `local` and `fetch` are called on the thread of the loop, the others on that of the messages."""

    def __init__(self, store: Store, send: Callable[[Head], None]) -> None:
        self._store, self._send = store, send
        self._lock = threading.Lock()
        self._requests: dict[bytes, _Request] = {}
        self._passed: OrderedDict[bytes, bytes] = OrderedDict()
        self._passed_bytes = 0

    def local(self, id: bytes, offset: int, size: int) -> bytes | None:
        found = self._store.read(id, offset, size)
        if found is None and self._passed:
            with self._lock:
                content = self._passed.get(id)
            if content is not None:
                return content[offset : offset + size]
        return found

    def fetch(self, id: bytes, offset: int, size: int) -> _Part:
        with self._lock:
            request = self._requests.get(id)
            fresh = request is None
            if request is None:
                request = self._requests[id] = _Request()
        if fresh:
            self._send({"op": "fetch", "id": id.hex(), "again": False})
        return _Part(self, request, id, offset, size)

    def repeat(self) -> None:
        """Sends all requests under way again, to another daemon."""
        with self._lock:
            heads = [{"op": "fetch", "id": id.hex(), "again": request.again} for id, request in self._requests.items()]
        for head in heads:
            self._send(head)

    def answer(self, message: Message) -> None:
        """The answer to a request; one that no read waits for is dropped."""
        head = message.head
        id = bytes.fromhex(head["id"])
        with self._lock:
            request = self._requests.get(id)
            if request is None:
                return
            failure = head.get("failure")
            if failure is None and head.get("stored") and not self._store.has(id):
                if not request.again:
                    request.again = True
                    self._send({"op": "fetch", "id": id.hex(), "again": True})
                    return
                failure = [errno.EIO, "the chunk is stored, but not in the store of this mount"]
            del self._requests[id]
            if failure is None and not head.get("stored"):
                self._passed[id] = message.blob
                self._passed_bytes += len(message.blob)
                while self._passed_bytes > PASSED_BYTES:
                    self._passed_bytes -= len(self._passed.popitem(last=False)[1])
        if failure is not None:
            request.waiter.set_exception(OSError(int(failure[0]), str(failure[1])))
        else:
            request.waiter.set_result(None if head.get("stored") else message.blob)
