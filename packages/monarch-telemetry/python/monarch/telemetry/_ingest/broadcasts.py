"""Which of the events of messages without a waiting caller begin a broadcast, and which are of one that goes on.

Such messages have no number of a call. The sender hands the messages of a broadcast over one after another on one thread, in the order of
the ranks of the shape that is addressed; before them goes the one cast to all of its receivers on other hosts. So an event goes on with
the broadcast of the one before it on its thread, where the part of the mesh, method, sender, size and span are the same and the rank is
a higher one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monarch.telemetry._arrow import pa, pc
from monarch.telemetry._ingest.ids import U64
from monarch.telemetry._ingest.rows import Rows

# A boolean column that `mark` adds: whether this event is the first one of its call or broadcast. It is true for all calls.
FIRST = "first"
_SAME = ("proc", "thread", "mesh", "offset", "dims", "method", "sender", "bytes", "trace")
_KINDS = ("message.sent", "cast.sent")
# The most threads whose last event is kept, and for how long: the events of a broadcast follow each other without a pause.
_MOST_THREADS, _PAUSE_US = 10_000, 10_000_000


class Broadcasts:
    """Not for several threads at once."""

    def __init__(self) -> None:
        # The last event of each thread, as a table with the columns of `_table`: its broadcast may continue in the next batch.
        self._last: Any = None

    def __len__(self) -> int:
        """Threads of which the last event is kept."""
        return 0 if self._last is None else int(self._last.num_rows)

    def mark(self, rows: Mapping[str, Rows]) -> dict[str, Rows]:
        """The events with the column `FIRST`."""
        marked = dict(rows)
        tables: list[Any] = [] if self._last is None else [self._last]
        places: list[tuple[str, Any]] = []
        for place, kind in enumerate(_KINDS, 1):
            if kind not in rows:
                continue
            one = rows[kind]
            alone = pc.equal(one["call"], U64[0])
            marked[kind] = Rows(one.count, {**one.columns, FIRST: pa.repeat(pa.scalar(True), one.count)})
            if pc.any(alone).as_py():
                few = one.where(alone)
                tables.append(_table(few, place, few["rank"].cast(pa.int64()) if kind == "message.sent" else None))
                places.append((kind, alone))
        if places:
            ordered = _ordered(tables)
            first = _begins(ordered)
            self._last = _lasts(ordered)
            for kind, alone in places:
                mine = pc.equal(ordered["place"], _KINDS.index(kind) + 1)
                # Restores the order of the events, which is not that of threads.
                back = pc.sort_indices(ordered["at"].filter(mine))
                columns = marked[kind].columns
                columns[FIRST] = pc.replace_with_mask(columns[FIRST], alone, first.filter(mine).take(back))
        return marked


def _table(rows: Rows, place: int, ranks: Any) -> Any:
    """`ranks` None: casts, which come before rank 0. `place` and `at` are the position of the event of a row."""
    columns = {name: rows[name] for name in (*_SAME, "number", "us")}
    columns["rank"] = pa.repeat(pa.scalar(-1, pa.int64()), rows.count) if ranks is None else ranks
    columns["place"] = pa.repeat(pa.scalar(place, pa.int64()), rows.count)
    columns["at"] = pa.array(range(rows.count), pa.int64())
    return pa.table(columns)


def _ordered(tables: list[Any]) -> Rows:
    joined = pa.concat_tables(tables).combine_chunks()
    order = pc.sort_indices(joined, sort_keys=[(name, "ascending") for name in ("proc", "thread", "number")])
    columns = {name: column.chunk(0).take(order) for name, column in zip(joined.column_names, joined.columns, strict=True)}
    return Rows(joined.num_rows, columns)


def _begins(ordered: Rows) -> Any:
    """Whether each event is the first one of its broadcast."""
    goes_on = pc.greater(ordered["rank"][1:], ordered["rank"][:-1])
    for name in _SAME:
        goes_on = pc.and_(goes_on, pc.fill_null(pc.equal(ordered[name][1:], ordered[name][:-1]), False))
    return pa.concat_arrays([pa.array([True]), pc.invert(goes_on)])


def _lasts(ordered: Rows) -> Any:
    """The last event of each thread that has sent lately, which is none of the next events: it has a place of its own."""
    ends = pc.or_(*(pc.not_equal(ordered[name][1:], ordered[name][:-1]) for name in ("proc", "thread")))
    newest = pc.max(ordered["us"]).as_py()
    is_late = pc.greater_equal(ordered["us"], pa.scalar(newest - _PAUSE_US, pa.int64()))
    kept = ordered.where(pc.and_(pa.concat_arrays([ends, pa.array([True])]), is_late))
    columns = {**kept.columns, "place": pa.repeat(pa.scalar(0, pa.int64()), kept.count)}
    return pa.table(columns).slice(max(0, kept.count - _MOST_THREADS))
