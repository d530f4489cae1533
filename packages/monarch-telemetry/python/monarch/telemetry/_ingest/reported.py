"""Rows that other wheels report: user events with the name of a table, whose fields are its columns (docs/events.md).

A column that is left out has what is known of the event: its time, the host, the name of the process. A row that does not fit its table is
a row of `events`, as any other event of a program. `peer_id` is the process of a column `peer`, which has its name where it is known here;
`ended` ends an entity. No more rows of a look are made than `_MOST` of each table: others are counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from monarch.telemetry._arrow import pa, pc
from monarch.telemetry._ingest.places import Places
from monarch.telemetry._ingest.rows import Rows
from monarch.telemetry._store.store import Store
from monarch.telemetry._tables.facts import FS_EVENTS, JOB_EVENTS, MOUNTS, RDMA_BUFFERS, RDMA_OPS

_TABLES = {table.name: table for table in (RDMA_OPS, RDMA_BUFFERS, FS_EVENTS, MOUNTS, JOB_EVENTS)}
_NAMES = pa.array(list(_TABLES), pa.string())
# The most rows of a look, which is a fifth of a second.
_MOST = 5_000


class _Row(NamedTuple):
    """A row that was reported. `place` is that of its event among all."""

    place: int
    columns: dict[str, Any]
    proc: int
    ended: bool


class Reported:
    """Writes such rows to the store. `host` is the name of this one. One thread at a time."""

    def __init__(self, store: Store, places: Places, host: str) -> None:
        self._store, self._places, self._host = store, places, host
        # Keys of entities that end with their process: table and key.
        self._of_procs: dict[int, set[tuple[str, tuple[Any, ...]]]] = {}
        # Rows by table beyond the limit, or with fields that were overwritten before they were read.
        self.dropped: dict[str, int] = {}

    def take(self, recorded: Rows) -> Rows:
        """Writes the rows among these events, and gives the other events."""
        mask = pc.is_in(recorded["name"], value_set=_NAMES)
        if not pc.any(mask).as_py():
            return recorded
        refused: set[int] = set()
        by_table: dict[str, list[_Row]] = {}
        numbered = recorded.where(mask)
        for place, event in enumerate(numbered.dicts()):
            table = event["name"]
            rows = by_table.setdefault(table, [])
            if event["fields"] is None or len(rows) >= _MOST:
                self.dropped[table] = self.dropped.get(table, 0) + 1
                continue
            found = self._row(place, event)
            if found is None:
                refused.add(place)
            else:
                rows.append(found)
        for table, rows in by_table.items():
            refused |= self._write(table, rows)
        if not refused:
            return recorded.where(pc.invert(mask))
        kept = numbered.where(pa.array([place in refused for place in range(numbered.count)]))
        rest = recorded.where(pc.invert(mask))
        joined = {name: pa.concat_arrays([rest[name], kept[name]]) for name in recorded.columns}
        return Rows(rest.count + kept.count, joined)

    def _row(self, place: int, event: Mapping[str, Any]) -> _Row | None:
        try:
            given = json.loads(event["fields"] or "{}")
        except ValueError:  # a truncated text
            return None
        if not isinstance(given, dict):
            return None
        proc = event["proc"]
        fields = cast("dict[str, Any]", given)
        peer = self._places.get(fields.pop("peer_id", 0)).name
        if peer:
            fields["peer"] = peer
        ended = bool(fields.pop("ended", False))
        known = {"timestamp_us": event["us"], "created_us": event["us"], "host": self._host, "proc": self._places.get(proc).name}
        columns = _TABLES[event["name"]].columns
        if fields.keys() - {column.name for column in columns}:
            return None
        filled = {one.name: known[one.name] for one in columns if one.name in known and not one.nullable and not ended}
        return _Row(place, {**filled, **fields}, proc, ended)

    def _write(self, table: str, rows: list[_Row]) -> set[int]:
        """Writes rows of one table; the places of those that do not fit it."""
        if _TABLES[table].retention == "entities":
            return {row.place for row in rows if not self._put(table, row)}
        schema = _TABLES[table].schema()
        whole = _batch(rows, schema)
        if whole is not None:
            self._store.append(table, whole)
            return set()
        refused: set[int] = set()
        for row in rows:
            single = _batch([row], schema)
            if single is None:
                refused.add(row.place)
            else:
                self._store.append(table, single)
        return refused

    def _put(self, table: str, row: _Row) -> bool:
        make = _KEYS[table]
        try:
            key = make(row.proc, row.columns)
        except KeyError:
            return False
        before = self._store.entity(table, key)
        if table == "rdma_buffers":
            of_proc = self._of_procs.setdefault(row.proc, set())
            if row.ended:
                of_proc.discard((table, key))
                self._store.drop(table, key)
                return True
            of_proc.add((table, key))
        columns = {**(before or {}), **row.columns}
        if before is not None and "created_us" in before:
            columns["created_us"] = before["created_us"]
        if _batch([row._replace(columns=columns)], _TABLES[table].schema()) is None:
            return False
        self._store.put(table, key, columns, ended=row.ended)
        return True

    def end(self, proc: int) -> None:
        """The process has ended, and what it had with it."""
        for table, key in self._of_procs.pop(proc, ()):
            self._store.drop(table, key)


# The key of an entity of a table, by its process and its columns.
_KEYS: dict[str, Callable[[int, Mapping[str, Any]], tuple[Any, ...]]] = {
    "rdma_buffers": lambda proc, columns: (proc, columns["buffer"]),
    "mounts": lambda proc, columns: (columns["target"],),
}


def _batch(rows: list[_Row], schema: Any) -> Any:
    """The rows as Arrow; None where one of them does not fit the schema."""
    try:
        batch = pa.RecordBatch.from_pylist([row.columns for row in rows], schema=schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    if any(column.null_count and not field.nullable for field, column in zip(schema, batch.columns, strict=True)):
        return None
    return batch
