"""Words that readers of weights write: each the version that one of them reads, or zero. An update waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from monarch.rdma._buffers.buffer import RDMABuffer
from monarch.rdma.weights.words import Words

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.actor import Future
    from monarch.rdma.weights.table import Numbers

# Readers that one memory has places for; further readers get a further memory.
_READERS = 1024


class _Memory(NamedTuple):
    words: Words
    buffer: RDMABuffer


class Place(NamedTuple):
    """The word of a reader, and its handle."""

    memory: _Memory
    number: int
    part: RDMABuffer


class Announcements:
    """Gives readers their places, on one thread; another one goes through the values.

    Args:
        words: the only memory, which another process shares; the readers that find no place read anew if their version goes.
        used: gets the number of its words that readers may have.
    """

    def __init__(self, words: Words | None = None, used: Callable[[int], None] | None = None) -> None:
        self._used = used
        # Replaced as a whole, because the trainer's thread goes through it while readers attach.
        self._memories: tuple[_Memory, ...] = ()
        self._free: list[tuple[_Memory, int]] = []
        self._is_fixed = words is not None
        if words is not None:
            self._add(words)

    def values(self) -> list[Numbers]:
        """The words of all readers."""
        return [memory.words.values for memory in self._memories]

    def take(self) -> Place | None:
        """A place for a reader."""
        if not self._free:
            if self._is_fixed:
                return None
            self._add(Words(_READERS))
        memory, index = self._free.pop()
        if self._used is not None:
            self._used(index + 1)
        return Place(memory, index, memory.buffer.restrict(offset=8 * index, length=8, readonly=False))

    def give(self, place: Place) -> None:
        """The reader has ended."""
        place.part.drop()
        place.memory.words[place.number] = 0
        self._free.append((place.memory, place.number))

    def _add(self, words: Words) -> None:
        memory = _Memory(words, RDMABuffer(words.memory))
        self._memories = (*self._memories, memory)
        self._free = [(memory, index) for index in reversed(range(len(words.values)))]

    def drop(self) -> list[Future[None]]:
        """Ends the handles of all readers."""
        return [memory.buffer.drop() for memory in self._memories]
