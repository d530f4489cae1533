"""All tables of a collector, within a number of bytes: history by time and room, entities as long as they live.

When the room is used up, the table with the most bytes loses its oldest partition: a flood of messages costs messages, and no failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from monarch.telemetry._store.entities import Entities
from monarch.telemetry._store.history import History

# Bytes of all tables, and seconds of history.
BUDGET_BYTES, RETENTION_SECONDS = 256 << 20, 3600.0


class TableStatus(NamedTuple):
    """A row of `telemetry_status` but for the host."""

    table_name: str
    rows: int
    bytes: int
    oldest_us: int | None
    dropped: int


class Store:
    """Tables by name; any thread. `clock` gives seconds since the epoch.

    `schemas` are the tables of history, `entities` those of entities: Arrow schemas by name. `clean` gives what is kept of a new batch of
    history, with the same columns.
    """

    def __init__(
        self,
        schemas: Mapping[str, Any],
        entities: Mapping[str, Any],
        *,
        clock: Callable[[], float],
        budget: int = BUDGET_BYTES,
        retention: float = RETENTION_SECONDS,
        clean: Callable[[str, Any], Any] | None = None,
    ) -> None:
        if budget <= 0 or retention <= 0:
            raise ValueError("the room and the time of history are greater than 0")
        twice = schemas.keys() & entities.keys()
        if twice:
            raise ValueError(f"{sorted(twice)[0]} is a table of history and one of entities")
        self._clock, self._budget, self._retention = clock, budget, retention
        self._clean = clean
        self._lock = threading.Lock()
        # Called after each change without the lock: with a table and its new batch, or None if an entity changed.
        self.listener: Callable[[str, Any], None] | None = None
        self._history = {name: History(schema) for name, schema in schemas.items()}
        self._entities = {name: Entities(schema) for name, schema in entities.items()}

    def configure(self, budget: int, retention: float) -> None:
        """Bytes of all tables and seconds of history from now on."""
        with self._lock:
            self._budget, self._retention = budget, retention

    def append(self, table: str, batch: Any) -> None:
        """Adds rows to a table of history. `KeyError` for another name, `ValueError` for other columns."""
        if self._clean is not None:
            batch = self._clean(table, batch)
        with self._lock:
            now = self._clock()
            self._history[table].append(batch, now)
            self._expire(now)
            while self._used() > self._budget:
                largest = max(self._history.values(), key=lambda history: history.nbytes)
                if not largest.drop_oldest():
                    break  # the rest is entities, which have limits of their own
        if self.listener is not None:
            self.listener(table, batch)

    def put(self, table: str, key: object, row: Mapping[str, Any], *, ended: bool = False) -> None:
        """Sets columns of an entity. `KeyError` for another table, `ValueError` for other columns."""
        with self._lock:
            self._entities[table].put(key, row, ended=ended)
        if self.listener is not None:
            self.listener(table, None)

    def drop(self, table: str, key: object) -> None:
        """Forgets an entity. `KeyError` for another table."""
        with self._lock:
            self._entities[table].drop(key)
        if self.listener is not None:
            self.listener(table, None)

    def entity(self, table: str, key: object) -> Mapping[str, Any] | None:
        with self._lock:
            found = self._entities[table].get(key)
            return None if found is None else dict(found)

    def expire(self) -> None:
        """Drops history that is too old; also done by each `append`."""
        with self._lock:
            self._expire(self._clock())

    def _expire(self, now: float) -> None:
        for history in self._history.values():
            history.expire(now - self._retention)

    def _used(self) -> int:
        return sum(history.nbytes for history in self._history.values())

    def snapshot(self, tables: Iterable[str]) -> dict[str, list[Any]]:
        """The batches of these tables at one moment. `KeyError` for a name that is none."""
        with self._lock:
            return {name: list((self._history.get(name) or self._entities[name]).batches()) for name in tables}

    def status(self) -> list[TableStatus]:
        """Of each table, in the order of their names."""
        with self._lock:
            found = [
                TableStatus(name, one.rows, one.nbytes, None if one.oldest is None else int(one.oldest * 1e6), one.dropped)
                for name, one in self._history.items()
            ]
            found += [TableStatus(name, one.rows, one.nbytes, None, one.dropped) for name, one in self._entities.items()]
        return sorted(found)
