"""The engine as programs have it: statements in, Arrow tables out."""

from __future__ import annotations

from typing import Any

from monarch.telemetry._arrow import pa
from monarch.telemetry._asking import Asking, checked_timeout
from monarch.telemetry._engine.turns import OF_USER, Turns
from monarch.telemetry._sql.limits import DEFAULT, Limits

# For an answer that is read batch by batch: the most rows and bytes of one answer do not limit it.
_ENDLESS = DEFAULT._replace(rows=1 << 62, bytes=1 << 62)


class QueryEngine:
    """Answers SQL over all processes of the job: docs/sql.md has the tables. Any thread."""

    __module__ = "monarch.telemetry"

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._turns = Turns(OF_USER)

    def query(self, sql: str, *, timeout: float | None = None) -> Any:
        """The answer as a `pyarrow.Table`; `table.schema.metadata[b"coverage"]` states as JSON which hosts have answered.

        `timeout` is in seconds, 10 by default and 600 at most; hosts have four fifths of it. `QueryError` for a statement that is wrong,
        `QueryRejected` for one that does anything but read, `QueryLimit` for an answer of more than 100,000 rows or 64 MiB,
        `QueryTimeout` where no host has answered in time. Two queries run at a time; others wait for them, within their time.
        """
        return self._ask(sql, timeout, DEFAULT)

    def query_stream(self, sql: str) -> Any:
        """The answer as a `pyarrow.RecordBatchReader`, without a limit of rows and bytes."""
        table = self._ask(sql, None, _ENDLESS)
        return pa.RecordBatchReader.from_batches(table.schema, table.to_batches())

    def _ask(self, sql: object, timeout: float | None, limits: Limits) -> Any:
        checked = _checked(sql)
        seconds = limits.seconds if timeout is None else checked_timeout(timeout, "query")
        # The limit of the default is for questions without their own time.
        limits = limits._replace(seconds=max(seconds, limits.seconds))
        with self._turns.turn(seconds) as left:
            return self._asking.ask(checked, timeout=left, limits=limits).table


def _checked(sql: object) -> str:
    if not isinstance(sql, str):
        raise TypeError(f"query({sql!r}): expected a statement, a str, not {type(sql).__name__}")
    return sql
