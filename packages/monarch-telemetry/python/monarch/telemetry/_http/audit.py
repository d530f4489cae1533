"""Each request, query, action and refusal as a row of the table audit. Rows wait in memory, a bounded number, until the sink has them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from monarch.extension.masking import Masking

WAITING = 10_000
_LONGEST = 2_000
_log = logging.getLogger("monarch.telemetry")
Outcome = Literal["done", "refused", "failed"]


class Entry(NamedTuple):
    """A row of `audit` but for the time."""

    who: str
    scope: str
    source: str
    action: str
    target: str
    outcome: Outcome
    detail: str | None = None


class Audit:
    """Takes entries from any thread; `flush` hands them to the sink, one batch at a time. `clock` gives seconds since the epoch.

    Secrets are masked when a row is made. Where the sink is slower than requests come, the oldest rows are dropped and counted.
    """

    def __init__(
        self, sink: Callable[[Any], None] | None, masking: Masking, *, waiting: int = WAITING, clock: Callable[[], float] = time.time
    ) -> None:
        self._sink, self._masking, self._clock = sink, masking, clock
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._rows: deque[dict[str, Any]] = deque(maxlen=waiting)
        self._dropped = 0
        self._warned = False

    def add(self, entry: Entry) -> None:
        if self._sink is None:
            return
        row: dict[str, Any] = {"timestamp_us": int(self._clock() * 1e6), **entry._asdict()}
        row["target"] = self._masked(entry.target)
        row["detail"] = None if entry.detail is None else self._masked(entry.detail)
        with self._lock:
            self._dropped += len(self._rows) == self._rows.maxlen
            self._rows.append(row)

    def _masked(self, text: str) -> str:
        # Cut before masking, whose time grows with the length of the text.
        shown = self._masking.text(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
        # An unpaired surrogate, which JSON may contain, would cost all other rows their place.
        return shown.encode(errors="replace").decode()

    @property
    def waits(self) -> bool:
        return bool(self._rows)

    def flush(self) -> None:
        """Hands what waits to the sink. An error of the sink loses these rows and is logged once: a request does not fail for it."""
        if self._sink is None:
            return
        with self._flushing:
            with self._lock:
                rows, self._rows = list(self._rows), deque(maxlen=self._rows.maxlen)
                dropped, self._dropped = self._dropped, 0
            if dropped:
                lost = Entry("", "none", "", "audit", "", "failed", f"{dropped:,} rows were dropped")
                rows.append({"timestamp_us": int(self._clock() * 1e6), **lost._asdict()})
            if not rows:
                return
            try:
                self._sink(_batch(rows))
            except Exception as error:
                if not self._warned:
                    self._warned = True
                    _log.warning("rows of the audit cannot be stored: %s", error)


def _batch(rows: list[dict[str, Any]]) -> Any:
    from monarch.telemetry._arrow import pa
    from monarch.telemetry._tables.facts import AUDIT

    return pa.RecordBatch.from_pylist(rows, schema=AUDIT.schema())
