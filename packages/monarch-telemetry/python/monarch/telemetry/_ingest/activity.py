"""What programs record: spans, events, and lines of logs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from monarch.telemetry._arrow import pa, pc
from monarch.telemetry._ingest.ids import U64
from monarch.telemetry._ingest.places import Places
from monarch.telemetry._ingest.rows import Rows, repeated, text
from monarch.telemetry._tables.events import EVENTS, SPAN_EVENTS, SPANS
from monarch.telemetry._tables.facts import LOGS, SPAN_CONTEXT

_LEVELS = {10: "debug", 20: "info", 30: "warn", 40: "error", 50: "error"}
_NO_TRACE = bytes(16)


class Ids(NamedTuple):
    """Trace (32 hexadecimal digits) and span of an event."""

    trace: str
    span: int


def ids(trace: bytes) -> Ids:
    """Of the 24 bytes of an event, three numbers: the high and the low half of the trace, and the span."""
    return Ids(trace_id(trace), int.from_bytes(trace[16:24], "little"))


def trace_id(trace: bytes) -> str:
    """The 32 hexadecimal digits of a trace: two numbers of 64 bits, the high one first."""
    return f"{int.from_bytes(trace[:8], 'little'):016x}{int.from_bytes(trace[8:16], 'little'):016x}"


def traced(rows: Rows) -> Any:
    """A column of booleans: which events belong to a trace."""
    return pc.not_equal(pc.binary_slice(rows["trace"], 0, 16), pa.scalar(_NO_TRACE))


def _none_is(proc: int, span: int) -> bool:
    return False


def span_batches(rows: Mapping[str, Rows], is_receiver: Callable[[int, int], bool] = _none_is) -> dict[str, list[Any]]:
    """Rows of `spans`, `span_events` and `span_context`, of the spans of programs.

    An outermost one lies in the span of the message that its actor handles, where `is_receiver` knows that one by process and number.
    """
    found: dict[str, list[Any]] = {"spans": [], "span_events": [], "span_context": []}
    if "span.enter" in rows:
        entered = rows["span.enter"]
        n = entered.count
        found["spans"].append(
            _batch(
                SPANS,
                entered["proc"],
                entered["span"],
                entered["name"],
                repeated("", pa.string(), n),
                repeated("info", pa.string(), n),
                _json(entered["fields"]),
                entered["us"],
                _around(entered, is_receiver),
                pc.cast(entered["thread"], pa.string()),
                pa.nulls(n, pa.string()),
                pa.nulls(n, pa.int32()),
            )
        )
        found["span_events"].append(_batch(SPAN_EVENTS, entered["proc"], entered["span"], entered["us"], repeated("enter", pa.string(), n)))
        found["span_context"].extend(_contexts(entered, is_receiver))
    if "span.exit" in rows:
        left = rows["span.exit"]
        for kind in ("exit", "close"):
            found["span_events"].append(
                _batch(SPAN_EVENTS, left["proc"], left["span"], left["us"], repeated(kind, pa.string(), left.count))
            )
    return found


def _around(entered: Rows, is_receiver: Callable[[int, int], bool]) -> Any:
    inner = _or_null(entered["parent"])
    outermost = pc.and_(pc.is_null(inner), traced(entered))
    if not pc.any(outermost).as_py():
        return inner
    few = entered.where(outermost)
    spans = [ids(trace).span for trace in few["trace"].to_pylist()]
    known = [span if is_receiver(proc, span) else None for proc, span in zip(few["proc"].to_pylist(), spans, strict=True)]
    return pc.replace_with_mask(inner, outermost, pa.array(known, pa.uint64()))


def _contexts(entered: Rows, is_receiver: Callable[[int, int], bool]) -> list[Any]:
    of_traces = traced(entered)
    if not pc.any(of_traces).as_py():
        return []
    rows: list[dict[str, Any]] = []
    for row in entered.where(of_traces).dicts():
        found = ids(row["trace"])
        is_here = bool(row["parent"]) or is_receiver(row["proc"], found.span)
        rows.append(
            {
                "process_id": row["proc"],
                "span_id": row["span"],
                "trace_id": found.trace,
                "parent_process_id": row["proc"] if is_here else None,
                "parent_span_id": row["parent"] or found.span or None,
                "sampled": True,
            }
        )
    return [pa.RecordBatch.from_pylist(rows, schema=SPAN_CONTEXT.schema())]


def _spans_of(rows: Rows) -> tuple[Any, Any]:
    """Columns of the trace and the span that each event belongs to, null for none."""
    if not pc.any(traced(rows)).as_py():
        return pa.nulls(rows.count, pa.string()), pa.nulls(rows.count, pa.uint64())
    found = [ids(trace) if any(trace[:16]) else None for trace in rows["trace"].to_pylist()]
    traces = pa.array([None if one is None else one.trace for one in found], pa.string())
    return traces, pa.array([None if one is None else one.span or None for one in found], pa.uint64())


def event_batch(recorded: Rows) -> Any:
    """Rows of `events`, of events that programs have recorded."""
    n = recorded.count
    thread = pc.cast(recorded["thread"], pa.uint64())
    return _batch(
        EVENTS,
        recorded["name"],
        repeated("user", pa.string(), n),
        repeated("info", pa.string(), n),
        _json(recorded["fields"]),
        recorded["us"],
        _spans_of(recorded)[1],
        thread,
        pc.cast(thread, pa.string()),
        pa.nulls(n, pa.string()),
        pa.nulls(n, pa.string()),
        pa.nulls(n, pa.int32()),
    )


def error_batch(what: str, error: Exception, now_us: int) -> Any:
    """The row of an error of telemetry itself."""
    import json
    import threading
    import traceback

    place = traceback.extract_tb(error.__traceback__)[-1]
    row = {
        "name": "telemetry.error",
        "target": "monarch.telemetry",
        "level": "error",
        "fields_json": json.dumps({"writing": what, "error": f"{type(error).__name__}: {error}"}),
        "timestamp_us": now_us,
        "thread_id": threading.get_native_id(),
        "thread_name": threading.current_thread().name,
        "module_path": place.name,
        "file": place.filename,
        "line": place.lineno,
    }
    return pa.RecordBatch.from_pylist([row], schema=EVENTS.schema())


class Logs:
    """Rows of `logs`; `host` is the name of this one."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._seq = itertools.count()
        # Lines that were overwritten before they were read.
        self.lost = 0

    def batches(self, rows: Mapping[str, Rows], places: Places) -> list[Any]:
        """The lines that procs have printed, the records of `logging`, and the runtime's own log."""
        makers: dict[str, Callable[[Rows, Places], Any]] = {
            "output.line": self._printed,
            "log.record": self._records,
            "log.line": self._runtime,
        }
        found: list[Any] = []
        for kind, make in makers.items():
            if kind in rows:
                new, column = rows[kind], "fields" if kind == "log.line" else "line"
                if new[column].null_count:
                    self.lost += new[column].null_count
                    new = new.where(pc.is_valid(new[column]))
                if new.count:
                    found.append(make(new, places))
        return found

    def _printed(self, rows: Rows, places: Places) -> Any:
        return self._batch(rows, rows["peer"], places, None, rows["stream"], None, None, rows["line"])

    def _records(self, rows: Rows, places: Places) -> Any:
        return self._batch(rows, rows["proc"], places, rows["actor"], "logging", _levels(rows["level"]), rows["logger"], rows["line"])

    def _runtime(self, rows: Rows, places: Places) -> Any:
        fields = text(rows["fields"])
        lines = pc.if_else(pc.equal(fields, ""), rows["name"], pc.binary_join_element_wise(rows["name"], fields, " "))
        return self._batch(rows, rows["proc"], places, None, "system", _levels(rows["level"]), rows["name"], lines)

    def _batch(self, rows: Rows, procs: Any, places: Places, actors: Any, stream: Any, level: Any, logger: Any, line: Any) -> Any:
        n = rows.count
        at = places.columns(procs, actors)
        traces, spans = _spans_of(rows)
        return _batch(
            LOGS,
            rows["us"],
            pa.array(itertools.islice(self._seq, n), pa.uint64(), size=n),
            repeated(self._host, pa.string(), n),
            at.proc,
            at.pid,
            at.mesh_name,
            at.rank,
            at.actor_id,
            stream if not isinstance(stream, str) else repeated(stream, pa.string(), n),
            pa.nulls(n, pa.string()) if level is None else level,
            pa.nulls(n, pa.string()) if logger is None else logger,
            line,
            traces,
            spans,
        )


def _levels(numbers: Any) -> Any:
    distinct = pc.unique(numbers)
    names = pa.array([_level(number) for number in distinct.to_pylist()], pa.string())
    return names.take(pc.index_in(numbers, value_set=distinct))


def _level(number: int) -> str:
    return _LEVELS.get(number // 10 * 10, "error" if number > 50 else "trace")


def _json(fields: Any) -> Any:
    filled = text(fields)
    return pc.if_else(pc.equal(filled, ""), "{}", filled)


def _or_null(ids: Any) -> Any:
    return pc.if_else(pc.equal(ids, U64[0]), None, ids)


def _batch(table: Any, *columns: Any) -> Any:
    schema = table.schema()
    filled = [
        text(column) if field.type == pa.string() and not field.nullable else column for field, column in zip(schema, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(filled, schema=schema)
