"""Long answers as JSON in parts: a few rows are objects of Python at a time.

A list of 10,000 rows as dictionaries is 100,000 objects of all sizes, between which other threads allocate what stays. The process keeps
the memory between those for good, and grows with each list that finds the gaps too small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from monarch.telemetry._http.calls import Reply
from monarch.telemetry._http.json_rows import encode, rows

# Rows that are objects at the same time, and bytes of a part of an answer.
BATCH_ROWS, PART_BYTES = 256, 64 << 10

Row = dict[str, Any]


def batches(table: Any, *, ids_as_text: bool = False, make: Callable[[Row], Any] | None = None) -> Iterator[list[Any]]:
    """The rows of a table as `rows` has them, or what `make` makes of each."""
    for at in range(0, table.num_rows, BATCH_ROWS):
        found = rows(table.slice(at, BATCH_ROWS), ids_as_text=ids_as_text)
        yield found if make is None else [make(row) for row in found]


def listed(of: Iterable[list[Any]]) -> Iterator[bytes]:
    """A JSON list of what is in these lists."""
    before = b"["
    for some in of:
        if some:
            yield before + encode(some)[1:-1]
            before = b","
    yield b"[]" if before == b"[" else b"]"


def document(lists: Mapping[str, Iterable[list[Any]]], rest: Mapping[str, Any]) -> Iterator[bytes]:
    """A JSON object: long lists in pieces, then short fields."""
    before = b"{"
    for name, of in lists.items():
        yield before + encode(name) + b":"
        yield from listed(of)
        before = b","
    for name, value in rest.items():
        yield before + encode(name) + b":" + encode(value)
        before = b","
    yield b"}"


def reply(pieces: Iterator[bytes]) -> Reply:
    """The answer of these pieces: sent at once where it is short, else in parts that are made while it is sent."""
    parts = _parts(pieces)
    first = next(parts, b"")
    second = next(parts, None)
    return Reply(first) if second is None else Reply(chain((first, second), parts))


def _parts(pieces: Iterator[bytes]) -> Iterator[bytes]:
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= PART_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)
