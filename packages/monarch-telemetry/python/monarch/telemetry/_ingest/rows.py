"""The events of one type, from the batches of several processes, as Arrow columns: fields, and the process of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from monarch.extension.events import Batch
from monarch.telemetry._arrow import pa, pc

_FORMATS = {"Q": pa.uint64(), "q": pa.int64(), "I": pa.uint32(), "d": pa.float64()}
_TRACE_BYTES = 24
# Events that describe a process, its meshes and its actors: known whenever these started.
_INTRODUCE = frozenset({"proc.start", "mesh.made", "actor.start"})


@dataclass(frozen=True, slots=True)
class Rows:
    """`columns` has the fields, `proc` (uint64), `number`, `thread`, `trace`, and `us`: microseconds since the epoch."""

    count: int
    columns: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def where(self, mask: Any) -> Rows:
        """The rows where this column of booleans is true."""
        batch = pa.RecordBatch.from_arrays(list(self.columns.values()), list(self.columns)).filter(mask)
        return Rows(batch.num_rows, dict(zip(self.columns, batch.columns, strict=True)))

    def dicts(self) -> list[dict[str, Any]]:
        """Row by row, for types of which there are few."""
        return pa.RecordBatch.from_arrays(list(self.columns.values()), list(self.columns)).to_pylist()


class Part(NamedTuple):
    """Events of one type in a batch, not yet joined with others."""

    kind: str
    rows: int
    columns: dict[str, Any]


def parts_of(batch: Batch) -> list[Part]:
    """The events of a batch by their type, as columns that view its memory; types of a later version are left out."""
    texts: Any = None
    found: list[Part] = []
    for kind, events in batch.columns.items():
        if events.type is None:
            continue
        if texts is None:
            offsets, data = batch.texts.offsets, batch.texts.data
            texts = pa.Array.from_buffers(pa.string(), len(batch.texts), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        columns = {name: _column(view, events.rows, texts) for name, view in events.items()}
        _name_processes(columns, int(batch.proc), events.rows)
        found.append(Part(kind, events.rows, columns))
    return found


def _name_processes(columns: dict[str, Any], proc: int, rows: int) -> None:
    """`proc` is the process that recorded; the one that a field of this name is about is `peer`."""
    if "proc" in columns:
        columns["peer"] = columns["proc"]
    columns["proc"] = pa.repeat(pa.scalar(proc, pa.uint64()), rows)


def _column(view: Any, rows: int, texts: Any) -> Any:
    form = view.format
    if form == "B":
        return pa.Array.from_buffers(pa.binary(_TRACE_BYTES), rows, [None, pa.py_buffer(view)])
    if form == "i":
        numbers = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(view)])
        if pc.min(numbers).as_py() < 0:
            numbers = pc.if_else(pc.less(numbers, 0), None, numbers)
        return texts.take(numbers)
    return pa.Array.from_buffers(_FORMATS[form], rows, [None, pa.py_buffer(view)])


def newer(parts: Sequence[Part], since_ns: int) -> list[Part]:
    """Without events before this time, in nanoseconds since the epoch; those that introduce a process stay."""
    found: list[Part] = []
    for one in parts:
        times = one.columns["time"]
        if one.kind not in _INTRODUCE and pc.min(times).as_py() < since_ns:
            batch = pa.RecordBatch.from_arrays(list(one.columns.values()), list(one.columns))
            kept = batch.filter(pc.greater_equal(times, since_ns))
            if not kept.num_rows:
                continue
            one = Part(one.kind, kept.num_rows, dict(zip(one.columns, kept.columns, strict=True)))
        found.append(one)
    return found


def joined(parts: Sequence[Part]) -> dict[str, Rows]:
    """Parts of several batches, by type, in the order in which they came."""
    by_kind: dict[str, list[Part]] = {}
    for part in parts:
        by_kind.setdefault(part.kind, []).append(part)
    found: dict[str, Rows] = {}
    for kind, same in by_kind.items():
        names = same[0].columns
        columns = {name: pa.concat_arrays([part.columns[name] for part in same]) if len(same) > 1 else names[name] for name in names}
        columns["us"] = pc.divide(columns.pop("time"), 1000)
        found[kind] = Rows(sum(part.rows for part in same), columns)
    return found


def text(column: Any, otherwise: str = "") -> Any:
    """A column of texts, with this one for those that were overwritten before they were read."""
    return pc.fill_null(column, otherwise) if column.null_count else column


def repeated(value: Any, kind: Any, rows: int) -> Any:
    """A column with the same value in each row; None is null."""
    return pa.nulls(rows, kind) if value is None else pa.repeat(pa.scalar(value, kind), rows)
