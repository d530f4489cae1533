"""Spans, put together from the rows of three tables as these come: what is known of a span, when it ended, and which trace it is of.

A span is finished with its `close` event; with its `exit` where neither another `enter` nor a `close` comes until the take after the next.
Spans that stay open are bounded by number: the oldest are dropped and counted.

Reserved fields of `fields_json`: `otel.kind` (internal, client, server, producer, consumer), `otel.status_code` (ok, error),
`otel.status_description`, and `otel.links`, a list of objects with `trace_id` and `span_id` in hexadecimal digits. A consumer, which is the
receiver of a cast, gets a link to the span that sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from monarch.telemetry._export.otlp_settings import Sampler
from monarch.telemetry._export.otlp_values import Attributes, made_trace_id, span_id, trace_id

_OPEN = 50_000
# Traces of ended spans: their children may end later.
_KNOWN = 100_000
_DEEPEST = 200
KINDS = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}


@dataclass(slots=True)
class Span:
    """A span; times in microseconds, ids as they are exported, `parent` 0 for an outermost one."""

    process: int
    number: int
    name: str = ""
    target: str = ""
    level: str = ""
    fields: dict[str, Any] | None = None
    thread: str = ""
    file: str | None = None
    line: int | None = None
    began_us: int | None = None
    ended_us: int | None = None
    closed: bool = False
    # process and number of the span around it
    around: tuple[int, int] | None = None
    trace: int = 0
    sampled: bool = False
    has_context: bool = False
    kind: int = 1
    parent: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether all of its rows are here."""
        return self.closed and bool(self.name) and self.began_us is not None


class Spans:
    """Open spans. `dropped` counts those that were dropped for room or had no beginning; one thread at a time."""

    def __init__(self, sampler: Sampler, attributes: Attributes, most: int = _OPEN) -> None:
        self.dropped = 0
        self._sampler = sampler
        self._attributes = attributes
        self._most = most
        self._open: dict[tuple[int, int], Span] = {}
        # Trace and choice, by process and number.
        self._known: dict[tuple[int, int], tuple[int, bool]] = {}
        # Ended spans, by the number of takes for which they have waited for late events.
        self._ended: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, table: str, batch: Any) -> None:
        """Rows of `spans`, `span_context` or `span_events`, in any order; rows of other tables are left out."""
        rows = {name: batch.column(name).to_pylist() for name in batch.schema.names} if table in _TABLES else {}
        if table == "spans":
            self._made(rows)
        elif table == "span_context":
            self._placed(rows)
        elif table == "span_events":
            self._happened(rows)
        while len(self._open) > self._most:
            key = next(iter(self._open))
            del self._open[key]
            self._ended.pop(key, None)
            self.dropped += 1

    def take(self) -> list[Span]:
        """Finished spans of exported traces; an outermost span before those in it, where both are finished."""
        found: list[Span] = []
        finished = [self._open[key] for key, waited in self._ended.items() if waited or self._open[key].is_complete]
        for span in sorted(finished, key=_began):
            if not span.name or span.began_us is None:
                self.dropped += 1
                continue
            trace, exported = self._trace(span)
            if not exported:
                continue
            span.trace = trace
            if span.around is not None:
                span.parent = span_id(*span.around)
            found.append(span)
        for span in finished:
            key = (span.process, span.number)
            del self._open[key], self._ended[key]
            self._known.setdefault(key, (span.trace, False))
        for key in self._ended:
            self._ended[key] += 1
        while len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]
        return found

    def _made(self, rows: dict[str, list[Any]]) -> None:
        columns = ("process_id", "id", "name", "target", "level", "fields_json", "timestamp_us", "parent_id", "thread_name", "file", "line")
        for process, number, name, target, level, fields, time_us, parent, thread, file, line in zip(
            *(rows[column] for column in columns), strict=True
        ):
            span = self._span(process, number)
            span.name, span.target, span.level, span.thread, span.file, span.line = name, target, level, thread, file, line
            parsed = self._attributes.parsed(fields)
            # Fields that are added to a span later are in another row.
            span.fields = parsed if span.fields is None else {**span.fields, **parsed}
            span.began_us = time_us if span.began_us is None else min(span.began_us, time_us)
            if parent and span.around is None:
                span.around = (process, parent)
            span.kind = KINDS.get(str(span.fields.get("otel.kind", "")).lower(), 1)

    def _placed(self, rows: dict[str, list[Any]]) -> None:
        columns = ("process_id", "span_id", "trace_id", "parent_process_id", "parent_span_id", "sampled")
        for process, number, trace, parent_process, parent, sampled in zip(*(rows[column] for column in columns), strict=True):
            span = self._span(process, number)
            span.trace, span.sampled = trace_id(trace), sampled
            span.has_context = span.trace != 0
            if parent:
                span.around = (parent_process or process, parent)

    def _happened(self, rows: dict[str, list[Any]]) -> None:
        for process, number, time_us, what in zip(
            *(rows[name] for name in ("process_id", "id", "timestamp_us", "event_type")), strict=True
        ):
            key = (process, number)
            if key not in self._open and key in self._known:
                continue  # the span was taken without this event
            span = self._span(process, number)
            if what == "enter":
                # An asynchronous span is entered again after an exit.
                if span.began_us is None or time_us < span.began_us:
                    span.began_us = time_us
                if not span.closed and span.ended_us is not None and time_us >= span.ended_us:
                    self._ended.pop(key, None)
            elif what in ("exit", "close"):
                if not span.closed:
                    span.ended_us = time_us if span.ended_us is None else max(span.ended_us, time_us)
                    span.closed = what == "close"
                self._ended[key] = 0

    def _span(self, process: int, number: int) -> Span:
        key = (process, number)
        found = self._open.get(key)
        if found is None:
            found = self._open[key] = Span(process, number)
        return found

    def _trace(self, span: Span) -> tuple[int, bool]:
        """The trace of a span, and whether it is exported: its own, that of a span around it, or one that begins with it."""
        inner: list[Span] = []
        here: Span | None = span
        found: tuple[int, bool] | None = None
        while here is not None and len(inner) < _DEEPEST:
            found = self._known.get((here.process, here.number))
            if found is None and here.has_context:
                found = here.trace, self._sampler.exports(here.trace, here.sampled)
            if found is not None:
                break
            inner.append(here)
            if here.around is None:
                break
            known = self._known.get(here.around)
            if known is not None:
                found = known
                break
            # Only a span that is present can name the trace: one of another process without a context starts a new one.
            here = self._open.get(here.around)
        if found is None:
            first = inner[-1]
            made = made_trace_id(first.process, first.number, first.began_us or 0)
            found = made, self._sampler.begins(made)
        for one in (span, *inner):
            self._known[(one.process, one.number)] = found
        return found


_TABLES = ("spans", "span_context", "span_events")


def _began(span: Span) -> int:
    return span.began_us or 0
