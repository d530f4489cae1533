"""From when to when rows are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from monarch.telemetry._tables.catalog import TABLES

# The columns of time of tables of history. An entity may be much older than the first row that is kept.
_COLUMNS = ("timestamp_us", "window_us")


def of_batches(name: str, batches: Iterable[Any]) -> tuple[int, int] | None:
    """The first and the last time of the rows of a table of history, in microseconds since the epoch; None where it has none."""
    table = TABLES.get(name)
    if table is None or table.retention != "history":
        return None
    pc: Any = import_module("pyarrow.compute")
    found: tuple[int, int] | None = None
    for batch in batches:
        for column in _COLUMNS:
            if column not in batch.schema.names:
                continue
            ends = pc.min_max(batch.column(column)).as_py()
            if ends["min"] is not None:
                found = joined(found, (ends["min"], ends["max"]))
    return found


def of_rows(rows: Mapping[str, Sequence[Any]]) -> tuple[int, int] | None:
    """The first and the last time of all tables of history."""
    found: tuple[int, int] | None = None
    for name, batches in rows.items():
        found = joined(found, of_batches(name, batches))
    return found


def joined(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    """The range that has both."""
    if one is None or other is None:
        return other if one is None else one
    return min(one[0], other[0]), max(one[1], other[1])
