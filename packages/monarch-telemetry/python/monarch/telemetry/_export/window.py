"""The rows of a time window from a running job, and the Perfetto trace that is made of them.

Messages and spans that have begun before the window are part of it: of those that began at most a window earlier all rows are asked for,
of earlier ones only those that have not ended by then, the last ones first.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from monarch.telemetry._asking import Answer, Asking
from monarch.telemetry._export import perfetto
from monarch.telemetry._export.perfetto_packets import Packets
from monarch.telemetry._export.whole_file import whole_file
from monarch.telemetry._export.whole_tables import Tables
from monarch.telemetry.errors import QueryLimit, QueryTimeout, TelemetryError

_ENTITIES = ("hosts", "procs", "meshes", "actors")
_IN_WINDOW = ("events", "failures", "resources")
_BEGUN = ("messages", "sent_messages", "message_status_events", "spans", "span_events")
# Microseconds before the window for which all rows are requested.
_LEAST_BEFORE, _MOST_BEFORE = 1_000_000, 60_000_000
# The most messages and spans that started earlier: enough for an endpoint of each of some thousand actors.
_MOST_EARLIER = 4000
# The most numbers in one statement, within its 16 KiB.
_NUMBERS = 500
_EARLIER_MESSAGES = """SELECT message_id AS id, max(timestamp_us) AS at FROM message_status_events WHERE timestamp_us < {before}
GROUP BY message_id HAVING bool_or(status = 'active') AND NOT bool_or(status IN ('complete', 'failed')) ORDER BY at DESC LIMIT {most}"""
_EARLIER_SPANS = """SELECT process_id, id, max(timestamp_us) AS at FROM span_events WHERE timestamp_us < {before}
GROUP BY process_id, id HAVING NOT bool_or(event_type = 'close')
AND sum(CASE event_type WHEN 'enter' THEN 1 WHEN 'exit' THEN -1 ELSE 0 END) > 0 ORDER BY at DESC LIMIT {most}"""
_NO_OFFSETS: Mapping[str, int] = {}


class _Window:
    """The rows by table, and how they were had."""

    def __init__(self, engine: Asking, since_us: int, until_us: int) -> None:
        self._tables = Tables(engine)
        self._since, self._until = since_us, until_us
        self._before = max(since_us - min(max(until_us - since_us, _LEAST_BEFORE), _MOST_BEFORE), 0)
        self.rows: dict[str, list[Any]] = {}
        self.missing: dict[str, str] = {}
        self.truncated: list[str] = []
        self.notes: list[str] = []

    def take(self) -> None:
        inside = f"timestamp_us BETWEEN {self._since} AND {self._until}"
        for name in _ENTITIES:
            self._ask(name)
        for name in _IN_WINDOW:
            self._ask(name, inside)
        # A trace has only lines of these levels, and a job has many others.
        self._ask("logs", inside, "lower(level) IN ('error', 'critical', 'fatal')")
        for name in _BEGUN:
            self._ask(name, f"timestamp_us BETWEEN {self._before} AND {self._until}")
        self._earlier("messages", _EARLIER_MESSAGES, {"messages": "id", "message_status_events": "message_id"})
        self._earlier("spans", _EARLIER_SPANS, {"spans": "id", "span_events": "id"})

    def _earlier(self, what: str, sql: str, columns: Mapping[str, str]) -> None:
        """What began before all that has been asked for, and had not ended then."""
        try:
            found = self._noted(what, self._tables.statement(sql.format(before=self._before, most=_MOST_EARLIER)))
        except (QueryLimit, QueryTimeout) as error:
            self.notes.append(f"{what} that began long before the window are left out: {str(error).partition(chr(10))[0]}")
            return
        for numbers in _some({row["id"] for row in found.to_pylist()}):
            for name, column in columns.items():
                self._ask(name, f"timestamp_us < {self._before}", f"{column} IN ({', '.join(map(str, numbers))})")

    def _ask(self, name: str, *conditions: str) -> None:
        table = self._noted(name, self._tables.ask(name, *conditions))
        self.rows.setdefault(name, []).extend(table.replace_schema_metadata(None).to_batches())

    def _noted(self, name: str, answer: Answer) -> Any:
        for one in answer.coverage.missing:
            self.missing.setdefault(one.host, one.reason)
        if answer.coverage.truncated and name not in self.truncated:
            self.truncated.append(name)
        return answer.table


def _some(numbers: set[int]) -> Iterator[Sequence[int]]:
    ordered = sorted(numbers)
    for at in range(0, len(ordered), _NUMBERS):
        yield ordered[at : at + _NUMBERS]


def check(output: str | os.PathLike[str] | None = None) -> None:
    """`TelemetryError` where the library of traces is missing, or no file can be at `output`: known before a time is recorded in vain."""
    Packets(io.BytesIO())
    if output is not None:
        _check_target(Path(output))


def _check_target(path: Path) -> None:
    if path.is_dir():
        raise TelemetryError(f"{path} is a directory", hint="give the name of a file in it")
    if not path.parent.is_dir():
        raise TelemetryError(f"{path} cannot be written: {path.parent} is no directory")


def write_trace(engine: Asking, path: str | os.PathLike[str], since_us: int, until_us: int) -> list[str]:
    """Writes the trace of a window of a job, in microseconds since the epoch, to a file; sentences about what it lacks.

    `QueryError` and its kinds where the rows cannot be had; `TelemetryError` where the file cannot be written.
    """
    window = _Window(engine, since_us, until_us)
    window.take()
    write_rows(path, window.rows, since_us=since_us, until_us=until_us)
    missing = [f"{host} is missing from the trace: {reason}" for host, reason in window.missing.items()]
    cut = [f"rows of table {name} are missing: there were too many" for name in window.truncated]
    return [*missing, *cut, *window.notes]


def write_rows(
    path: str | os.PathLike[str],
    rows: Mapping[str, Sequence[Any]],
    *,
    since_us: int | None = None,
    until_us: int | None = None,
    offsets_us: Mapping[str, int] = _NO_OFFSETS,
) -> None:
    """Writes the trace of these rows to a file, which appears whole or not at all, readable for its owner only. `TelemetryError`."""
    _written(os.fspath(path), lambda file: perfetto.write(file, rows, since_us=since_us, until_us=until_us, offsets_us=offsets_us))


def _written(path: str, write: Callable[[Any], None]) -> None:
    _check_target(Path(path))
    try:
        with whole_file(path, force=True) as file:
            write(file)
    except OSError as error:
        raise TelemetryError(f"{path} was not written: {(error.strerror or str(error)).lower()}") from None
