"""Spans of traced calls: one of the caller, and below it one of each actor that handles a message of the call.

The caller's span begins with its first `message.sent` or `cast.sent`, and ends with `call.done`. A message without a waiting caller has a
span that ends with its last receiver. The receiver's span is from `message.begun` to `message.handled`. Their numbers are W3C ids, which
are unique in the job: a parent in another process is found by its number. An ended span has its rows in the tables; the rows of an open
span are made for each query that reads them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from monarch.telemetry._arrow import pa, pc
from monarch.telemetry._ingest.activity import Ids, ids, traced
from monarch.telemetry._ingest.ids import mixed, mixed_columns
from monarch.telemetry._ingest.rows import Rows
from monarch.telemetry._tables.events import SPAN_EVENTS, SPANS
from monarch.telemetry._tables.facts import SPAN_CONTEXT

# The most spans without an end; beyond it, the oldest get rows without one.
_MOST_OPEN = 50_000
# The most spans whose numbers are remembered: a call to several receivers is sent several times, and spans of programs are inside of those
# of receivers.
_MOST_KNOWN = 20_000
_TARGET = "monarch"

Kind = Literal["client", "server", "producer", "consumer"]


@dataclass(slots=True)
class Call:
    """A span. `ended_us` is None while it is open, `failed` where that is not known."""

    proc: int
    span: int
    trace: str
    parent: int
    parent_proc: int | None
    kind: Kind
    mesh: int
    method: str
    thread: int
    began_us: int
    ended_us: int | None = None
    failed: bool | None = None
    description: str | None = None


class CallSpans:
    """Not for several threads at once. `names` has the names of meshes by their number."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        # Open spans: of callers by process and number of the call, mixed; of receivers by process and number of the span.
        self._calls: dict[int, Call] = {}
        self._served: dict[tuple[int, int], Call] = {}
        # By process and number of a span: whether it is that of a receiver.
        self._known: dict[tuple[int, int], bool] = {}
        # The last ends of calls. A thread may record the end of a call before another one records its send event.
        self._done: Rows | None = None

    def is_receiver(self, proc: int, span: int) -> bool:
        """Whether this is the span of an actor of this process that handles a message, or has handled it lately."""
        return self._known.get((proc, span), False)

    def batches(self, rows: Mapping[str, Rows]) -> dict[str, list[Any]]:
        """The rows of spans that end with these events, by table."""
        ended: list[Call] = []
        for row in _traced(rows.get("message.begun")):
            self._begin(row)
        ended.extend(self._sent(row for kind in ("message.sent", "cast.sent") for row in _traced(rows.get(kind))))
        for row in _traced(rows.get("message.handled")):
            call = self._served.pop((row["proc"], ids(row["trace"]).span), None)
            if call is not None:
                call.ended_us, call.failed = row["us"], bool(row["failed"])
                ended.append(call)
        before, self._done = self._done, rows.get("call.done")
        for done in (before, self._done):
            if done is not None:
                ended.extend(self._ended(done))
        ended.extend(self._given_up())
        return _batches(ended, self._names)

    def end(self, procs: Collection[int], us: int) -> dict[str, list[Any]]:
        """These processes have ended, and with them their open spans."""
        ended: list[Call] = []
        for key in [key for key, call in self._calls.items() if call.proc in procs]:
            ended.append(self._calls.pop(key))
        for key in [key for key in self._served if key[0] in procs]:
            ended.append(self._served.pop(key))
        for key in [key for key in self._known if key[0] in procs]:
            del self._known[key]
        return self._cut(ended, us, "the process has ended")

    def end_actors(self, actors: Collection[tuple[int, int]], us: int) -> dict[str, list[Any]]:
        """These actors have ended, by process and mesh, and with them what they were handling."""
        keys = [key for key, call in self._served.items() if (call.proc, call.mesh) in actors]
        return self._cut([self._served.pop(key) for key in keys], us, "the actor has ended")

    def _cut(self, ended: list[Call], us: int, description: str) -> dict[str, list[Any]]:
        for call in ended:
            call.ended_us, call.failed, call.description = max(us, call.began_us), True, description
        return _batches(ended, self._names)

    def __len__(self) -> int:
        """Spans that are open, and numbers of others that are remembered."""
        return len(self._calls) + len(self._served) + len(self._known)

    def open(self) -> dict[str, list[Any]]:
        """The rows of spans that have not ended."""
        return _batches([*self._served.values(), *self._calls.values()], self._names)

    def _begin(self, row: dict[str, Any]) -> None:
        found = ids(row["trace"])
        key = (row["proc"], found.span)
        self._know(key, is_receiver=True)
        parent = row["parent"]
        kind: Kind = "server" if row["call"] else "consumer"
        self._served[key] = _call(row, found, parent, row["peer"] if parent else None, kind)

    def _sent(self, rows: Iterable[dict[str, Any]]) -> Iterator[Call]:
        """Begins the spans of callers; those without a waiting caller end here, with the last of their messages."""
        alone: dict[tuple[int, int], Call] = {}
        for row in rows:
            found = ids(row["trace"])
            key, number, us = (row["proc"], found.span), mixed(row["proc"], row["call"]), row["us"]
            call = alone.get(key) if not row["call"] else self._calls.get(number)
            if call is not None and call.span == found.span:
                call.began_us = min(call.began_us, us)
                if call.ended_us is not None:
                    call.ended_us = max(call.ended_us, us)
            elif key not in self._known:
                self._know(key, is_receiver=False)
                parent = row["parent"]
                parent_proc = row["proc"] if parent and self.is_receiver(row["proc"], parent) else None
                if row["call"]:
                    self._calls[number] = _call(row, found, parent, parent_proc, "client")
                else:
                    call = alone[key] = _call(row, found, parent, parent_proc, "producer")
                    call.ended_us, call.failed = us, False
        yield from alone.values()

    def _ended(self, done: Rows) -> Iterator[Call]:
        if not self._calls:
            return
        open_calls = pa.array(self._calls.keys(), pa.uint64())
        numbers = mixed_columns(done["proc"], done["call"])
        mine = pc.is_in(numbers, value_set=open_calls)
        if not pc.any(mine).as_py():
            return
        columns = (numbers.filter(mine), done["us"].filter(mine), done["failed"].filter(mine))
        for number, us, failed in zip(*(column.to_pylist() for column in columns), strict=True):
            call = self._calls.pop(number, None)
            if call is not None:
                call.ended_us, call.failed = max(us, call.began_us), bool(failed)
                yield call

    def _given_up(self) -> Iterator[Call]:
        calls: dict[Any, Call]
        for calls in (self._calls, self._served):
            while len(calls) > _MOST_OPEN:
                yield calls.pop(next(iter(calls)))

    def _know(self, key: tuple[int, int], *, is_receiver: bool) -> None:
        self._known[key] = is_receiver
        while len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]


def _traced(rows: Rows | None) -> list[dict[str, Any]]:
    if rows is None:
        return []
    found = traced(rows)
    return rows.where(found).dicts() if pc.any(found).as_py() else []


def _call(row: dict[str, Any], found: Ids, parent: int, parent_proc: int | None, kind: Kind) -> Call:
    mesh, method = row["mesh"], row["method"] or ""
    return Call(row["proc"], found.span, found.trace, parent, parent_proc, kind, mesh, method, row["thread"], row["us"])


def _batches(calls: Collection[Call], names: Mapping[int, str]) -> dict[str, list[Any]]:
    spans: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    contexts: list[dict[str, Any]] = []
    for call in calls:
        mesh = names.get(call.mesh, "")
        spans.append(
            {
                "process_id": call.proc,
                "id": call.span,
                "name": f"{mesh}.{call.method}" if mesh else call.method,
                "target": _TARGET,
                "level": "info",
                "fields_json": json.dumps(_fields(call, mesh)),
                "timestamp_us": call.began_us,
                "parent_id": call.parent if call.parent_proc == call.proc and call.parent else None,
                "thread_name": str(call.thread),
            }
        )
        times = [("enter", call.began_us)]
        if call.ended_us is not None:
            times += [("exit", call.ended_us), ("close", call.ended_us)]
        events.extend({"process_id": call.proc, "id": call.span, "timestamp_us": us, "event_type": kind} for kind, us in times)
        contexts.append(
            {
                "process_id": call.proc,
                "span_id": call.span,
                "trace_id": call.trace,
                "parent_process_id": call.parent_proc,
                "parent_span_id": call.parent or None,
                "sampled": True,
            }
        )
    found = {SPANS: spans, SPAN_CONTEXT: contexts, SPAN_EVENTS: events}
    return {table.name: [pa.RecordBatch.from_pylist(rows, schema=table.schema())] for table, rows in found.items() if rows}


def _fields(call: Call, mesh: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"otel.kind": call.kind, "rpc.system": "monarch", "rpc.service": mesh, "rpc.method": call.method}
    if call.failed is not None:
        fields["otel.status_code"] = "error" if call.failed else "ok"
    if call.description is not None:
        fields["otel.status_description"] = call.description
    return fields
