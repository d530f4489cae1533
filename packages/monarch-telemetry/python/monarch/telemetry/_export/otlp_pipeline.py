"""Rows of one signal on their way to its receiver: a bounded queue, and a thread that maps and exports them. `add` never waits.

Rows wait as Arrow batches, which is the smallest form that they have. A full queue drops its oldest rows, and counts them. The exporter of
the SDK retries within its time limit; data of a receiver that may accept them later are exported again for two minutes. A failure is
logged once for each cause.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Condition, Thread
from typing import Any, NamedTuple, Protocol

from monarch.telemetry._export.otlp_sdk import Outcome
from monarch.telemetry._export.otlp_settings import Batching

_LOGGER = logging.getLogger("monarch.telemetry")
_MOST_BYTES = 32 << 20
# The most bytes of the rows of one request: receivers accept 4 MiB and more.
_REQUEST_BYTES = 2 << 20
_RETRY_S = 120.0
# The most causes that are remembered, so that each is logged once.
_MOST_CAUSES = 50

Rows = Mapping[str, Sequence[Any]]
# Data of the SDK, and the number of spans, log records or points in them.
Data = tuple[Any, int]


class Exporter(Protocol):
    """What sends: `SdkExporter`, or one of a test."""

    @property
    def shown(self) -> str:
        """The receiver, without credentials."""
        ...

    @property
    def problem(self) -> str:
        """What has failed in an export that is in progress."""
        ...

    def export(self, data: Any) -> Outcome:
        """Sends data, and waits for the end, within a time limit. Errors of the network are outcomes."""
        ...

    def shutdown(self) -> None:
        """Ends retries of another thread, and refuses other data. Once."""
        ...


class Mapper(Protocol):
    """Makes data of rows. One thread at a time."""

    @property
    def malformed(self) -> int:
        """Rows that could not be exported, or not with all of their attributes."""
        ...

    @property
    def dropped(self) -> int:
        """Spans or rows that had no room, or no beginning."""
        ...

    def add(self, rows: Rows) -> Iterator[Data]:
        """Takes rows, at most as many as a request may have; yields what is complete."""
        ...

    def finish(self, is_due: bool, forced: bool) -> Iterator[Data]:
        """What is complete; `is_due`: the delay is over, `forced`: what waits for later rows too."""
        ...


class Status(NamedTuple):
    """Spans, log records or points by what happened to them; for `waiting_rows` and `dropped_rows`, rows of tables."""

    sent_items: int
    # Items that the receiver rejected in accepted requests.
    rejected_items: int
    # Items of requests that were refused, or not accepted in time.
    failed_items: int
    waiting_rows: int
    # Rows that were dropped because of the size of the queue, or at the end, and spans or rows of series without room.
    dropped_rows: int
    # Rows that were left out, at least in part.
    malformed: int
    # Failed mappings, with all of their rows.
    broken: int
    error: str


class Pipeline:
    """The rows of a signal. `close` ends its thread, except while a request is in progress: then the thread ends with it."""

    def __init__(
        self,
        signal: str,
        exporter: Exporter,
        mapper: Mapper,
        batching: Batching,
        counted: frozenset[str],
        *,
        most_bytes: int = _MOST_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`counted` are the tables of which a row is an item."""
        self._signal, self._exporter, self._mapper, self._batching, self._counted = signal, exporter, mapper, batching, counted
        self._most_bytes, self._clock = most_bytes, clock
        self._changed = Condition()
        self._inbox: deque[tuple[str, Any]] = deque()
        self._rows = self._bytes = self._taken = 0
        self._sent = self._rejected = self._failed = self._dropped = self._broken = 0
        self._error = ""
        self._causes: set[str] = set()
        self._flushes = self._flushed = 0
        # `_is_sending`: the thread is in no library but the SDK, or has ended.
        self._is_sending = self._has_ended = False
        self._due = clock() + batching.delay
        self._thread = Thread(target=self._run, name=f"monarch-otlp-{signal}", daemon=True)
        self._thread.start()

    def add(self, table: str, batch: Any) -> None:
        """Takes the rows of a batch, if need be in the place of the oldest rows."""
        with self._changed:
            if self._has_ended:
                return
            self._put(table, batch)
            while len(self._inbox) > 1 and (self._rows > self._batching.queue or self._bytes > self._most_bytes):
                self._dropped += self._pop()[1].num_rows
            if self._bytes > self._most_bytes:
                self._dropped += self._pop()[1].num_rows
            elif self._rows > self._batching.queue:
                excess = self._rows - self._batching.queue
                table, batch = self._pop()
                self._put(table, batch.slice(excess))
                self._dropped += excess
            self._changed.notify_all()

    def _put(self, table: str, batch: Any) -> None:
        self._inbox.append((table, batch))
        self._rows += batch.num_rows if table in self._counted else 0
        self._bytes += batch.nbytes

    def _pop(self) -> tuple[str, Any]:
        table, batch = self._inbox.popleft()
        self._rows -= batch.num_rows if table in self._counted else 0
        self._bytes -= batch.nbytes
        return table, batch

    def begin_flush(self) -> int:
        """Exports what was added, whether it is due or not. The result is the argument of `has_flushed`."""
        with self._changed:
            self._flushes += 1
            self._changed.notify_all()
            return self._flushes

    def has_flushed(self, flush: int, timeout: float) -> bool:
        """Waits at most so many seconds for the end of a flush; whether it has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self._flushed >= flush, max(0.0, timeout))

    def close(self) -> None:
        """Drops what waits, and ends: at once, except that rows that are being mapped are waited for."""
        with self._changed:
            self._has_ended = True
            self._dropped += self._taken + sum(batch.num_rows for _, batch in self._inbox)
            self._taken = 0
            self._inbox.clear()
            self._changed.notify_all()
        self._exporter.shutdown()
        with self._changed:
            # An interpreter that ends while a thread is in Arrow aborts.
            self._changed.wait_for(lambda: self._is_sending, 1.0)

    def status(self) -> Status:
        """The counts until now. Any thread."""
        with self._changed:
            waiting = self._taken + sum(batch.num_rows for _, batch in self._inbox)
            dropped, malformed = self._mapper.dropped, self._mapper.malformed
            return Status(
                self._sent,
                self._rejected,
                self._failed,
                waiting,
                self._dropped + dropped,
                malformed,
                self._broken,
                self._error or self._exporter.problem,
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, max(0.0, self._due - self._clock()))
                if self._has_ended:
                    self._is_sending = True
                    self._changed.notify_all()
                    return
                flush, now = self._flushes, self._clock()
                is_due = now >= self._due or flush > self._flushed
                if is_due:
                    self._due = now + self._batching.delay
            while rows := self._part():
                self._export(self._mapper.add(rows))
            self._export(self._mapper.finish(is_due, flush > self._flushed))
            with self._changed:
                self._taken, self._flushed = 0, flush
                self._changed.notify_all()

    def _has_work(self) -> bool:
        return self._has_ended or self._flushes > self._flushed or self._rows >= self._batching.batch

    def _part(self) -> Rows:
        """The oldest rows: as many as a request may have, and so many bytes unless one row has more."""
        part: dict[str, list[Any]] = {}
        count = held = 0
        with self._changed:
            while self._inbox and count < self._batching.batch and held < _REQUEST_BYTES:
                table, batch = self._pop()
                size = min(self._batching.batch - count, max(1, (_REQUEST_BYTES - held) * batch.num_rows // max(1, batch.nbytes)))
                if size < batch.num_rows:
                    rest = batch.slice(size)
                    self._inbox.appendleft((table, rest))
                    self._rows += rest.num_rows if table in self._counted else 0
                    self._bytes += rest.nbytes
                    batch = batch.slice(0, size)
                part.setdefault(table, []).append(batch)
                count, held = count + batch.num_rows, held + batch.nbytes
            self._taken = count
        return part

    def _export(self, mapping: Iterator[Data]) -> None:
        """Telemetry ends nothing: the next rows may be right."""
        try:
            for data, items in mapping:
                if items:
                    self._count(items, self._outcome(data))
                if self._has_ended:
                    return
        except Exception:
            self._broken += 1
            if self._broken == 1:
                _LOGGER.warning("OTLP: rows could not be exported; this is logged once", exc_info=True)

    def _outcome(self, data: Any) -> Outcome:
        until = self._clock() + _RETRY_S
        with self._changed:
            self._is_sending = True
            self._changed.notify_all()
        while True:
            outcome = self._exporter.export(data)
            if not outcome.error or not outcome.transient or self._has_ended or self._clock() >= until:
                break
            self._log(outcome.error, "sent again")
        with self._changed:
            self._is_sending = self._has_ended
        return outcome

    def _count(self, items: int, outcome: Outcome) -> None:
        if self._has_ended:
            return  # `close` has counted these
        if outcome.error:
            self._failed += items
            self._log(outcome.error, "dropped")
            return
        if self._error:
            self._error = ""
            self._causes.clear()
            _LOGGER.info("OTLP %s: %s accepts data again", self._signal, self._exporter.shown)
        self._sent += items - outcome.rejected
        self._rejected += outcome.rejected
        if outcome.rejected or outcome.message:
            reason = f"the receiver rejected {outcome.rejected} rows: {outcome.message or 'no reason given'}"
            self._warn("partial success", reason, "dropped")

    def _log(self, error: str, then: str) -> None:
        self._warn(f"{error} {then}", error, then)
        self._error = error

    def _warn(self, cause: str, error: str, then: str) -> None:
        """A warning for a new cause."""
        if cause not in self._causes and len(self._causes) < _MOST_CAUSES:
            self._causes.add(cause)
            _LOGGER.warning("OTLP %s to %s: %s; rows are %s, this is logged once", self._signal, self._exporter.shown, error, then)
