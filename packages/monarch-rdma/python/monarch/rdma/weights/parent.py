"""The target that another one reads from, in place of the sources.

Nothing here delays a pull for long. A parent that is about to get the version is waited for with a bound. After it was late, the next
pull does not wait, after the second time the next two, and so on. No pull waits for a late parent without the version of the last pull,
which may have stopped. A parent that has ended is replaced. Whenever there is none, the sources are read.
"""

from __future__ import annotations

import json
import time
from threading import Event
from typing import TYPE_CHECKING, Protocol

from monarch import extension
from monarch.rdma.errors import RDMAError, RDMATimeoutError
from monarch.rdma.weights.offer import Offer
from monarch.rdma.weights.published import ask
from monarch.rdma.weights.relay import ask_relay, wanted

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.actor import Future
    from monarch.rdma.weights.table import Numbers

# Seconds for a parent to begin to get the version, and at least for it to have it then; a later bound is a multiple of the last read.
_BEGIN, _GET, _TIMES = 0.2, 1.0, 3
# At most 2 to this power pulls do not wait.
_MOST_SKIPPED = 6
# Seconds between two looks: at first, and at most.
_FIRST, _MOST = 0.0005, 0.005


class Feed(Protocol):
    """What a target reads from a parent, as from a source: `values` has the words of the last look."""

    values: Numbers

    def look(self, timeout: float) -> Future[None]: ...

    def fetch(self, version: int, until: float) -> Future[None]: ...

    def versions(self) -> set[int]: ...

    def has(self, version: int) -> bool: ...


class Parent:
    """The place of a target in the tree of readers, which the registrar, a rank of the source, keeps."""

    def __init__(self, name: str, registrar: extension.ProcId, needs: str, places: tuple[int, int], number: int) -> None:
        self._name = name
        self._registrar = registrar
        self._joining = {"needs": needs, "host": int(extension.member().host), "places": places, "number": number}
        self._refused: list[tuple[int, int]] = []
        self._settled = Event()
        self._key: tuple[int, int] | None = None
        self._offer: Offer | None = None
        self._feed: Feed | None = None
        # Pulls that do not wait, how often the parent was late since it was in time, and the version of the last pull.
        self._skipped, self._late, self._last = 0, 0, 0
        # Seconds that the last read took.
        self.took = 0.0

    def join(self) -> None:
        """Asks for a parent; the answer comes later, so that no registrar delays a pull."""
        self._settled.clear()
        joining = {**self._joining, "refused": self._refused}
        extension.when_done(ask(self._registrar, "join", self._name, **joining), self._joined)

    def _joined(self, answer: Future[bytes]) -> None:
        try:
            found = json.loads(answer.get())
            if not found:
                self._settled.set()
                return
            proc, number, host = (int(n) for n in found)
            extension.reach(proc, host)
        except (extension.RequestError, LookupError, ValueError, TypeError):  # the pull reports a source that has ended
            self._settled.set()
            return
        key = proc, number
        extension.when_done(ask_relay(extension.ProcId(proc), number), lambda answer: self._offered(key, answer))

    def _offered(self, key: tuple[int, int], answer: Future[bytes]) -> None:
        try:
            offer = Offer(answer.get())
        except (extension.RequestError, RDMAError):
            self._replace(key)
            return
        self._key, self._offer = key, offer
        self._settled.set()

    def _replace(self, key: tuple[int, int]) -> None:
        self._refused = [*self._refused, key]
        self._feed = self._offer = None
        self._skipped = self._late = 0
        self.join()

    def take(self, oldest: int, until: float, prepare: Callable[[Offer], Feed], begin: Callable[[int], None]) -> int | None:
        """Reads this version or a later one; None if that takes too long, or if there is no parent.

        `prepare` plans the reads from a new parent. `begin` is called before bytes of a version arrive.
        """
        if not self._settled.wait(_seconds(until, _BEGIN)):
            self._settled.set()  # a parent that does not answer is waited for once
        if self._offer is not None:
            offer, self._offer = self._offer, None
            try:
                self._feed = prepare(offer)
            except RDMAError:
                return None
        if self._feed is None:
            return None
        try:
            return self._take(self._feed, oldest, until, begin)
        except RDMATimeoutError:
            self._miss()
        except RDMAError:
            if self._key is not None:
                self._replace(self._key)
        return None

    def _miss(self) -> None:
        self._skipped = 1 << min(self._late, _MOST_SKIPPED)
        self._late += 1

    def _take(self, feed: Feed, oldest: int, until: float, begin: Callable[[int], None]) -> int | None:
        start, pause = time.monotonic(), _FIRST
        slow = max(_GET, _TIMES * self.took)
        is_awaited, last, self._last = not self._skipped, self._last, oldest
        self._skipped = max(self._skipped - 1, 0)
        is_first = True
        while True:
            feed.look(_seconds(until, slow)).get()
            version = max(feed.versions(), default=-1)
            if is_first and self._late and version < last:
                is_awaited = False
            is_first = False
            if version >= oldest:
                begin(version)
                before = time.monotonic()
                feed.fetch(version, min(until, before + slow)).get()
                feed.look(_seconds(until, slow)).get()
                if feed.has(version):
                    self._skipped = self._late = 0
                    self.took = time.monotonic() - before
                    return version
                oldest = version + 1
            bound = 0.0 if not is_awaited else slow if wanted(feed.values) >= oldest else _BEGIN
            if time.monotonic() + pause >= min(start + bound, until):
                if is_awaited:
                    self._miss()
                return None
            time.sleep(pause)
            pause = min(2 * pause, _MOST)


def _seconds(until: float, most: float) -> float:
    return max(min(until - time.monotonic(), most), 0.0)
