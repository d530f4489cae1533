"""The queries in progress: each has a number, by which it is listed and cancelled.

A query that is cancelled waits for no host any more, and its worker is ended. Its hosts are notified, and end their parts between two
batches, as at a deadline. A query whose answer is made cannot be cancelled any more: either its answer goes out, or the cancel is true.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from monarch.extension import when_done
from monarch.telemetry.errors import QueryError


class Row(NamedTuple):
    """A query as it is listed. `began` is in seconds since the epoch, `elapsed` in seconds."""

    number: int
    sql: str
    began: float
    elapsed: float


class RunningQuery:
    """One query. Any thread cancels it; one thread runs it. `token` is its number for the hosts, which other engines ask too."""

    def __init__(self, number: int, token: int, sql: str) -> None:
        self.number, self.token, self.sql = number, token, sql
        self.began, self._since = time.time(), time.monotonic()
        self._lock = threading.Lock()
        self._cancelled = self._answered = False
        self._then: list[Callable[[], object]] = []

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._since

    def cancel(self) -> bool:
        """Ends its waits; a second call does nothing more. False where its answer was made before."""
        with self._lock:
            if self._answered:
                return False
            self._cancelled = True
            then, self._then = self._then, []
        for each in then:
            each()
        return True

    def answer(self) -> None:
        """Its answer is made, and it is cancelled no more. `QueryError` where it was cancelled before."""
        with self._lock:
            self._answered = not self._cancelled
        self.check()

    def on_cancel(self, then: Callable[[], object]) -> None:
        """Calls `then` when it is cancelled, at once if it is already."""
        with self._lock:
            if not self._cancelled:
                self._then.append(then)
                return
        then()

    def check(self) -> None:
        """`QueryError` once it is cancelled."""
        if self._cancelled:
            raise QueryError(f"query {self.number} was cancelled")

    def clock(self) -> float:
        """The monotonic clock; after every deadline once it is cancelled."""
        return math.inf if self._cancelled else time.monotonic()

    def wait(self, future: Any, timeout: float) -> Any:
        """The result of a future. `QueryError` as soon as the query is cancelled, `TimeoutError` after `timeout` seconds."""
        self.check()
        # Of many hosts, most have answered while another one was waited for.
        with suppress(TimeoutError):
            return future.get(timeout=0)
        arrived = threading.Event()
        self.on_cancel(arrived.set)
        when_done(future, lambda _: arrived.set())
        arrived.wait(timeout)
        self.check()
        # Also after the deadline: an earlier answer counts.
        return future.get(timeout=0)


class RunningQueries:
    """Those of one engine. Any thread."""

    def __init__(self, new_token: Callable[[], int]) -> None:
        self._new_token = new_token
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._running: dict[int, RunningQuery] = {}

    def begin(self, sql: str) -> RunningQuery:
        """A query that is in progress until `end`."""
        query = RunningQuery(next(self._numbers), self._new_token(), sql)
        with self._lock:
            self._running[query.number] = query
        return query

    def end(self, query: RunningQuery) -> None:
        with self._lock:
            self._running.pop(query.number, None)

    def list(self) -> list[Row]:
        """Oldest first."""
        with self._lock:
            running = list(self._running.values())
        return [Row(query.number, query.sql, query.began, query.elapsed) for query in running]

    def cancel(self, number: int) -> bool:
        """Whether this query has no answer from now on; false where none of that number is in progress."""
        with self._lock:
            query = self._running.get(number)
        return query is not None and query.cancel()
