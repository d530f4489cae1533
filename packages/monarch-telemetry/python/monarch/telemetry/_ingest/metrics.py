"""What instruments of `get_meter` record, as rows of the tables of metrics: the state of each series, at most once a second.

Sums and histograms are cumulative since the process began to record. Amounts are floats, as they were given.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

from monarch.telemetry._arrow import pa
from monarch.telemetry._ingest.places import Places
from monarch.telemetry._ingest.rows import Rows
from monarch.telemetry._tables.metrics import METRIC_GAUGES, METRIC_HISTOGRAMS, METRIC_SUMS, SDK

# The most series of a host; updates of more are counted and dropped.
MOST_SERIES = 10_000
_EVERY_US = 1_000_000
# The most earlier values of a series in one second.
_MOST_BEFORE = 16
# The default boundaries of OpenTelemetry's explicit buckets.
BOUNDS = (0.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 2500.0, 5000.0, 7500.0, 10000.0)
_SUMS = frozenset({"counter", "up_down_counter"})


class Key(NamedTuple):
    proc: int
    meter: str
    name: str
    kind: str
    unit: str
    attributes: str


class Series:
    """The state of an instrument with its attributes in a process; `us` is the time of the last update.

    `before` are earlier values of a gauge that are rows beside the last one: those when a gauge of the process became no finite number.
    """

    __slots__ = ("amount", "before", "buckets", "count", "is_new", "largest", "smallest", "start", "us")

    def __init__(self, start: int) -> None:
        self.start = self.us = start
        self.amount, self.count = 0.0, 0
        self.smallest, self.largest = float("inf"), float("-inf")
        self.buckets: list[int] = []
        self.before: list[tuple[int, float]] = []
        self.is_new = True


class Metrics:
    """All series of this host. Not for several threads at once."""

    def __init__(self) -> None:
        self._series: dict[Key, Series] = {}
        # The resource attribute `service.name`.
        self.service = "monarch"
        self._written = 0
        # Updates of series beyond the limit.
        self.dropped = 0

    def add(self, rows: Rows) -> None:
        """Updates, in order."""
        names = ("proc", "meter", "name", "kind", "attributes", "amount", "us")
        for proc, meter, name, kind, attributes, amount, us in zip(*(rows[column].to_pylist() for column in names), strict=True):
            if name is None or kind is None:
                self.dropped += 1
                continue
            # The unit, if there is one, follows the kind.
            kind, _, unit = kind.partition(" ")
            key = Key(proc, meter or "", name, kind, unit, attributes or "{}")
            series = self._series.get(key)
            if series is None:
                if len(self._series) >= MOST_SERIES:
                    self.dropped += 1
                    continue
                series = self._series[key] = Series(us)
            elif kind == "gauge" and isfinite(series.amount) and not isfinite(amount) and len(series.before) < _MOST_BEFORE:
                # The order of ranks and the step at this time are known then, although a series has one row a second.
                self._keep(proc)
                series.before.append((us, amount))
            _update(series, kind, amount, us)

    def _keep(self, proc: int) -> None:
        for key, series in self._series.items():
            if key.proc == proc and key.kind == "gauge" and len(series.before) < _MOST_BEFORE:
                series.before.append((series.us, series.amount))
                series.is_new = True

    def forget(self, proc: int) -> None:
        """A process has ended, and its last state was written."""
        for key in [key for key in self._series if key.proc == proc]:
            del self._series[key]

    def batches(self, now_us: int, places: Places, *, now: bool = False) -> dict[str, list[Any]]:
        """Rows by table, of the series that have changed; none within a second of the last ones, unless `now`."""
        if not now and now_us - self._written < _EVERY_US:
            return {}
        self._written = now_us
        changed = {key: series for key, series in self._series.items() if series.is_new}
        found = _batches(changed, places, self.service)
        for series in changed.values():
            series.is_new = False
            series.before.clear()
        return found

    def states(self, places: Places) -> dict[str, list[Any]]:
        """Rows by table, of all series; these are no history."""
        return _batches(self._series, places, self.service, with_earlier=False)


def _batches(of: Mapping[Key, Series], places: Places, service: str, *, with_earlier: bool = True) -> dict[str, list[Any]]:
    found: dict[str, list[dict[str, Any]]] = {"metric_gauges": [], "metric_sums": [], "metric_histograms": []}
    for key, series in of.items():
        _row(found, key, series, places, service, with_earlier)
    schemas = {"metric_gauges": METRIC_GAUGES, "metric_sums": METRIC_SUMS, "metric_histograms": METRIC_HISTOGRAMS}
    return {name: [pa.RecordBatch.from_pylist(rows, schema=schemas[name].schema())] for name, rows in found.items() if rows}


def _update(series: Series, kind: str, amount: float, us: int) -> None:
    series.us, series.is_new = us, True
    if kind in _SUMS:
        series.amount += amount
    elif kind == "histogram":
        if not series.buckets:
            series.buckets = [0] * (len(BOUNDS) + 1)
        series.buckets[bisect_left(BOUNDS, amount)] += 1
        series.amount += amount
        series.count += 1
        series.smallest, series.largest = min(series.smallest, amount), max(series.largest, amount)
    else:
        series.amount = amount


def _row(found: Mapping[str, list[dict[str, Any]]], key: Key, series: Series, places: Places, service: str, with_earlier: bool) -> None:
    place = places.get(key.proc)
    resource = {"service.name": service, **SDK, "monarch.mesh": place.mesh_name, "monarch.rank": place.rank, "process.pid": place.pid}
    row: dict[str, Any] = {
        "name": key.name,
        "timestamp_us": series.us,
        "start_timestamp_us": series.start,
        "scope_name": key.meter,
        "unit": key.unit,
        "attributes_json": key.attributes,
        "resource_attributes_json": json.dumps({name: value for name, value in resource.items() if value is not None}),
    }
    if key.kind in _SUMS:
        found["metric_sums"].append({**row, "temporality": "cumulative", "is_monotonic": key.kind == "counter", "sum_f64": series.amount})
    elif key.kind == "histogram":
        sums = {"count": series.count, "sum_f64": series.amount, "min_f64": series.smallest, "max_f64": series.largest}
        buckets = {"bounds_json": json.dumps(BOUNDS), "bucket_counts_json": json.dumps(series.buckets)}
        found["metric_histograms"].append({**row, "temporality": "cumulative", **sums, **buckets})
    else:
        earlier = [(us, amount) for us, amount in series.before if us != series.us] if with_earlier else []
        values = (*earlier, (series.us, series.amount))
        found["metric_gauges"].extend({**row, "timestamp_us": us, "value_f64": amount} for us, amount in values)
