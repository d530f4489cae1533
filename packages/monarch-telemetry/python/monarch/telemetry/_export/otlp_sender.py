"""Sends requests of one signal: a bounded queue, one thread, retries. `offer` never waits.

A request that the receiver may take later is sent again, after a pause that doubles, or that the receiver has asked for; each request
has two minutes. A full queue drops its oldest requests. A failure is logged once for each cause, and counted.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Event, Thread
from typing import NamedTuple, Protocol

from monarch.telemetry._export.otlp_messages import Request

_LOGGER = logging.getLogger("monarch.telemetry")
_MOST_BYTES = 32 << 20
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_RETRY_S = 120.0
# The most causes that are remembered, so that each is logged once.
_MOST_CAUSES = 50


class Outcome(NamedTuple):
    """How a request ended. `error` is empty for a request that was taken; `retry_after` (seconds) is what the receiver has asked for.

    `rejected` rows of a request that was taken were not; `message` is the receiver's text about that.
    """

    error: str = ""
    retry: bool = False
    retry_after: float | None = None
    rejected: int = 0
    message: str = ""


class Transport(Protocol):
    """One connection at a time to a receiver."""

    @property
    def shown(self) -> str:
        """The receiver, without credentials."""
        ...

    def send(self, body: bytes) -> Outcome:
        """Sends a request and waits for its end, within the time limit of the target. Errors of the network are outcomes."""
        ...

    def abort(self) -> None:
        """Ends a `send` of another thread, and every later one. Any thread, more than once."""
        ...

    def close(self) -> None:
        """Ends the connection; no `send` is under way."""
        ...


class Status(NamedTuple):
    """Requests and their rows (`items`: spans, log records or points) by what happened to them."""

    sent: int
    sent_items: int
    # In the queue, or in progress.
    waiting: int
    waiting_items: int
    # Rows that the receiver rejected in accepted requests.
    rejected_items: int
    # Rows of requests that were refused, or not accepted in time.
    failed_items: int
    # Rows that were dropped because of the size of the queue, or at the end.
    dropped_items: int
    error: str


class Sender:
    """The requests of a signal on their way to a transport."""

    def __init__(
        self,
        signal: str,
        transport: Transport,
        *,
        most_items: int = 65536,
        most_bytes: int = _MOST_BYTES,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[Event, float], None] | None = None,
    ) -> None:
        """`clock` and `pause` are the time and what waits for a number of seconds, or until the event is set."""
        self._signal = signal
        self._transport = transport
        self._most_items, self._most_bytes = most_items, most_bytes
        self._clock = clock
        self._pause = pause or _wait
        self._changed = Condition()
        self._queue: deque[Request] = deque()
        self._queued_items = self._queued_bytes = 0
        self._under_way: Request | None = None
        self._sent = self._sent_items = self._rejected = self._failed = self._dropped = 0
        self._error = ""
        self._causes: set[str] = set()
        self._closing = False
        self._stop = Event()
        self._thread = Thread(target=self._run, name=f"monarch-otlp-{signal}", daemon=True)
        self._thread.start()

    def offer(self, request: Request) -> bool:
        """Takes a request, if need be in the place of the oldest ones; False after `close`, and for one that is larger than the queue."""
        with self._changed:
            if self._closing or len(request.body) > self._most_bytes:
                self._dropped += request.items
                return False
            self._queue.append(request)
            self._queued_items += request.items
            self._queued_bytes += len(request.body)
            while len(self._queue) > 1 and (self._queued_items > self._most_items or self._queued_bytes > self._most_bytes):
                self._dropped += self._taken().items
            self._changed.notify_all()
        return True

    def status(self) -> Status:
        """The counts until now."""
        with self._changed:
            under_way = self._under_way
            items = self._queued_items + (under_way.items if under_way else 0)
            waiting = len(self._queue) + (under_way is not None)
            return Status(self._sent, self._sent_items, waiting, items, self._rejected, self._failed, self._dropped, self._error)

    def drained(self, timeout: float) -> bool:
        """Waits until nothing is in the queue or under way, at most so many seconds, and returns whether it is so."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, timeout)

    def close(self, timeout: float) -> bool:
        """Sends what is in the queue, at most for so many seconds, and drops the rest. Returns whether all of it was sent.

        The thread has ended afterwards. While a connection is made it takes longer, at most the time limit of a request.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            finished = self._changed.wait_for(self._is_idle, max(0.0, timeout))
            before = self._dropped
            while self._queue:
                self._dropped += self._taken().items
            self._changed.notify_all()
        self._stop.set()
        if not finished:
            self._transport.abort()
        self._thread.join(1.0)
        return finished and before == self._dropped and self._failed == 0

    def _is_idle(self) -> bool:
        return not self._queue and self._under_way is None

    def _taken(self) -> Request:
        request = self._queue.popleft()
        self._queued_items -= request.items
        self._queued_bytes -= len(request.body)
        return request

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    break
                request = self._under_way = self._taken()
            outcome = self._delivered(request)
            with self._changed:
                self._under_way = None
                self._count(request, outcome)
                self._changed.notify_all()
        self._transport.close()

    def _delivered(self, request: Request) -> Outcome:
        """Sends a request until it is taken, refused, out of time, or this sender ends."""
        until, pause = self._clock() + _RETRY_S, _FIRST_PAUSE_S
        while True:
            try:
                outcome = self._transport.send(request.body)
            except Exception as error:  # any error of a library: telemetry must not end the program
                outcome = Outcome(f"{type(error).__name__}: {error}")
            if not outcome.error or not outcome.retry or self._stop.is_set():
                return outcome
            self._log(outcome.error, "sent again")
            # Several collectors that lost the same receiver return at different times.
            wait = outcome.retry_after if outcome.retry_after is not None else pause * random.uniform(0.5, 1.0)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            if self._clock() + wait > until:
                return outcome
            self._pause(self._stop, wait)
            if self._stop.is_set():
                return outcome

    def _count(self, request: Request, outcome: Outcome) -> None:
        if outcome.error:
            self._error = outcome.error
            if self._stop.is_set():
                self._dropped += request.items
                return
            self._failed += request.items
            self._log(outcome.error, "dropped")
            return
        if self._error:
            self._error = ""
            self._causes.clear()
            _LOGGER.info("OTLP %s: %s takes requests again", self._signal, self._transport.shown)
        self._sent += 1
        self._sent_items += request.items - outcome.rejected
        self._rejected += outcome.rejected
        if outcome.rejected or outcome.message:
            self._log(
                f"the receiver rejected {outcome.rejected} rows: {outcome.message or 'no reason given'}", "dropped", "partial success"
            )

    def _log(self, error: str, then: str, cause: str = "") -> None:
        """A warning for a new cause."""
        self._error = error if not cause else self._error
        key = f"{cause or error} {then}"
        if key not in self._causes and len(self._causes) < _MOST_CAUSES:
            self._causes.add(key)
            _LOGGER.warning("OTLP %s to %s: %s; rows are %s, this is logged once", self._signal, self._transport.shown, error, then)


def _wait(stop: Event, seconds: float) -> None:
    stop.wait(seconds)
