"""One table of entities: a row for each thing that lives, and of the last ones that have ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from monarch.telemetry._arrow import pa

# Ended entities that are kept, of each table.
ENDED = 10_000


class Entities:
    """Rows by their key, as mappings of column to value. Not for several threads at once."""

    def __init__(self, schema: Any, *, ended: int = ENDED) -> None:
        self.schema = schema
        self._most = ended
        self._living: dict[object, dict[str, Any]] = {}
        self._ended: OrderedDict[object, dict[str, Any]] = OrderedDict()
        self._batch: Any = None
        self.dropped = 0

    @property
    def rows(self) -> int:
        return len(self._living) + len(self._ended)

    @property
    def nbytes(self) -> int:
        """Of the columns as they were asked for last."""
        return 0 if self._batch is None else int(self._batch.get_total_buffer_size())

    def put(self, key: object, row: Mapping[str, Any], *, ended: bool = False) -> None:
        """Sets columns of an entity; those that are not named stay as they were. One that has ended lives no more, whatever comes later.

        `ValueError` for a column that the table does not have.
        """
        unknown = row.keys() - set(self.schema.names)
        if unknown:
            raise ValueError(f"the table has no column {sorted(unknown)[0]!r}")
        self._batch = None
        before = self._ended.get(key)
        if before is not None:
            before.update(row)
            return
        found = self._living.setdefault(key, {})
        found.update(row)
        if ended:
            self._ended[key] = self._living.pop(key)
            while len(self._ended) > self._most:
                self._ended.popitem(last=False)
                self.dropped += 1

    def drop(self, key: object) -> None:
        """Forgets an entity, whether it lives or not."""
        if self._living.pop(key, None) is not None or self._ended.pop(key, None) is not None:
            self._batch = None
            self.dropped += 1

    def get(self, key: object) -> Mapping[str, Any] | None:
        """The row of a key, for what refers to it."""
        return self._living.get(key) or self._ended.get(key)

    def batches(self) -> Sequence[Any]:
        """All rows as one batch, those that have ended first; none where there is no row. Made anew only when something has changed."""
        if not self.rows:
            return []
        if self._batch is None:
            rows = [*self._ended.values(), *self._living.values()]
            columns = [pa.array([row.get(field.name) for row in rows], type=field.type) for field in self.schema]
            self._batch = pa.record_batch(columns, schema=self.schema)
        return [self._batch]
