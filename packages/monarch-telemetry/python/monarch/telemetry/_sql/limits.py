"""What one query may use: seconds, rows and bytes of its answer, memory; and the count while an answer grows."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from monarch.telemetry.errors import QueryLimit, QueryTimeout

_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_EXHAUSTED = re.compile(r"Failed to allocate additional ([\d.]+) ([KMG]?B)")
_NARROW = "ask for less: LIMIT, fewer columns, or a WHERE on time; `query_stream` has no limit of rows and bytes"
_NARROW_WORK = "ask for less: a WHERE on time, fewer columns, or fewer groups"


class Limits(NamedTuple):
    """Of one query. `bytes` is the size of the answer in Arrow, `memory` what the work on one host may use, and ship to another."""

    seconds: float = 10.0
    rows: int = 100_000
    bytes: int = 64 << 20
    memory: int = 256 << 20

    def narrowed(self, wanted: Limits) -> Limits:
        """The smaller of each: who asks may lower a limit."""
        return Limits(
            min(self.seconds, wanted.seconds),
            min(self.rows, wanted.rows),
            min(self.bytes, wanted.bytes),
            min(self.memory, wanted.memory),
        )


DEFAULT = Limits()


class Count:
    """Counts the batches of an answer. Any thread, one at a time."""

    def __init__(self, rows: int | None, size: int, *, name: str = "bytes", deadline: float | None, clock: Callable[[], float]) -> None:
        self._rows, self._size, self._name = rows, size, name
        self._deadline, self._clock = deadline, clock
        self.rows = self.size = 0

    def add(self, batch: Any) -> None:
        """`QueryLimit` beyond rows or bytes, `QueryTimeout` after the deadline."""
        self.rows += batch.num_rows
        self.size += batch.nbytes
        if self._rows is not None and self.rows > self._rows:
            raise QueryLimit("rows", self._rows, self.rows, hint=_NARROW)
        if self.size > self._size:
            raise QueryLimit(self._name, self._size, self.size, hint=_NARROW if self._name == "bytes" else _NARROW_WORK)
        self.look()

    def look(self) -> None:
        """`QueryTimeout` after the deadline."""
        if self._deadline is not None and self._clock() >= self._deadline:
            raise QueryTimeout("the time of the query is over", stage="execution", hint=_NARROW_WORK)


def memory_limit(text: str, memory: int) -> QueryLimit | None:
    """The error for what the engine reports when its memory is used up; None for another text."""
    if "Resources exhausted" not in text:
        return None
    wanted = _EXHAUSTED.search(text)
    more = int(float(wanted[1]) * _UNITS[wanted[2]]) if wanted else 1
    return QueryLimit("memory bytes", memory, memory + max(more, 1), hint=_NARROW_WORK)
