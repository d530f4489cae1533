"""The commands of a controller that its workers have not got, and the batches in which they leave."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch.tensor._protocol.commands import encode, segments_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monarch.tensor._protocol.commands import Definition, Entry
    from monarch.tensor._protocol.frames import Site

# The number of operations whose lines are kept: those in the window, and those held for one message. A larger number costs each operation a
# cache miss. The lines of a failure are kept from its report on.
_SITES = 16_384


class Batch(NamedTuple):
    """A message to the workers: they execute none whose serial number is not higher than that of the last one.

    It has the first `entries` entries, among the first `issued` commands. Its operations have the numbers from `first` to before `end`.
    """

    serial: int
    data: bytes
    constants: list[Any]
    definitions: list[tuple[int, Definition]]
    targets: list[tuple[int, tuple[int, ...]]]
    forget: list[int]
    entries: int
    issued: int
    first: int
    end: int
    size: int


class Outbox:
    """Any thread appends to the lists; one at a time sends.

    An exception may come from anywhere, as that of Ctrl-C, and a handler of a signal may append and send in the middle of a sending. Each
    command is in the list or not; what is not known to be sent is sent again, and the workers execute no batch twice.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.definitions: list[tuple[int, Definition]] = []
        self.targets: list[tuple[int, tuple[int, ...]]] = []
        # Definitions that no command uses any more.
        self.forget: list[int] = []
        # The number of sent commands, by the count of the controller, and of operations.
        self.sent = 0
        self.operations = 0
        # A batch that may be in flight.
        self._unsent: Batch | None = None
        self._serials = itertools.count(1)
        self._last = 0
        # The lines of the last operations: of each batch with the number of its first one.
        self.sites: deque[tuple[int, list[Site]]] = deque()
        self._kept = 0

    def batches(self, issued: int) -> Iterator[Batch]:
        """What is to be sent now, each to be committed before the next one: what may be on its way, and what there is."""
        if (earlier := self._unsent) is not None:
            yield earlier
        while self._unsent is None and self.entries:  # polls: no, it makes one, again where a handler has sent meanwhile
            last = self._last
            if self._take(self._made(issued), last):
                break
        if (batch := self._unsent) is not None:
            yield batch

    # These two are atomic. They contain no call, and make no object with which a collection may begin: CPython handles signals, and
    # switches threads, only at calls and in loops.

    def _take(self, made: Batch, last: int) -> bool:
        """Takes a batch as the one to send, unless a handler has sent since, which had what is in it."""
        if self._unsent is None and self._last == last:
            self._unsent = made
            return True
        return False

    def commit(self, batch: Batch, entries: slice, definitions: slice, targets: slice, forget: slice) -> None:
        """The batch is sent, with these parts of the lists; nothing if that was known already."""
        if self._unsent is batch:
            del self.entries[entries]
            del self.definitions[definitions]
            del self.targets[targets]
            del self.forget[forget]
            self.operations = batch.end
            self.sent = batch.issued
            self._last = batch.serial
            self._unsent = None

    def _made(self, issued: int) -> Batch:
        # The order ensures that each definition exists before a command uses it, and that no later command uses a forgotten one.
        forget, entries = list(self.forget), self.entries[:]
        first = self.operations
        segments, sites, size = segments_of(entries, first)
        # A failure may be reported before the message has left.
        self.keep_sites(first, sites)
        data, constants = encode(segments)
        return Batch(
            next(self._serials),
            data,
            constants,
            list(self.definitions),
            list(self.targets),
            forget,
            len(entries),
            issued,
            first,
            first + len(sites),
            size + len(data),
        )

    def keep_sites(self, first: int, sites: list[Site]) -> None:
        """The lines of operations, of which the first one has this number."""
        self.sites.append((first, sites))
        self._kept += len(sites)
        while self._kept > _SITES and len(self.sites) > 1:  # polls: no, each pass forgets a batch
            self._kept -= len(self.sites.popleft()[1])

    def site_of(self, number: int) -> Site:
        """The lines that issued an operation; none if it is too long ago."""
        for first, sites in reversed(tuple(self.sites)):
            if number >= first:
                return sites[number - first] if number - first < len(sites) else ()
        return ()
