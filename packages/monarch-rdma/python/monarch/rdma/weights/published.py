"""Weights that this process publishes, by name, and the requests of other processes for them."""

from __future__ import annotations

import atexit
import json
from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING, Any

from monarch import extension
from monarch.rdma._buffers.buffer import RDMABuffer
from monarch.rdma.weights.memories import Copies, Live, wait_until
from monarch.rdma.weights.table import Table
from monarch.rdma.weights.words import Words, word

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monarch.actor import Future
    from monarch.rdma.weights.memories import Memories

REQUEST = "monarch-rdma.weights"
_HEAD = Struct("<I")
# Readers that can announce themselves at one time; further ones read anew if their version goes.
_READERS = 1024

_published: dict[str, Published] = {}
_lock = Lock()


class Offer:
    """The answer to a reader that attaches: the table, and handles of the words and memories."""

    def __init__(self, body: bytes) -> None:
        (length,) = _HEAD.unpack_from(body)
        head: dict[str, Any] = json.loads(body[_HEAD.size : _HEAD.size + length])
        self.table = Table.unpacked(body[_HEAD.size + length :])
        self.words = _buffer(head["words"])
        self.slots = [[_buffer(packed) for packed in slot] for slot in head["slots"]]
        self.announcement = _buffer(head["announcement"]) if head["announcement"] else None


class Published:
    """The weights of one name. The trainer's thread updates them, the extension thread answers requests."""

    def __init__(self, name: str, memories: Memories, wait: float) -> None:
        self.name = name
        self.version = -1
        self.updating = Lock()
        self.is_closed = False
        self._wait = wait
        self._memories = memories
        self._lock = Lock()
        self._waiting: list[tuple[int, extension.Request]] = []
        self._words = RDMABuffer(memories.words.memory, readonly=True)
        self._readers = Words(_READERS)
        self._announcements = RDMABuffer(self._readers.memory)
        self._free = list(range(_READERS))

    def begin(self) -> None:
        self._memories.begin(self._wait_for_readers)

    def end(self, version: int) -> None:
        self._memories.end(version, self._wait_for_readers)
        with self._lock:
            self.version = version
            ready = [request for least, request in self._waiting if least <= version]
            self._waiting = [(least, request) for least, request in self._waiting if least > version]
        for request in ready:
            request.answer(_packed(version))

    def _wait_for_readers(self, version: int) -> None:
        if not self._wait:
            return
        mine = word(version, 0)
        values = self._readers.values
        if not wait_until(lambda: not (values == mine).any(), self._wait):
            # They must read anew. A reader that has stopped, or ended without a notice so far, delays no further step.
            values[values == mine] = 0

    def offer(self, request: extension.Request) -> None:
        """Answers a reader that attaches."""
        announcement = ""
        if self._wait and self._free:
            place = self._free.pop()
            part = self._announcements.restrict(offset=8 * place, length=8, readonly=False)
            announcement = part.to_bytes().hex()
            extension.when_done(extension.watch(request.proc), lambda _: self._reader_ended(place, part))
        head = {
            "words": self._words.to_bytes().hex(),
            "slots": [[buffer.to_bytes().hex() for buffer in slot] for slot in self._memories.slots],
            "announcement": announcement,
        }
        text = json.dumps(head).encode()
        request.answer(_HEAD.pack(len(text)) + text + self._memories.table.packed())

    def _reader_ended(self, place: int, part: RDMABuffer) -> None:
        if not self.is_closed:
            part.drop()
            self._readers[place] = 0
            self._free.append(place)

    def wait(self, request: extension.Request, version: int) -> None:
        """Answers when there is this version or a later one."""
        with self._lock:
            if self.version < version:
                request.defer()
                self._waiting.append((version, request))
                return
        request.answer(_packed(self.version))

    def close(self) -> list[Future[None]]:
        """Ends the buffers, and fails the requests that wait."""
        with _lock:
            if _published.get(self.name) is self:
                del _published[self.name]
        with self._lock:
            self.is_closed, waiting, self._waiting = True, self._waiting, []
        for _, request in waiting:
            request.fail(_refusal())
        weights = [buffer for slot in self._memories.slots for buffer in slot]
        return [buffer.drop() for buffer in (self._words, self._announcements, *weights)]


def publish(name: str, state: Mapping[str, Any], buffers: int, wait: float) -> Published:
    with _lock:
        if name in _published:
            raise ValueError(f"this process publishes weights '{name}' already: close that source first, or take another name")
    made = Published(name, Live(state) if buffers == 1 else Copies(state, buffers), wait)
    with made.updating:
        made.begin()
        made.end(0)
    with _lock:
        if _published.setdefault(name, made) is not made:
            raise ValueError(f"this process publishes weights '{name}' already: close that source first, or take another name")
    extension.serve(REQUEST, answer)
    # Buffers that live until the interpreter has unloaded its modules could not be released in order.
    atexit.unregister(_published.clear)
    atexit.register(_published.clear)
    return made


def answer(request: extension.Request) -> None:
    """Handles a request of a reader, on the extension thread."""
    asked = json.loads(bytes(request.body))
    with _lock:
        found = _published.get(asked["name"])
    request.defer()
    if found is None:
        request.fail(_refusal())
    elif asked["do"] == "attach":
        found.offer(request)
    else:
        found.wait(request, int(asked["version"]))


def ask(proc: extension.ProcId, do: str, name: str, version: int = 0) -> Future[bytes]:
    """The request that `answer` handles."""
    return extension.ask(proc, REQUEST, json.dumps({"do": do, "name": name, "version": version}).encode())


def version_in(body: bytes) -> int:
    """The answer to `wait`."""
    return int.from_bytes(body, "little")


def names_in(refusal: bytes) -> list[str] | None:
    """The names that a process publishes, by its refusal; None for another failure."""
    try:
        return [str(name) for name in json.loads(refusal)["published"]]
    except (ValueError, TypeError, KeyError):
        return None


def _packed(version: int) -> bytes:
    return version.to_bytes(8, "little")


def _refusal() -> bytes:
    with _lock:
        return json.dumps({"published": sorted(_published)}).encode()


def _buffer(packed: str) -> RDMABuffer:
    return RDMABuffer.from_bytes(bytes.fromhex(packed))
