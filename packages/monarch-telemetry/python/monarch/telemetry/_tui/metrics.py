"""Metrics of the last minutes as lines: what the statements are, and what their rows look like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from monarch.telemetry._tui import amounts
from monarch.telemetry._tui.lines import EMPTY, Line, Span, line, table
from monarch.telemetry._tui.texts import Texts

# The period that is shown, and a step of the history, in seconds.
SECONDS, STEP = 300, 15
_STEPS = SECONDS // STEP
ROWS = 10_000
_SERIES = "concat(resource_attributes_json, ' ', attributes_json)"

Row = dict[str, Any]


def _value(prefix: str) -> str:
    return f"coalesce({prefix}_f64, CAST({prefix}_i64 AS DOUBLE), CAST({prefix}_u64 AS DOUBLE))"


def _step(since_us: int) -> str:
    """The number of the step in which a row lies."""
    return f"CAST((timestamp_us - {since_us}) / {STEP * 1_000_000} AS BIGINT)"


def resources(since_us: int) -> str:
    """The last row of each host."""
    columns = ("cpu_pct", "rss_bytes", "threads", "fds")
    last = ", ".join(f"last_value({name} ORDER BY timestamp_us) AS {name}" for name in columns)
    return (
        f"SELECT host, {last} FROM resources WHERE proc IS NULL AND gpu IS NULL AND timestamp_us >= {since_us}"
        f" GROUP BY host ORDER BY host LIMIT {ROWS}"
    )


def gauges(since_us: int) -> str:
    """The mean over all series, by step."""
    return (
        f"SELECT name, unit, {_step(since_us)} AS step, avg({_value('value')}) AS value FROM metric_gauges"
        f" WHERE timestamp_us >= {since_us} GROUP BY 1, 2, 3 ORDER BY 1, 2, 3 LIMIT {ROWS}"
    )


def sums(since_us: int) -> str:
    """By series and step: the largest value, which is the last one of a sum that counts on, and the sum of those that begin anew."""
    value = _value("sum")
    return (
        "SELECT name, unit, temporality, step, sum(top) AS top, sum(total) AS total FROM ("
        f"SELECT name, unit, temporality, {_SERIES} AS series, {_step(since_us)} AS step, max({value}) AS top,"
        f" sum({value}) AS total FROM metric_sums WHERE timestamp_us >= {since_us}"
        f" GROUP BY 1, 2, 3, 4, 5) GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4 LIMIT {ROWS}"
    )


def histograms(since_us: int) -> str:
    """Count, sum and maximum; of those that count on the last row of each series."""
    value = _value("sum")
    most = _value("max")
    return (
        "SELECT name, unit, sum(count) AS count, sum(total) AS total, max(most) AS most FROM ("
        f"SELECT name, unit, CASE WHEN temporality = 'delta' THEN sum(count) ELSE max(count) END AS count,"
        f" CASE WHEN temporality = 'delta' THEN sum({value}) ELSE max({value}) END AS total, max({most}) AS most FROM metric_histograms"
        f" WHERE timestamp_us >= {since_us} GROUP BY name, unit, temporality, {_SERIES}) GROUP BY 1, 2 ORDER BY 1, 2 LIMIT {ROWS}"
    )


def metric_lines(found: dict[str, Sequence[Row]], texts: Texts) -> list[Line]:
    """The parts one below the other; those without rows are left out."""
    shown: list[Line] = []
    makers = {"resources": _resources, "gauges": _gauges, "sums": _sums, "histograms": _histograms}
    for part, maker in makers.items():
        rows = found.get(part) or ()
        if rows:
            shown += [*([EMPTY] if shown else []), (Span(texts(part), "title"),), *maker(rows, texts)]
    return shown or [line(texts("none"), "dim")]


def _resources(rows: Sequence[Row], texts: Texts) -> list[Line]:
    names = [texts(key) for key in ("host", "cpu", "rss", "threads", "files")]
    return table(
        names,
        [
            (
                row["host"],
                None if row["cpu_pct"] is None else round(row["cpu_pct"], 1),
                amounts.size(row["rss_bytes"]),
                row["threads"],
                row["fds"],
            )
            for row in rows
        ],
    )


def _by_name(rows: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], dict[int, Row]]:
    """Rows by metric, then by step."""
    found: dict[tuple[Any, ...], dict[int, Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), {})[int(row["step"])] = row
    return found


def _gauges(rows: Sequence[Row], texts: Texts) -> list[Line]:
    shown: list[tuple[object, ...]] = []
    for (name, unit), steps in _by_name(rows, "name", "unit").items():
        values = [_number(steps[step]["value"]) for step in sorted(steps)]
        shown.append((name, unit, amounts.number(values[-1]), amounts.sparkline(values[-_STEPS:])))
    return table([texts(key) for key in ("name", "unit", "last", "history")], shown)


def growth(steps: dict[int, Row], is_delta: bool) -> list[float]:
    """By how much a sum grew in each step; a sum that begins anew has no growth that is known."""
    if is_delta:
        return [_number(steps[step]["total"]) for step in sorted(steps)]
    tops = [_number(steps[step]["top"]) for step in sorted(steps)]
    return [max(after - before, 0.0) for before, after in zip(tops, tops[1:], strict=False)]


def _sums(rows: Sequence[Row], texts: Texts) -> list[Line]:
    shown: list[tuple[object, ...]] = []
    for (name, unit, temporality), steps in _by_name(rows, "name", "unit", "temporality").items():
        is_delta = str(temporality).lower().endswith("delta")
        grown = growth(steps, is_delta)
        total = sum(grown) if is_delta else _number(steps[max(steps)]["top"])
        shown.append((name, unit, amounts.number(total), amounts.number(grown[-1] if grown else None), amounts.sparkline(grown[-_STEPS:])))
    return table([texts(key) for key in ("name", "unit", "total", "growth", "history")], shown)


def _histograms(rows: Sequence[Row], texts: Texts) -> list[Line]:
    names = [texts(key) for key in ("name", "unit", "count", "mean", "max")]
    shown: list[tuple[object, ...]] = []
    for row in rows:
        mean = _number(row["total"]) / row["count"] if row["count"] and row["total"] is not None else None
        most = None if row["most"] is None else float(row["most"])
        shown.append((row["name"], row["unit"], f"{row['count']:,}", amounts.number(mean), amounts.number(most)))
    return table(names, shown)


def _number(value: object) -> float:
    found = float(value) if isinstance(value, int | float) else 0.0
    return found if math.isfinite(found) else 0.0
