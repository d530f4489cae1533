"""Chunks for a push: brought into the store of the host by its exchange, and read from there."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Sequence

from monarch.actor import Future
from monarch.fs._push.pushed_tree import Contents, Failed
from monarch.fs._relay.exchange import Exchange, Fetched
from monarch.fs._store.store import Store
from monarch.fs._tree.node import PIECE_BYTES


class StoredChunks:
    """The chunks of one tree. A batch is pinned from its request until it has been read; what the store has no room for passes by it."""

    def __init__(self, exchange: Exchange, store: Store, tree: str) -> None:
        self._exchange, self._store, self._tree = exchange, store, tree
        self._numbers = itertools.count()

    def fetch(self, ids: Sequence[bytes]) -> Callable[[], Contents]:
        """Starts to get these chunks; the function that is returned waits for them."""
        pin = f"push-{self._tree[:16]}-{next(self._numbers)}"
        self._store.pin(pin, ids)
        fetched = self._exchange.fetch(self._tree, ids)
        return lambda: self._wait(pin, ids, fetched)

    def _wait(self, pin: str, ids: Sequence[bytes], begun: Future[Fetched]) -> Contents:
        contents: dict[bytes, bytes | Failed] = {}
        try:
            again = self._read(ids, begun.get(), contents)
            if again:
                # No room in the store, or damaged there: an urgent fetch verifies the contents, and forwards those that it cannot store.
                for id in self._read(again, self._exchange.fetch(self._tree, again, urgent=True).get(), contents):
                    contents[id] = Failed(errno.EIO, "the store neither keeps the chunk nor passes it on", False)
        finally:
            self._store.unpin(pin)
        return contents

    def _read(self, ids: Sequence[bytes], fetched: Fetched, contents: dict[bytes, bytes | Failed]) -> list[bytes]:
        """Adds what is there to the contents; returns the rest."""
        rest: list[bytes] = []
        for id in ids:
            failure = fetched.failed.get(id)
            if failure is not None:
                contents[id] = Failed(failure.errno, failure.reason, failure.stale)
            elif (data := fetched.passed.get(id)) is not None or (data := self._store.read(id, 0, PIECE_BYTES)) is not None:
                contents[id] = data
            else:
                rest.append(id)
        return rest
