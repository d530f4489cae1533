"""The parts that a host ran last: one that comes again over the same rows only runs, and a new one has the tables of the library already.

At most one state of a table is held: rows that have changed replace it, and end the plans over it. `forget` ends what was not asked since.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

# The most statements, each a session of some 100 KiB.
_MOST = 32
# The planner puts the value of these functions into the plan.
CLOCK = re.compile(r"\b(?:now|today|current_\w+|localtime\w*)\b", re.IGNORECASE)


class KnownParts:
    """Any thread. A part is held by one thread at a time, or waits here for the next one."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        # Rows as they were given, and the table of the library.
        self._tables: dict[str, tuple[Sequence[Any], Any]] = {}
        # By what was asked: the part, and the names of its tables.
        self._parts: OrderedDict[object, tuple[Any, tuple[str, ...]]] = OrderedDict()
        # The names of tables, and what was asked, since `forget`.
        self._used: set[object] = set()

    def table(self, name: str, batches: Sequence[Any]) -> Any:
        """The table of exactly these rows; None where it is not known."""
        with self._lock:
            if not self._has(name, batches):
                return None
            self._used.add(name)
            return self._tables[name][1]

    def keep(self, name: str, batches: Sequence[Any], table: Any) -> None:
        """Holds a table in the place of its earlier state."""
        with self._lock:
            self._drop(name)
            self._tables[name] = (tuple(batches), table)
            self._used.add(name)

    def take(self, asked: object, rows: Mapping[str, Sequence[Any]]) -> Any:
        """The part over these rows, which no other thread gets until it is given back; None where it is not known."""
        with self._lock:
            if asked not in self._parts or not all(self._has(name, batches) for name, batches in rows.items()):
                return None
            return self._parts.pop(asked)[0]

    def give(self, asked: object, rows: Mapping[str, Sequence[Any]], part: Any) -> None:
        """Holds a part over these rows, unless they have changed meanwhile."""
        with self._lock:
            if all(self._has(name, batches) for name, batches in rows.items()):
                self._parts[asked] = (part, tuple(rows))
                self._used.update((asked, *rows))
                if len(self._parts) > self._most:
                    self._parts.popitem(last=False)

    def forget(self) -> None:
        """Ends what was not used since the last call: rows that were dropped stay no longer than that."""
        with self._lock:
            used, self._used = self._used, set()
            for name in self._tables.keys() - used:
                self._drop(name)
            for asked in self._parts.keys() - used:
                del self._parts[asked]

    def _has(self, name: str, batches: Sequence[Any]) -> bool:
        held = self._tables.get(name, (None, None))[0]
        return held is not None and len(held) == len(batches) and all(one is other for one, other in zip(held, batches, strict=True))

    def _drop(self, name: str) -> None:
        self._tables.pop(name, None)
        for asked in [asked for asked, (_, names) in self._parts.items() if name in names]:
            del self._parts[asked]
