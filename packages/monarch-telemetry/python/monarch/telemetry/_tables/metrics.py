"""Measurements of meters: gauges, sums and histograms."""

from __future__ import annotations

from monarch.telemetry._tables.table import Column, Kind, Table, time

# The resource attribute that names what has made the rows.
SDK = {"telemetry.sdk.name": "monarch"}

_KINDS: tuple[tuple[Kind, str], ...] = (("f64", "a floating point"), ("i64", "a signed"), ("u64", "an unsigned"))
_NAME = Column("name", "text", "the metric, such as endpoint_message_size")
_TIME = time("timestamp_us", "when it was measured")
_SCOPE = (Column("scope_name", "text", "the meter"), Column("unit", "text", "the unit of the values, such as us or By"))
_ATTRIBUTES = (
    Column("attributes_json", "text", "the attributes that a series of the metric has, as a JSON object"),
    Column("resource_attributes_json", "text", "host, job, mesh, rank and process, as a JSON object"),
)
_TEMPORALITY = Column("temporality", "text", "delta (since the last row) or cumulative (since the start)")
_START = time("start_timestamp_us", "the start of what is counted")


def _numbers(prefix: str, meaning: str) -> tuple[Column, ...]:
    """Three columns of which one has a value: which one goes by the kind of the meter."""
    return tuple(Column(f"{prefix}_{kind}", kind, f"{meaning}, where it is {text} number", True) for kind, text in _KINDS)


METRIC_GAUGES = Table(
    "metric_gauges",
    (
        _NAME,
        _TIME,
        time("start_timestamp_us", "the start of the measurements", nullable=True),
        *_SCOPE,
        *_ATTRIBUTES,
        *_numbers("value", "the value"),
    ),
    "Values that were measured at a time, such as the memory of a process",
    "SELECT name, timestamp_us, coalesce(value_f64, value_i64, value_u64) AS value FROM metric_gauges"
    " WHERE name = 'process.memory.rss_bytes' ORDER BY timestamp_us DESC LIMIT 20",
    "history",
)
METRIC_SUMS = Table(
    "metric_sums",
    (
        _NAME,
        _TIME,
        _START,
        *_SCOPE,
        _TEMPORALITY,
        Column("is_monotonic", "bool", "whether the sum never falls"),
        *_ATTRIBUTES,
        *_numbers("sum", "the sum"),
    ),
    "Sums of what was counted, such as messages",
    "SELECT name, sum(coalesce(sum_f64, sum_i64, sum_u64)) AS total FROM metric_sums WHERE temporality = 'delta' GROUP BY name",
    "history",
)
METRIC_HISTOGRAMS = Table(
    "metric_histograms",
    (
        _NAME,
        _TIME,
        _START,
        *_SCOPE,
        _TEMPORALITY,
        *_ATTRIBUTES,
        Column("count", "u64", "the number of measurements"),
        *_numbers("sum", "their sum"),
        *_numbers("min", "the least of them"),
        *_numbers("max", "the greatest of them"),
        Column("bounds_json", "text", "the upper bounds of the buckets but the last, as a JSON list"),
        Column("bucket_counts_json", "text", "measurements in each bucket, as a JSON list"),
    ),
    "Distributions of measurements, such as the latency of an endpoint",
    "SELECT name, sum(count) AS measured, max(coalesce(max_f64, max_i64, max_u64)) AS most FROM metric_histograms GROUP BY name",
    "history",
)

TABLES = (METRIC_GAUGES, METRIC_SUMS, METRIC_HISTOGRAMS)
