"""Rows of tables that complete a snapshot: failures of processes that have ended and of meshes that no process owns any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monarch.telemetry._asking import Asking
from monarch.telemetry._diagnose import recorded_job
from monarch.telemetry._diagnose.snapshot import End, Snapshot
from monarch.telemetry._queries import values
from monarch.telemetry.errors import QueryError, TelemetryError

# Seconds for a statement.
_EACH = 5.0
# Failures of the last ten minutes: older ones are history.
_RECENT = 600.0
STATEMENTS = {
    "failures": "SELECT f.id, f.timestamp_us, f.first_cause, f.mesh_name, f.rank, f.host, f.pid, f.exit_reason,"
    " left(f.message, 500) AS message, right(f.traceback, 2000) AS traceback, right(f.last_lines, 300) AS last_lines,"
    " p.exit_code, p.signal,"
    " CAST(arrow_cast(now(), 'Timestamp(Microsecond, Some(\"+00:00\"))') AS BIGINT) AS now_us FROM failures f"
    " LEFT JOIN hosts h ON h.name = f.host LEFT JOIN procs p ON p.host_id = h.host_id AND p.pid = f.pid AND p.ended_us IS NOT NULL"
    " ORDER BY f.timestamp_us DESC, f.id LIMIT 100",
    # Gauges that were finite, and are not since `first_us`, with the step of their process at that time.
    "numbers": "WITH gauges AS (SELECT name, attributes_json, resource_attributes_json AS resource, timestamp_us, value_f64,"
    " isnan(value_f64) AS is_nan, isnan(value_f64) OR abs(value_f64) > 1.7976931348623157e308 AS is_bad"
    " FROM metric_gauges WHERE value_f64 IS NOT NULL), turned AS (SELECT name, attributes_json, resource,"
    " min(CASE WHEN is_bad THEN timestamp_us END) AS first_us, max(CASE WHEN NOT is_bad THEN timestamp_us END) AS finite_us,"
    " bool_or(is_nan) AS is_nan FROM gauges GROUP BY name, attributes_json, resource),"
    " steps AS (SELECT resource, timestamp_us, value_f64 FROM gauges WHERE lower(name) LIKE '%step')"
    " SELECT t.name, t.resource, t.first_us, t.is_nan, max(s.value_f64) AS step,"
    " CAST(arrow_cast(now(), 'Timestamp(Microsecond, Some(\"+00:00\"))') AS BIGINT) AS now_us FROM turned t"
    " LEFT JOIN steps s ON s.resource = t.resource AND s.timestamp_us <= t.first_us WHERE t.finite_us < t.first_us"
    " GROUP BY t.name, t.attributes_json, t.resource, t.first_us, t.is_nan ORDER BY t.first_us LIMIT 1000",
}


def recorded(found: Snapshot, engine: Asking, *, is_live: bool = True) -> Snapshot:
    """The snapshot with the rows of an engine. A statement without an answer is named in `missing`.

    The ages of failures of a job that has ended, as in a capture, are those at its last row.
    """
    missing = list(found.missing)
    statements = STATEMENTS if is_live else {**recorded_job.STATEMENTS, **STATEMENTS}
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for name, sql in statements.items():
        try:
            table, coverage = engine.ask(sql, timeout=_EACH)
        except (QueryError, TelemetryError, OSError) as error:
            missing.append(f"table {name}: {error}".partition("\n")[0])
            continue
        columns = values.names(table)
        rows[name] = [dict(zip(columns, row, strict=True)) for row in values.rows(table)]
        missing += [f"tables of host {one.host}: {one.reason}" for one in coverage.missing]
    sources = [*found.sources, f"table {', '.join(rows)}"] if rows else list(found.sources)
    if not is_live:
        found = recorded_job.of_rows(rows)
    known = {(end.host, end.pid) for end in found.ends if end.pid is not None}
    now = None if is_live else _last(engine)
    recent = [end for row in rows.get("failures", []) if (end := _end(row, now)) is not None]
    # A failed mesh of a job that goes on has an owner, unless it was replaced.
    ends = [end._replace(is_past=is_live) for end in recent if (end.host, end.pid) not in known]
    return found._replace(
        rows=rows,
        ends=(*(_completed(end, recent) for end in found.ends), *ends),
        missing=tuple(dict.fromkeys(missing)),
        sources=tuple(sources),
    )


def _completed(end: End, rows: list[End]) -> End:
    """The failure with its age and last output, if it has a row."""
    row = next((one for one in rows if end.pid is not None and (one.host, one.pid) == (end.host, end.pid)), None)
    return end if row is None else end._replace(age=row.age, output=end.output or row.output)


def _last(engine: Asking) -> int | None:
    """The time of the last row of a job, in microseconds since the epoch."""
    sql = "SELECT max(t) AS t FROM (SELECT max(timestamp_us) AS t FROM logs UNION ALL SELECT max(timestamp_us) FROM failures)"
    try:
        return engine.ask(sql, timeout=_EACH).table.column(0).to_pylist()[0]
    except (QueryError, TelemetryError, OSError):
        return None


def _end(row: Mapping[str, Any], now: int | None) -> End | None:
    age = ((now or row["now_us"]) - row["timestamp_us"]) / 1e6
    if age > _RECENT or not row["first_cause"]:
        return None
    kind, _, detail = str(row["exit_reason"]).partition(": ")
    output = str(row["last_lines"] or "").splitlines()
    return End(
        str(row["mesh_name"]),
        row["rank"],
        kind,
        0,
        str(row["id"]),
        code=row["exit_code"],
        signal=row["signal"],
        detail=str(row["message"] or detail),
        traceback=str(row["traceback"] or ""),
        output=tuple(output[-1:]),
        host=row["host"],
        pid=row["pid"],
        age=age,
        source="table failures",
    )
