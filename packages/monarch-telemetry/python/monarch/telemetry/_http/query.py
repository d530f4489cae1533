"""Statements of clients: their limits, pages of JSON, and Arrow streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from monarch.telemetry._arrow import pa
from monarch.telemetry._asking import Answer
from monarch.telemetry._http.calls import Call, Handler, Reply
from monarch.telemetry._http.cursors import Cursors
from monarch.telemetry._http.json_parts import batches, document, reply
from monarch.telemetry._http.json_rows import coverage
from monarch.telemetry._http.models import QueriesAnswer, QueryRow
from monarch.telemetry._http.parts import need
from monarch.telemetry._http.problems import Problem
from monarch.telemetry._http.routes import ARROW, QUERY_SECONDS
from monarch.telemetry._sql.coverage import Coverage
from monarch.telemetry._sql.limits import DEFAULT, Limits

# The rows of a page, unless the request has another number, and its bytes in Arrow; JSON has about three times as many.
PAGE_ROWS, PAGE_BYTES = 10_000, 8 << 20
# The largest limits that an administrator may request.
MOST = Limits(seconds=QUERY_SECONDS, rows=10_000_000, bytes=1 << 30)
_BATCH_ROWS = 16_384


def run(call: Call) -> Reply:
    """`POST /v1/query`."""
    body = call.body
    cursors = call.state.cursors
    if cursor := body.get("cursor"):
        kept = cursors.take(cursor, body["sql"], call.caller.scope)
        return _page(call, cursors, kept.table, kept.coverage, kept.at)
    limits = _limits(call)
    answer = call.parts.engine.ask(
        body["sql"], timeout=min(limits.seconds, call.remaining), require_all=bool(body.get("require_all")), limits=limits
    )
    if ARROW in call.accept:
        return Reply(_stream(answer), ARROW)
    return _page(call, cursors, answer.table, answer.coverage, 0)


def _limits(call: Call) -> Limits:
    """What the request asks for, within what its scope may have."""
    body = call.body
    wanted = {"seconds": body.get("timeout_s"), "rows": body.get("max_rows"), "bytes": body.get("max_bytes")}
    limits = DEFAULT
    names = {"seconds": "timeout_s", "rows": "max_rows", "bytes": "max_bytes"}
    for name, value in wanted.items():
        if value is None:
            continue
        if value <= 0:
            raise Problem.bad_request(f"{names[name]} is greater than 0")
        if value > getattr(MOST, name):
            raise Problem.bad_request(f"{names[name]} is at most {getattr(MOST, name):,}")
        if value > getattr(DEFAULT, name):
            call.need_admin(f"{names[name]} above {getattr(DEFAULT, name):,}")
        limits = limits._replace(**{name: value})
    # Memory for the returned rows.
    return limits._replace(memory=max(limits.memory, 4 * limits.bytes)) if limits.bytes > DEFAULT.bytes else limits


def _page(call: Call, cursors: Cursors, table: Any, found: Coverage, at: int) -> Reply:
    rows_at_once = call.body.get("page_rows", PAGE_ROWS)
    if not 0 < rows_at_once <= MOST.rows:
        raise Problem.bad_request(f"page_rows is from 1 to {MOST.rows:,}")
    left = table.num_rows - at
    if left > 0 and table.nbytes:
        rows_at_once = min(rows_at_once, max(1, PAGE_BYTES * table.num_rows // table.nbytes))
    rest: dict[str, Any] = {"coverage": coverage(found)}
    if left > rows_at_once:
        cursor = cursors.keep(call.body["sql"], call.caller.scope, table, found, at + rows_at_once)
        if cursor is None:
            raise Problem.bad_request(f"the answer has {table.nbytes:,} bytes: take Accept: {ARROW}")
        rest["cursor"] = cursor
    return reply(document({"rows": batches(table.slice(at, rows_at_once))}, rest))


class _Sink:
    """Takes what the writer of a stream writes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def flush(self) -> None:
        pass

    def take(self) -> bytes:
        found = b"".join(self._parts)
        self._parts.clear()
        return found


def _stream(answer: Answer) -> Iterator[bytes]:
    """An Arrow stream, a batch at a time; the coverage is in the metadata of its schema."""
    sink = _Sink()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), answer.table.schema) as writer:
        yield sink.take()
        for batch in answer.table.to_batches(max_chunksize=_BATCH_ROWS):
            writer.write_batch(batch)
            yield sink.take()
    yield sink.take()


def dashboard(call: Call) -> Reply:
    """`POST /api/query`: all rows at once."""
    answer = call.ask(call.body["sql"], limits=DEFAULT)
    return reply(document({"rows": batches(answer.table, ids_as_text=True)}, {"coverage": coverage(answer.coverage)}))


def queries(call: Call) -> QueriesAnswer:
    """`GET /v1/queries`."""
    found: Sequence[QueryRow] = need(call.parts.queries, "the queries in progress")()
    return {"queries": [QueryRow({**row, "sql": call.state.masking.text(row["sql"])}) for row in found]}


HANDLERS: dict[str, Handler] = {"query": run, "api_query": dashboard, "queries": queries}
