"""Which requests of a queue pair are under way, and which are over when a completion comes. Decisions only.

A request is signaled when it is the last of a list, and before that after 16 requests or 1 MiB: a completion costs more than a request,
but what has arrived has to be known soon enough to keep the device busy. On a queue in order, a completion stands for all requests before
it: they have succeeded, unless one has failed before. After a failure all that follow are flushed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from monarch.rdma.verbs.provider import FLUSHED, SUCCESS, Completion

SIGNAL_REQUESTS = 16
SIGNAL_BYTES = 1 << 20
# Numbers of requests begin with the number of their queue, which is never used again.
POSITION_BITS = 32
_POSITION = (1 << POSITION_BITS) - 1

T = TypeVar("T")


class SendQueue(Generic[T]):
    """`T` is the caller's handle of a request."""

    def __init__(self, serial: int, depth: int, unordered: bool) -> None:
        self.serial = serial
        self.depth = depth
        self.broken = False
        self._unordered = unordered
        self._next = 0
        self._silent = 0
        self._silent_bytes = 0
        self._under_way: dict[int, T] = {}
        self._order: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def full(self) -> bool:
        return self.broken or len(self._under_way) >= self.depth

    def add(self, item: T, nbytes: int) -> tuple[int, bool]:
        """Its number, and whether it is signaled; the last of a list has to be in any case."""
        position = self._next
        self._next += 1
        self._under_way[position] = item
        self._silent += 1
        self._silent_bytes += nbytes
        signaled = self._unordered or self._silent >= SIGNAL_REQUESTS or self._silent_bytes >= SIGNAL_BYTES
        if signaled:
            self._silent = self._silent_bytes = 0
        if not self._unordered:
            self._order.append(position)
        return self.serial << POSITION_BITS | position, signaled

    def signaled_last(self) -> None:
        self._silent = self._silent_bytes = 0

    def completed(self, completion: Completion) -> Iterator[tuple[T, int]]:
        """Requests that are over, with their status."""
        position = completion.number & _POSITION
        if self._unordered:
            item = self._under_way.pop(position, None)
            if item is not None:
                yield item, completion.status
            return
        while self._order and self._order[0] <= position:
            first = self._order.popleft()
            own = first == position
            status = completion.status if own else FLUSHED if self.broken else SUCCESS
            if own and status != SUCCESS:
                self.broken = True
            yield self._under_way.pop(first), status

    def any(self, wanted: Callable[[T], bool]) -> bool:
        """Whether something that is wanted is under way."""
        return any(wanted(item) for item in self._under_way.values())

    def oldest(self) -> T:
        """What has been under way for longest."""
        return next(iter(self._under_way.values()))

    def withdraw(self, count: int) -> list[T]:
        """The last `count`, which the device of an unordered queue has not taken."""
        return [self._under_way.pop(position) for position in range(self._next - count, self._next)]

    def forsaken(self) -> list[T]:
        """All that was under way, when the queue is closed."""
        self.broken = True
        items = list(self._under_way.values())
        self._under_way.clear()
        self._order.clear()
        return items
