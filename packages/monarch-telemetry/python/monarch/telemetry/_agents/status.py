"""The state of a job in a few lines: statements that each give some rows, whatever the size of the job."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from monarch.telemetry._agents import compact
from monarch.telemetry._asking import Asking
from monarch.telemetry.errors import QueryError

# Seconds for all statements, and for each one.
_ALL = 15.0
_EACH = 5.0
_SIZE = 5000


class Section(NamedTuple):
    """A part of the state, and the text where it has no rows."""

    title: str
    sql: str
    none: str


SECTIONS = (
    Section("hosts", "SELECT state, count(*) AS hosts FROM hosts GROUP BY state ORDER BY hosts DESC LIMIT 10", "none are known"),
    Section(
        "procs",
        "SELECT CASE WHEN ended_us IS NULL THEN 'alive' ELSE coalesce(left(exit_reason, 80), 'ended') END AS state, count(*) AS procs"
        " FROM procs GROUP BY 1 ORDER BY procs DESC, state LIMIT 10",
        "none are known",
    ),
    Section(
        "actors by status, in the last snapshot",
        "SELECT actor_status, actors, waiting_messages FROM (SELECT *, max(snapshot_id) OVER () AS newest FROM ("
        "SELECT snapshot_id, actor_status, count(*) AS actors, sum(queue_depth) AS waiting_messages FROM actor_nodes"
        " WHERE NOT is_system GROUP BY snapshot_id, actor_status)) WHERE snapshot_id = newest ORDER BY actors DESC, actor_status LIMIT 12",
        "no snapshot has been taken",
    ),
    Section(
        "failures",
        "SELECT kind, count(*) AS failures, sum(CASE WHEN first_cause THEN 1 ELSE 0 END) AS first_causes, min(timestamp_us) AS first_us,"
        " max(timestamp_us) AS last_us FROM failures GROUP BY kind ORDER BY first_us",
        "none",
    ),
    Section(
        "the earliest first cause",
        "SELECT timestamp_us, mesh_name, rank, host, endpoint, left(message, 250) AS message FROM failures WHERE first_cause"
        " ORDER BY timestamp_us, id LIMIT 1",
        "none",
    ),
    Section(
        "endpoints with the most errors, then calls",
        "SELECT mesh_name, endpoint, sum(count) AS calls, sum(errors) AS errors,"
        " round(sum(latency_sum_us) / 1000.0 / greatest(sum(count), 1), 3) AS mean_ms, round(max(latency_max_us) / 1000.0, 3) AS max_ms"
        " FROM endpoint_stats WHERE side = 'server' GROUP BY mesh_name, endpoint ORDER BY errors DESC, calls DESC, endpoint LIMIT 8",
        "no calls have ended",
    ),
    Section(
        "rows that telemetry has dropped or sampled",
        "SELECT table_name, sum(dropped) AS dropped, max(sample_weight) AS sample_weight FROM telemetry_status GROUP BY table_name"
        " HAVING sum(dropped) > 0 OR max(sample_weight) > 1 ORDER BY dropped DESC, table_name LIMIT 8",
        "none",
    ),
)


def status(engine: Asking, *, clock: Callable[[], float] = time.monotonic) -> str:
    """The sections one below the other. A statement that fails has its error in the place of its rows."""
    until = clock() + _ALL
    parts: list[str] = []
    head = ""
    for section in SECTIONS:
        left = until - clock()
        if left <= 0:
            parts.append(f"{section.title}: not asked: the time was over")
            continue
        try:
            table, coverage = engine.ask(section.sql, timeout=min(_EACH, left))
        except QueryError as error:
            parts.append(f"{section.title}: {error}")
            continue
        # The first coverage, or one in which a host is missing.
        if not head or coverage.missing:
            head = compact.coverage(coverage)
        page = compact.rows(table, 0, 50, size=_SIZE)
        parts += [f"{section.title}: {section.none}"] if table.num_rows == 0 else [f"{section.title}:", *page.lines]
    return compact.joined(*([head] if head else []), parts)
