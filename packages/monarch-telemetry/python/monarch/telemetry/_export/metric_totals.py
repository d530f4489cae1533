"""Metric rows, summed up: deltas become totals since the start, and of gauges and totals the last one counts.

Prometheus and most receivers of OTLP want totals. A collector keeps two `Totals` and adds each row once: the exporter sends `batches`, the
table metric_totals has `table`, and `of_table` makes one `Totals` of the tables of all hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps, loads
from math import isfinite
from typing import Any, Literal, NamedTuple

from monarch.telemetry._tables.metrics import METRIC_GAUGES, METRIC_HISTOGRAMS, METRIC_SUMS

Kind = Literal["gauge", "sum", "histogram"]
_KINDS: dict[str, Kind] = {"metric_gauges": "gauge", "metric_sums": "sum", "metric_histograms": "histogram"}
_MOST_SERIES = 20_000
# Metrics whose rows name actors: their series are those of all actors together.
_OF_ACTORS = frozenset(
    {
        "mailbox.posts",
        "mailbox.undeliverable_messages",
        "actor.messages_sent",
        "actor.message_queue_size",
        "proc_mesh.actor_failures",
    }
)
_MOST_BOUNDS = 256
_FORMS = ("f64", "i64", "u64")


class Key(NamedTuple):
    """What makes a series: attributes are JSON texts, as in the rows."""

    kind: Kind
    name: str
    unit: str
    scope: str
    attributes: str
    resource: str
    monotonic: bool


@dataclass(slots=True)
class Series:
    """The state of a series; times in microseconds since the epoch. `value` is the sum of a histogram, None where it is not known."""

    start_us: int
    last_us: int
    value: float | None = None
    count: int = 0
    least: float | None = None
    most: float | None = None
    # For a histogram: measurements by the upper bound of their bucket, and the number above the last bound.
    buckets: dict[float, int] = field(default_factory=dict[float, int])
    above: int = 0
    # Whether a row was added after `batches` last returned the series.
    fresh: bool = True


class Totals:
    """Series by their key. `dropped` counts rows that were malformed or had no room. One thread at a time."""

    def __init__(self, most_series: int = _MOST_SERIES) -> None:
        self.dropped = 0
        self._most = most_series
        self._series: dict[Key, Series] = {}

    def __len__(self) -> int:
        return len(self._series)

    def series(self) -> Iterator[tuple[Key, Series]]:
        """In the order in which they came."""
        yield from self._series.items()

    def add(self, rows: Mapping[str, Iterable[Any]]) -> None:
        """Adds batches of `metric_gauges`, `metric_sums` and `metric_histograms`, by the name of the table."""
        for table, kind in _KINDS.items():
            for batch in rows.get(table, ()):
                names = batch.schema.names
                for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    if not self._row(kind, dict(zip(names, values, strict=True))):
                        self.dropped += 1

    def forget(self, before_us: int) -> None:
        """Drops series that had no row since then: those of processes that have ended."""
        for key in [key for key, one in self._series.items() if one.last_us < before_us]:
            del self._series[key]

    def forget_gauges(self, now_us: int, kept_us: Mapping[str, int], others_us: int) -> None:
        """Drops gauges that were not measured for so long, by name: they are not true any more. Counters stay."""
        old = [key for key, one in self._series.items() if key.kind == "gauge" and one.last_us < now_us - kept_us.get(key.name, others_us)]
        for key in old:
            del self._series[key]

    def _row(self, kind: Kind, row: dict[str, Any]) -> bool:
        value = value_of(row, "value" if kind == "gauge" else "sum")
        if kind != "histogram" and value is None:
            return False
        found: tuple[list[float], list[int]] | None = histogram(row) if kind == "histogram" else ([], [])
        if found is None:
            return False
        monotonic = bool(row["is_monotonic"]) if kind == "sum" else kind == "histogram"
        # The number of actors of a job is unlimited.
        is_of_actors = row["name"] in _OF_ACTORS
        attributes = "{}" if is_of_actors else row["attributes_json"]
        key = Key(kind, row["name"], row["unit"], row["scope_name"], attributes, row["resource_attributes_json"], monotonic)
        time, start = row["timestamp_us"], row["start_timestamp_us"] or row["timestamp_us"]
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= self._most:
                return False
            series = self._series[key] = Series(start, time)
        elif kind == "gauge" or row["temporality"] != "delta":
            if time < series.last_us:
                return True  # an older one adds nothing
        if kind == "gauge":
            # The values of all actors at one time are added.
            before = series.value if is_of_actors and time == series.last_us else None
            series.value, series.last_us, series.fresh = value if before is None or value is None else before + value, time, True
            return True
        if row["temporality"] != "delta":
            series = self._series[key] = Series(start, time)
        return _added(series, row, value, found, time)

    def batches(self, until_us: int, *, fresh_gauges: bool = False) -> dict[str, Any]:
        """Cumulative rows of all series, dated `until_us`, and gauges with the time at which they were measured.

        `fresh_gauges` leaves out gauges that had no row since the last call.
        """
        from monarch.telemetry._arrow import pa

        tables = {"gauge": METRIC_GAUGES, "sum": METRIC_SUMS, "histogram": METRIC_HISTOGRAMS}
        rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in tables}
        for key, one in self._series.items():
            if key.kind != "gauge" or one.fresh or not fresh_gauges:
                rows[key.kind].append(_row(key, one, until_us))
            one.fresh = False
        return {table.name: pa.RecordBatch.from_pylist(rows[kind], schema=table.schema()) for kind, table in tables.items() if rows[kind]}

    def table(self) -> list[dict[str, Any]]:
        """Rows of metric_totals."""
        return [
            {
                "kind": key.kind,
                "is_monotonic": key.monotonic,
                "timestamp_us": one.last_us,
                **_described(key, one),
                **typed("value", one.value),
                **({"count": one.count, **_buckets(one)} if key.kind == "histogram" else {}),
            }
            for key, one in self._series.items()
        ]

    @classmethod
    def of_table(cls, batches: Iterable[Any], most_series: int = _MOST_SERIES) -> Totals:
        """The series of rows of metric_totals. Series of several hosts with the same key are one (`combined`)."""
        self = cls(most_series)
        for row in (row for batch in batches for row in batch.to_pylist()):
            buckets: tuple[list[float], list[int]] | None = histogram(row) if row["kind"] == "histogram" else ([], [0])
            if buckets is None or row["kind"] not in _KINDS.values():
                self.dropped += 1
                continue
            attributes, resource = row["attributes_json"], row["resource_attributes_json"]
            key = Key(row["kind"], row["name"], row["unit"], row["scope_name"], attributes, resource, row["is_monotonic"])
            bounds, (*counts, above) = buckets
            series = Series(row["start_timestamp_us"], row["timestamp_us"], value_of(row, "value"), row["count"] or 0)
            series.buckets, series.above = dict(zip(bounds, counts, strict=True)), above
            known = self._series.get(key)
            if known is None and len(self._series) >= most_series:
                self.dropped += 1
                continue
            self._series[key] = series if known is None else combined(key.kind == "gauge", known, series)
        return self


def combined(is_gauge: bool, first: Series, second: Series) -> Series:
    """One series of two: sums are added, of gauges the last one counts. Neither is changed."""
    if is_gauge:
        return second if second.last_us >= first.last_us else first
    buckets = dict(first.buckets)
    for bound, count in second.buckets.items():
        buckets[bound] = buckets.get(bound, 0) + count
    value = None if first.value is None or second.value is None else first.value + second.value
    last_us, count = max(first.last_us, second.last_us), first.count + second.count
    return Series(min(first.start_us, second.start_us), last_us, value, count, buckets=buckets, above=first.above + second.above)


def _added(series: Series, row: dict[str, Any], value: float | None, found: tuple[list[float], list[int]], time: int) -> bool:
    bounds, counts = found
    if len(series.buckets.keys() | {*bounds}) > _MOST_BOUNDS:
        return False
    series.last_us = max(series.last_us, time)
    if value is not None:
        series.value = (series.value or 0) + value
    if counts:
        for bound, count in zip(bounds, counts, strict=False):
            series.buckets[bound] = series.buckets.get(bound, 0) + count
        series.above += counts[-1]
        series.count += sum(counts)
        for least in _numbers(row, "min"):
            series.least = least if series.least is None else min(series.least, least)
        for most in _numbers(row, "max"):
            series.most = most if series.most is None else max(series.most, most)
    return True


def histogram(row: Mapping[str, Any]) -> tuple[list[float], list[int]] | None:
    """Bounds and counts of a row of `metric_histograms`; without buckets the count alone. None for buckets that are malformed."""
    try:
        bounds, counts = loads(row["bounds_json"] or "[]"), loads(row["bucket_counts_json"] or "[]")
        if not counts and not bounds:
            return [], [row["count"]]
        bounds, counts = [float(one) for one in bounds], [int(one) for one in counts]
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    rises = all(map(isfinite, bounds)) and all(low < high for low, high in zip(bounds, bounds[1:], strict=False))
    fits = len(counts) == len(bounds) + 1 and min(counts) >= 0 and sum(counts) == row["count"]
    return (bounds, counts) if rises and fits else None


def value_of(row: Mapping[str, Any], prefix: str) -> float | int | None:
    """The one of the three columns of a value that has it."""
    for form in _FORMS:
        value = row[f"{prefix}_{form}"]
        if value is not None:
            return value
    return None


def _numbers(row: Mapping[str, Any], prefix: str) -> Sequence[float]:
    value = value_of(row, prefix)
    return () if value is None else (value,)


def typed(prefix: str, value: float | None) -> dict[str, Any]:
    """The three columns of a value: an integer without a sign where it is one, else an integer with one, else a float."""
    found: dict[str, Any] = {f"{prefix}_{form}": None for form in _FORMS}
    if value is not None:
        is_integer = isinstance(value, int)
        form = "u64" if is_integer and 0 <= value < 1 << 64 else "i64" if is_integer and -(1 << 63) <= value < 0 else "f64"
        found[f"{prefix}_{form}"] = value if form != "f64" else float(value)
    return found


def _row(key: Key, one: Series, until_us: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        **_described(key, one),
        "timestamp_us": one.last_us if key.kind == "gauge" else until_us,
        "temporality": "cumulative",
        "is_monotonic": key.monotonic,
        **typed("value" if key.kind == "gauge" else "sum", one.value),
    }
    if key.kind == "histogram":
        row |= {"count": one.count, **typed("min", one.least), **typed("max", one.most), **_buckets(one)}
    return row


def _described(key: Key, one: Series) -> dict[str, Any]:
    return {
        "name": key.name,
        "start_timestamp_us": one.start_us,
        "scope_name": key.scope,
        "unit": key.unit,
        "attributes_json": key.attributes,
        "resource_attributes_json": key.resource,
    }


def _buckets(one: Series) -> dict[str, str]:
    bounds = sorted(one.buckets)
    return {"bounds_json": dumps(bounds), "bucket_counts_json": dumps([*(one.buckets[bound] for bound in bounds), one.above])}
