"""Pages of answers of statements: they are those of one run. Unsent pages are kept for a short time, under a cursor."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from monarch.telemetry._http.problems import Problem
from monarch.telemetry._sql.coverage import Coverage

# Limits: seconds after the last page, cursors, and bytes of all.
KEPT_SECONDS, KEPT_CURSORS, KEPT_BYTES = 60.0, 32, 128 << 20


class _Kept(NamedTuple):
    sql: str
    scope: str
    table: Any
    coverage: Coverage
    at: int
    until: float


class Cursors:
    """Answers of which pages are left. Any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def keep(self, sql: str, scope: str, table: Any, found: Coverage, at: int) -> str | None:
        """The cursor of the rows from `at` on; None where they are too many to be kept."""
        if table.nbytes > KEPT_BYTES:
            return None
        cursor = secrets.token_urlsafe(18)
        with self._lock:
            now = self._clock()
            self._expire(now)
            self._kept[cursor] = _Kept(sql, scope, table, found, at, now + KEPT_SECONDS)
            # Pages of one answer share their rows.
            while (
                len(self._kept) > KEPT_CURSORS
                or sum({id(one.table): one.table.nbytes for one in self._kept.values()}.values()) > KEPT_BYTES
            ):
                self._kept.popitem(last=False)
        return cursor

    def take(self, cursor: str, sql: str, scope: str) -> _Kept:
        """What a cursor stands for; it can be used again until its time is over. `Problem` 400."""
        with self._lock:
            now = self._clock()
            self._expire(now)
            found = self._kept.get(cursor)
            if found is None or found.scope != scope:
                raise Problem.bad_request("the cursor is none of this server, or its time is over\nhint: run the statement again")
            if found.sql != sql:
                raise Problem.bad_request("the cursor belongs to another statement")
            self._kept[cursor] = found._replace(until=now + KEPT_SECONDS)
            self._kept.move_to_end(cursor)
            return found

    def _expire(self, now: float) -> None:
        for cursor in [cursor for cursor, one in self._kept.items() if one.until <= now]:
            del self._kept[cursor]
