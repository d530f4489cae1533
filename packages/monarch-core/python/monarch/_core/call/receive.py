"""Receives: Futures of the items of a port.

A receive claims its item when it is first observed: cells take items in the order in which they were made. If an observation ends without
an item (a time limit, a cancelled task), the last observer gives up the claim, and an item that has arrived meanwhile goes to the next
receive. So no item is lost in a Future that is no longer read.
"""

from __future__ import annotations

from _thread import RLock

from monarch._core.call.future import ERROR, PENDING, Future, check_timeout, running_loop, warn_blocking

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator
    from typing import Any, TypeVar

    from monarch._core._native import PortMailbox

    R = TypeVar("R")
else:
    R = None


class Inbox:
    """The mailbox of a port. Its receivers and their pending receives share it: the port closes with the last of them."""

    __slots__ = ("lock", "mailbox", "once", "taken")

    def __init__(self, mailbox: PortMailbox, once: bool) -> None:
        self.mailbox = mailbox
        self.once = once
        # A receive has claimed the only item of the port.
        self.taken = False
        # Reentrant: a user's destructor may run at any allocation and may itself receive.
        self.lock = RLock()


class Receive(Future[R]):
    """The Future of one item."""

    __slots__ = ("_inbox", "_observers")
    _inbox: Inbox | None
    _observers: int

    def __init__(self, inbox: Inbox, decode: Callable[[Any], Any]) -> None:
        self._cell = self._result = None
        self._decode = decode
        self._index = 0
        self._state = PENDING
        self._inbox = inbox
        self._observers = 0

    def _begin(self) -> Inbox | None:
        """Begins an observation. The only observation claims an item. Returns None if the result is there."""
        inbox = self._inbox
        if inbox is None:
            return None
        with inbox.lock:
            if self._state != PENDING:
                return None
            if self._cell is None:
                if inbox.once and inbox.taken:
                    self._result, self._state = ValueError("port was already used: it takes one message"), ERROR
                    self._inbox = None
                    return None
                inbox.taken = True
                self._cell = inbox.mailbox.receive()
            self._observers += 1
        return inbox

    def _end(self, inbox: Inbox | None) -> None:
        """Ends an observation. The last observation gives up the claim if there is no result."""
        if inbox is None or self._state != PENDING:
            return
        with inbox.lock:
            self._observers -= 1
            if self._observers or self._state != PENDING:
                return
            cell, self._cell = self._cell, None
            cell.leave()
            inbox.taken = False

    def _finish(self) -> None:
        super()._finish()
        # Without a claim the port need not stay open.
        if self._state != PENDING:
            self._inbox = None

    def _done(self) -> bool:
        cell = self._cell
        return self._state != PENDING or (cell is not None and cell.done(0))

    def get(self, timeout: float | None = None) -> R:
        """Blocks until the item is there; `TimeoutError` after `timeout` seconds, and the item is left for the next receive."""
        if timeout is not None:
            check_timeout(timeout)
        inbox = self._begin()
        if inbox is None:
            return self._observe()
        try:
            if not self._done():
                if running_loop() is not None:
                    warn_blocking()
                if not self._wait(timeout):
                    raise TimeoutError(f"no result after {timeout} s")
            return self._observe()
        finally:
            self._end(inbox)
            # An error's traceback has this frame.
            del self

    result = get

    def __await__(self) -> Generator[Any, None, R]:
        inbox = self._begin()
        try:
            return (yield from super().__await__())
        finally:
            self._end(inbox)

    def as_asyncio(self) -> asyncio.Future[R]:
        """An asyncio future of the running loop; when all of them are cancelled, the item is left for the next receive."""
        inbox = self._begin()
        try:
            outer = super().as_asyncio()
        except BaseException:
            self._end(inbox)
            raise
        outer.add_done_callback(lambda _: self._end(inbox))
        return outer
