"""Rows of the table function `stacks()` and of the tables of stored dumps, as Arrow batches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from monarch.telemetry._stacks.frames import ProcStacks
from monarch.telemetry._stacks.result import Ok
from monarch.telemetry._tables import stacks as tables
from monarch.telemetry._tables.live import STACKS
from monarch.telemetry._tables.table import Table


def stack_rows(procs: Iterable[ProcStacks], host: str, mesh: str | None = None) -> Any:
    """A `pyarrow.RecordBatch` of the table function `stacks()`: a row for each frame of the procs, or of those of the mesh of this name.

    A thread without a frame and a proc without stacks have no row.
    """
    rows: list[tuple[object, ...]] = []
    for proc in procs:
        place = proc.place
        if mesh is not None and not place.is_of(mesh):
            continue
        # The proc of a mesh without dimensions is its rank 0.
        rank = None if place.mesh is None else place.rank or 0
        for thread in proc.threads:
            head = (host, proc.proc_id, proc.pid, place.mesh, rank, thread.thread_id, thread.name, thread.owns_gil)
            rows += [(*head, depth, frame.name, frame.filename, frame.line, proc.source) for depth, frame in enumerate(thread.frames)]
    return _batch(STACKS, rows)


def dump_rows(result: Ok, dump_id: str, proc_ref: str, timestamp_us: int) -> dict[str, Any]:
    """A `pyarrow.RecordBatch` for each of the tables `pyspy_*`, by its name. The time is in microseconds since the epoch."""
    warnings = json.dumps(list(result.warnings))
    dumps = [(dump_id, timestamp_us, result.pid, result.binary, proc_ref, result.mode, warnings)]
    traces: list[tuple[object, ...]] = []
    frames: list[tuple[object, ...]] = []
    values: list[tuple[object, ...]] = []
    for thread in result.stack_traces:
        key = (dump_id, thread.thread_id)
        traces.append((dump_id, result.pid, thread.thread_id, thread.name, thread.os_thread_id, bool(thread.active), bool(thread.owns_gil)))
        for depth, frame in enumerate(thread.frames):
            frames.append((*key, depth, frame.name, frame.filename, frame.module, frame.short_filename, frame.line, frame.is_entry))
            values += [(*key, depth, *one) for one in frame.locals or ()]
    return {table.name: _batch(table, rows) for table, rows in zip(tables.TABLES, (dumps, traces, frames, values), strict=True)}


def _batch(table: Table, rows: Sequence[tuple[object, ...]]) -> Any:
    from monarch.telemetry._arrow import pa

    schema = table.schema()
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
