"""One table of entities: a row for each thing that lives, and of the last ones that have ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from monarch.telemetry._arrow import pa

# The most ended entities that are kept per table.
ENDED = 10_000


class Entities:
    """Rows by their key, as mappings of column to value. Not for several threads at once.

    A row is a list in the order of the columns, which has a third of the memory of a mapping; None is a column that was not set.
    """

    def __init__(self, schema: Any, *, ended: int = ENDED) -> None:
        self.schema = schema
        self._most = ended
        self._names: list[str] = schema.names
        self._places = {name: place for place, name in enumerate(self._names)}
        self._living: dict[object, list[Any]] = {}
        self._ended: OrderedDict[object, list[Any]] = OrderedDict()
        # The last value of each column: names, classes and shapes often equal those of the row before, and then share the object.
        self._last: list[Any] = [None] * len(self._names)
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
        """Sets columns of an entity; those that are not named stay as they were. An ended entity stays ended, whatever rows follow.

        `ValueError` for a column that the table does not have.
        """
        unknown = row.keys() - self._places.keys()
        if unknown:
            raise ValueError(f"the table has no column {sorted(unknown)[0]!r}")
        self._batch = None
        before = self._ended.get(key)
        if before is not None:
            self._set(before, row)
            return
        found = self._living.get(key)
        if found is None:
            found = self._living[key] = [None] * len(self._names)
        self._set(found, row)
        if ended:
            self._ended[key] = self._living.pop(key)
            while len(self._ended) > self._most:
                self._ended.popitem(last=False)
                self.dropped += 1

    def _set(self, found: list[Any], row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            place = self._places[name]
            last = self._last[place]
            found[place] = self._last[place] = last if type(last) is type(value) and last == value else value

    def drop(self, key: object) -> None:
        """Forgets an entity, whether it lives or not."""
        if self._living.pop(key, None) is not None or self._ended.pop(key, None) is not None:
            self._batch = None
            self.dropped += 1

    def get(self, key: object) -> Mapping[str, Any] | None:
        """The row of a key, for what refers to it: its columns that were set."""
        found = self._living.get(key) or self._ended.get(key)
        return None if found is None else {name: value for name, value in zip(self._names, found, strict=True) if value is not None}

    def batches(self) -> Sequence[Any]:
        """All rows as one batch, those that have ended first; none where there is no row. Made anew only when something has changed."""
        if not self.rows:
            return []
        if self._batch is None:
            rows = [*self._ended.values(), *self._living.values()]
            # One column at a time: `zip(*rows)` would hold all of them as objects at once.
            columns = [pa.array([row[place] for row in rows], type=field.type) for place, field in enumerate(self.schema)]
            self._batch = pa.record_batch(columns, schema=self.schema)
        return [self._batch]
