"""Weights that this process publishes, by name, and the requests of other processes for them."""

from __future__ import annotations

import atexit
import json
from logging import getLogger
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch import extension
from monarch.rdma._buffers.buffer import RDMABuffer
from monarch.rdma.weights.memories import Copies, Live, wait_until
from monarch.rdma.weights.offer import packed_offer
from monarch.rdma.weights.reader_tree import ReaderTree
from monarch.rdma.weights.words import CLOSING, Words, word

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from monarch.actor import Future
    from monarch.rdma.weights.memories import Memories

REQUEST = "monarch-rdma.weights"
# Readers that one memory of announcements has places for; further readers get a further memory.
_READERS = 1024

_published: dict[str, Published] = {}
_lock = Lock()


class _Announcements(NamedTuple):
    """Words that readers write: each the version that one of them reads, or zero."""

    words: Words
    memory: RDMABuffer


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
        self.overdue = 0
        self._tree = ReaderTree(int(extension.member().host))
        self._joined = set[int]()
        self._words = RDMABuffer(memories.words.memory, readonly=True)
        # Replaced as a whole, because the trainer's thread goes through it while readers attach.
        self._announcements: tuple[_Announcements, ...] = ()
        self._free: list[tuple[_Announcements, int]] = []

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
        """Waits for the readers that take this version: those that read it, and those that wait for any as old or older."""
        if not self._wait:
            return
        last = word(version, CLOSING)
        if not wait_until(lambda: not any(_up_to(one.words.values, last).any() for one in self._announcements), self._wait):
            # They must read anew. A reader that has stopped, or ended without a notice so far, delays no further step.
            count = 0
            for one in self._announcements:
                late = _up_to(one.words.values, last)
                one.words.values[late] = 0
                count += int(late.sum())
            self.overdue += count
            if count:
                which = f"{count} reader{'s' * (count > 1)}"
                getLogger("monarch.rdma").warning("update of weights '%s': %s still read after %g s", self.name, which, self._wait)

    def offer(self, request: extension.Request) -> None:
        """Answers a reader that attaches."""
        part: RDMABuffer | None = None
        if self._wait:
            place = self._place()
            part = place[0].memory.restrict(offset=8 * place[1], length=8, readonly=False)
            extension.when_done(extension.watch(request.proc), lambda _, part=part: self._reader_ended(place, part))
        request.answer(packed_offer(self._memories.table, self._words, self._memories.slots, part, self._wait))

    def join(self, request: extension.Request, asked: dict[str, Any]) -> None:
        """Answers a reader that asks for another one to read from: process, number and host, or nothing."""
        proc = int(request.proc)
        if proc not in self._joined:
            self._joined.add(proc)
            extension.when_done(extension.watch(request.proc), lambda _: self._left(proc))
        refused = {(int(a), int(b)) for a, b in asked["refused"]}
        for key in refused:
            self._tree.leave(key)
        direct, own = (int(n) for n in asked["places"])
        found = self._tree.join((proc, int(asked["number"])), str(asked["needs"]), int(asked["host"]), (direct, own), refused)
        request.answer(json.dumps(found and [*found[0], found[1]]).encode())

    def _left(self, proc: int) -> None:
        self._joined.discard(proc)
        self._tree.leave_all(proc)

    def _place(self) -> tuple[_Announcements, int]:
        if not self._free:
            words = Words(_READERS)
            more = _Announcements(words, RDMABuffer(words.memory))
            self._announcements = (*self._announcements, more)
            self._free = [(more, place) for place in range(_READERS)]
        return self._free.pop()

    def _reader_ended(self, place: tuple[_Announcements, int], part: RDMABuffer) -> None:
        if not self.is_closed:
            part.drop()
            place[0].words[place[1]] = 0
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
        return [buffer.drop() for buffer in (self._words, *(one.memory for one in self._announcements), *weights)]


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
    elif asked["do"] == "join":
        found.join(request, asked)
    else:
        found.wait(request, int(asked["version"]))


def ask(proc: extension.ProcId, do: str, name: str, **more: Any) -> Future[bytes]:
    """The request that `answer` handles."""
    return extension.ask(proc, REQUEST, json.dumps({"do": do, "name": name, **more}).encode())


def version_in(body: bytes) -> int:
    """The answer to `wait`."""
    return int.from_bytes(body, "little")


def names_in(refusal: bytes) -> list[str] | None:
    """The names that a process publishes, by its refusal; None for another failure."""
    try:
        return [str(name) for name in json.loads(refusal)["published"]]
    except (ValueError, TypeError, KeyError):
        return None


def _up_to(values: NDArray[np.int64], last: int) -> NDArray[np.bool_]:
    """The announcements of this word and of smaller ones."""
    return (values != 0) & (values <= last)


def _packed(version: int) -> bytes:
    return version.to_bytes(8, "little")


def _refusal() -> bytes:
    with _lock:
        return json.dumps({"published": sorted(_published)}).encode()
