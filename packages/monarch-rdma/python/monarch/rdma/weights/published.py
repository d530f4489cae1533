"""Weights that this process publishes, by name, and the requests of other processes for them.

They are its own, or those of a program that it runs, whose end leaves the name and the words: they show that the source is lost.
"""

from __future__ import annotations

import atexit
import json
from threading import Lock
from typing import TYPE_CHECKING, Any

from monarch import extension
from monarch.rdma._buffers.buffer import RDMABuffer
from monarch.rdma.weights.offer import packed_offer
from monarch.rdma.weights.reader_tree import ReaderTree
from monarch.rdma.weights.words import LOST

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monarch.actor import Future
    from monarch.rdma.weights.announcements import Announcements, Place
    from monarch.rdma.weights.table import Table
    from monarch.rdma.weights.words import Words

REQUEST = "monarch-rdma.weights"

_published: dict[str, Published] = {}
_lock = Lock()


class Published:
    """The weights of one name, for readers. `newest` is the newest version; `awaits` gets the least version that a request waits for.

    `slots` has the buffers of each memory, by region of the table. `of_program`: they are those of a program.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        words: Words,
        slots: Sequence[Sequence[RDMABuffer]],
        announcements: Announcements,
        wait: float,
        newest: Callable[[], int],
        awaits: Callable[[int | None], None] | None = None,
    ) -> None:
        self.name = name
        self.is_closed = self.is_lost = False
        self._table = table
        self._values = words
        self._slots = slots
        self._announcements = announcements
        self._wait = wait
        self._newest = newest
        self._awaits = awaits
        self._lock = Lock()
        # The requests that wait, by process and number: the least version, and the request.
        self._waiting: dict[tuple[int, int], tuple[int, extension.Request]] = {}
        self._tree = ReaderTree(int(extension.member().host))
        # The processes whose end is reported.
        self._watched = set[int]()
        self._words = RDMABuffer(words.memory, readonly=True)

    def arrived(self) -> None:
        """Answers the requests that wait for the newest version."""
        with self._lock:
            version = self._newest()
            ready = [key for key, (least, _) in self._waiting.items() if least <= version]
            requests = [self._waiting.pop(key)[1] for key in ready]
            self._note()
        for request in requests:
            request.answer(_packed(version))

    def offer(self, request: extension.Request) -> None:
        """Answers a reader that attaches."""
        place = self._announcements.take() if self._wait else None
        if place is not None:
            extension.when_done(extension.watch(request.proc), lambda _: self._reader_ended(place))
        part = None if place is None else place.part
        request.answer(packed_offer(self._table, self._words, self._slots, part, self._wait, self._awaits is not None))

    def join(self, request: extension.Request, asked: dict[str, Any]) -> None:
        """Answers a reader that asks for another one to read from: process, number and host, or nothing."""
        proc = self._watch(request)
        refused = {(int(a), int(b)) for a, b in asked["refused"]}
        for key in refused:
            self._tree.leave(key)
        direct, own = (int(n) for n in asked["places"])
        found = self._tree.join((proc, int(asked["number"])), str(asked["needs"]), int(asked["host"]), (direct, own), refused)
        request.answer(json.dumps(found and [*found[0], found[1]]).encode())

    def _watch(self, request: extension.Request) -> int:
        """The process of a reader, whose end is reported from now on."""
        proc = int(request.proc)
        if proc not in self._watched:
            self._watched.add(proc)
            extension.when_done(extension.watch(request.proc), lambda _: self._left(proc))
        return proc

    def _left(self, proc: int) -> None:
        self._watched.discard(proc)
        self._tree.leave_all(proc)
        with self._lock:
            for key in [key for key in self._waiting if key[0] == proc]:
                del self._waiting[key]
            self._note()

    def _reader_ended(self, place: Place) -> None:
        if not self.is_closed:
            self._announcements.give(place)

    def wait(self, request: extension.Request, asked: dict[str, Any]) -> None:
        """Answers when there is this version or a later one."""
        proc = self._watch(request)
        with self._lock:
            is_ended = self.is_closed or self.is_lost
            if not is_ended:
                self._waiting[proc, int(asked["number"])] = int(asked["version"]), request
                self._note()
        if is_ended:
            request.fail(self._refusal())
        else:
            # The lock is a fence: a program writes its version before it looks whether one is awaited.
            self.arrived()

    def forget(self, request: extension.Request, asked: dict[str, Any]) -> None:
        """Ends a request to wait, whose answer no code reads any more."""
        with self._lock:
            _, found = self._waiting.pop((int(request.proc), int(asked["number"])), (0, None))
            self._note()
        if found is not None:
            found.fail(b"")
        request.answer()

    def _note(self) -> None:
        if self._awaits is not None:
            self._awaits(min((least for least, _ in self._waiting.values()), default=None))

    def close(self) -> list[Future[None]]:
        """Ends the buffers, and fails the requests that wait."""
        with _lock:
            if _published.get(self.name) is self:
                del _published[self.name]
        self.is_closed = True
        self._fail_requests()
        return [*(buffer.drop() for buffer in (self._words, *self._weights())), *self._announcements.drop()]

    def lose(self) -> None:
        """The program has ended without a close: ends the weights. Readers see it by the words, and by the failures of their requests."""
        if not self.is_closed:
            self.is_lost = True
            self._fail_requests()
            self._values.values[:] = LOST
            for buffer in self._weights():
                buffer.drop()
            self._slots = ()

    def _weights(self) -> list[RDMABuffer]:
        return [buffer for slot in self._slots for buffer in slot]

    def _fail_requests(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for _, request in waiting.values():
            request.fail(self._refusal())

    def _refusal(self) -> bytes:
        return json.dumps({"lost": True}).encode() if self.is_lost else _refusal()

    def refuse(self, request: extension.Request) -> None:
        """Answers that the source is lost."""
        request.fail(self._refusal())


def check_free(name: str) -> None:
    """`ValueError` if this process publishes the name already."""
    found = _published.get(name)
    if found is not None and not found.is_lost:
        raise ValueError(f"this process publishes weights '{name}' already: close that source first, or take another name")


def add(made: Published) -> None:
    """Answers requests for these from now on."""
    with _lock:
        check_free(made.name)
        found = _published.get(made.name)
        _published[made.name] = made
    if found is not None:
        found.close()
    extension.serve(REQUEST, answer)
    # Buffers that live until the interpreter has unloaded its modules could not be released in order.
    atexit.unregister(_published.clear)
    atexit.register(_published.clear)


def answer(request: extension.Request) -> None:
    """Handles a request of a reader, on the extension thread."""
    asked = json.loads(bytes(request.body))
    with _lock:
        found = _published.get(asked["name"])
    request.defer()
    if found is None:
        request.fail(_refusal())
    elif found.is_lost:
        found.refuse(request)
    elif asked["do"] == "attach":
        found.offer(request)
    elif asked["do"] == "join":
        found.join(request, asked)
    elif asked["do"] == "forget":
        found.forget(request, asked)
    else:
        found.wait(request, asked)


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


def is_lost(refusal: bytes) -> bool:
    """Whether the source was one of a program that has ended."""
    try:
        return bool(json.loads(refusal)["lost"])
    except (ValueError, TypeError, KeyError):
        return False


def _packed(version: int) -> bytes:
    return version.to_bytes(8, "little")


def _refusal() -> bytes:
    with _lock:
        return json.dumps({"published": sorted(name for name, one in _published.items() if not one.is_lost)}).encode()
