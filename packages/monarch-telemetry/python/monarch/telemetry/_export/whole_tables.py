"""Whole tables of an engine, asked for in pieces: the rows of captures and traces.

A question has limits, so that the process that answers it keeps its memory. A table beyond the limits is asked for by halves of its time
range, and each half again, until every piece is within them. Rows that no time range separates are cut, and the coverage states that the
answer is truncated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from monarch.telemetry._arrow import pa
from monarch.telemetry._asking import NO_SERVER, Answer, Asking
from monarch.telemetry._sql.coverage import Coverage, Missing
from monarch.telemetry._sql.limits import DEFAULT, Limits
from monarch.telemetry._tables.catalog import TABLES
from monarch.telemetry._tables.table import Table
from monarch.telemetry.errors import QueryError, QueryLimit, QueryTimeout, TelemetryError

# Limits of one question: the amount that a host transfers in some seconds, and a fraction of the memory of a process that trains a model.
LARGE = Limits(seconds=30.0, rows=1_000_000, bytes=256 << 20, memory=1 << 30)
# Columns that separate the rows of a table of history by time. Numbers of snapshots grow with time.
_TIMES = ("timestamp_us", "window_us", "snapshot_ts")
_SNAPSHOT = "snapshot_id"
# Seconds within which a server that did not answer has to return the time, before it is asked for more tables.
_ALIVE = 5.0
_NOW = """SELECT CAST(arrow_cast(now(), 'Timestamp(Microsecond, Some("+00:00"))') AS BIGINT) AS now"""


def now_us(engine: Asking, *, timeout: float | None = None) -> int:
    """The clock of the process that answers, in microseconds since the epoch. `timeout` is in seconds; the errors are those of `ask`."""
    return int(engine.ask(_NOW, timeout=timeout).table.column(0).to_pylist()[0])


class Tables:
    """Asks an engine for whole tables, one after the other. `large` are the limits of a question, where the token allows them: `LARGE`."""

    def __init__(self, engine: Asking, *, large: Limits | None = None) -> None:
        self._engine, self._limits = engine, LARGE if large is None else large

    def ask(self, name: str, *conditions: str, columns: Sequence[str] = ("*",)) -> Answer:
        """The rows of a table that meet all SQL conditions. `QueryError` and its kinds, `TelemetryError` without an engine."""
        try:
            return self._piece(name, conditions, columns)
        except QueryLimit:
            return _joined(list(self._pieces(name, conditions, columns)))

    def statement(self, sql: str) -> Answer:
        """The answer to one statement within the limits."""
        try:
            return self._engine.ask(sql, limits=self._limits)
        except QueryError:
            raise
        except TelemetryError:
            if self._limits == DEFAULT:
                raise
            # A token of the scope read has only the default limits; any other failure occurs again.
            answer = self._engine.ask(sql, limits=DEFAULT)
            self._limits = DEFAULT
            return answer

    def _piece(self, name: str, conditions: Sequence[str], columns: Sequence[str], end: str = "") -> Answer:
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return self.statement(f"SELECT {', '.join(columns)} FROM {name}{where}{end}")

    def _pieces(self, name: str, conditions: Sequence[str], columns: Sequence[str]) -> Iterator[Answer]:
        """The answers of parts of the time range, each within the limits."""
        column = _separating(TABLES[name])
        if column is None:
            yield self._cut(name, conditions, columns)
            return
        ends = self._piece(name, conditions, (f"min({column}) AS low", f"max({column}) AS high")).table.to_pylist()[0]
        if ends["low"] is None:  # the rows have been dropped in the meantime
            yield self._cut(name, conditions, columns)
            return
        waiting = [(ends["low"], ends["high"])]
        while waiting:
            low, high = waiting.pop()
            within = (*conditions, f"{column} BETWEEN {low} AND {high}")
            try:
                yield self._piece(name, within, columns)
            except QueryLimit:
                if low == high:
                    yield self._cut(name, within, columns)
                else:
                    middle = (low + high) // 2
                    waiting += [(middle + 1, high), (low, middle)]

    def _cut(self, name: str, conditions: Sequence[str], columns: Sequence[str]) -> Answer:
        """As many rows as the limits allow."""
        rows = self._limits.rows
        while True:
            try:
                answer = self._piece(name, conditions, columns, f" LIMIT {rows}")
            except QueryLimit:
                if rows <= 1:
                    raise
                rows //= 2
            else:
                return Answer(answer.table, answer.coverage._replace(truncated=answer.table.num_rows >= rows or answer.coverage.truncated))


def _separating(table: Table) -> str | None:
    names = {column.name for column in table.columns}
    return next((name for name in (*_TIMES, _SNAPSHOT) if name in names), None)


def _joined(answers: Sequence[Answer]) -> Answer:
    """The pieces as one: a host that is missing in any of them is missing."""
    missing: dict[str, Missing] = {one.host: one for answer in reversed(answers) for one in answer.coverage.missing}
    found = [answer.coverage for answer in answers]
    asked = max(one.hosts_asked for one in found)
    coverage = Coverage(
        asked,
        min(*(one.hosts_answered for one in found), asked - len(missing)),
        tuple(missing.values()),
        sum(one.rows_scanned for one in found),
        any(one.truncated for one in found),
        sum(one.elapsed_ms for one in found),
    )
    table: Any = pa.concat_tables([answer.table.replace_schema_metadata(None) for answer in answers])
    return Answer(coverage.on(table), coverage)


def stored(engine: Asking, *, since_us: int | None, note: Callable[[str], None]) -> Iterator[tuple[str, Answer]]:
    """All tables of a job by name, each asked for when it is taken; with `since_us`, of history only the rows from then on.

    Entities are there whenever they began: rows of history refer to them. A table that cannot be had is left out, with a sentence to
    `note`. `TelemetryError` where the engine cannot be reached, `QueryTimeout` where its process does not answer at all, and the last
    `QueryError` where it has no table at all.
    """
    tables = Tables(engine)
    first = None if since_us is None else _first_snapshot(tables, since_us)
    error: QueryError | None = None
    has_any = False
    for name, table in TABLES.items():
        if table.function:
            continue
        try:
            answer = tables.ask(name, *_from(table, since_us, first))
        except QueryError as raised:
            if isinstance(raised, QueryTimeout) and raised.stage == NO_SERVER:
                now_us(engine, timeout=_ALIVE)
            error = raised
            note(f"table {name} is left out: {str(raised).partition(chr(10))[0]}")
            continue
        has_any = True
        yield name, answer
    if error is not None and not has_any:
        raise error


def _first_snapshot(tables: Tables, since_us: int) -> int | None:
    found = tables.statement(f"SELECT min(snapshot_id) AS low, max(snapshot_id) AS high FROM snapshots WHERE snapshot_ts >= {since_us}")
    low: int | None = found.table.column("low").to_pylist()[0]
    return low


def _from(table: Table, since_us: int | None, snapshot: int | None) -> tuple[str, ...]:
    """The conditions for the rows of a table from a time on."""
    column = _separating(table)
    if since_us is None or table.retention != "history" or column is None:
        return ()
    if column == _SNAPSHOT:
        # Without a snapshot after that time, no row is needed.
        return ("false",) if snapshot is None else (f"{column} >= {snapshot}",)
    return (f"{column} >= {since_us}",)
