"""Metrics in the formats that Prometheus scrapes: its text format 0.0.4, and OpenMetrics 1.0.

Gauges are their last values, sums that never fall are counters, histograms have cumulative buckets. Samples have no times: Prometheus then
knows when a series ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf, isnan
from typing import Any, Literal

from monarch.telemetry._export.metric_names import meaning
from monarch.telemetry._export.metric_totals import Key, Series, Totals, combined
from monarch.telemetry._export.otlp_values import parsed_object
from monarch.telemetry._export.prometheus_names import Family, FamilyKind, Metric, families, labels

Format = Literal["text", "openmetrics"]
CONTENT_TYPES: dict[Format, str] = {
    "text": "text/plain; version=0.0.4; charset=utf-8",
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
}
_Labels = tuple[tuple[str, str], ...]
# Enough for a job of many hosts; an answer has no more rows.
_MOST_SERIES = 1_000_000


def negotiate(accept: str | None) -> Format:
    """The format that an `Accept` header prefers; the text format where it names neither."""
    best: tuple[float, Format] = (0.0, "text")
    for part in (accept or "").split(","):
        kind, *parameters = (one.strip() for one in part.split(";"))
        given = {name.strip().lower(): value.strip().strip('"') for name, _, value in (one.partition("=") for one in parameters)}
        form: Format = "openmetrics" if kind.lower() == "application/openmetrics-text" else "text"
        if form == "openmetrics" and given.get("version", "1.0.0") not in ("1.0.0", "0.0.1"):
            continue
        if form == "text" and kind.lower() not in ("text/plain", "text/*", "*/*"):
            continue
        weight = _weight(given.get("q", "1"))
        if weight > best[0]:
            best = weight, form
    return best[1]


def _weight(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        return 0.0
    return found if 0 <= found <= 1 else 0.0


def render(totals: Totals, form: Format = "text") -> bytes:
    """All series. Series with the same labels after a change of names are one: sums are added, the last gauge counts."""
    grouped: dict[Metric, dict[_Labels, Series]] = {}
    texts: dict[tuple[str, str, str], _Labels] = {}
    scopes: dict[Metric, str] = {}
    for key, series in totals.series():
        metric = Metric(key.name, key.unit, _kind(key))
        scopes.setdefault(metric, key.scope)
        source = (key.attributes, key.resource, key.scope)
        found = texts.get(source)
        if found is None:
            found = texts[source] = labels(parsed_object(key.attributes), parsed_object(key.resource), key.scope)
        group = grouped.setdefault(metric, {})
        known = group.get(found)
        group[found] = series if known is None else combined(metric.kind == "gauge", known, series)
    lines: list[str] = []
    named = families(grouped)
    for metric in sorted(grouped, key=lambda one: named[one]):
        lines += _family(metric, named[metric], grouped[metric], scopes[metric], form)
    if form == "openmetrics":
        lines.append("# EOF")
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def exposition(ask: Callable[[str], Any], accept: str | None = None) -> tuple[str, bytes]:
    """Content type and text of the metrics of a job, for `/metrics`. `ask` gives the answer of a statement as a `pyarrow.Table`."""
    form = negotiate(accept)
    return CONTENT_TYPES[form], render(Totals.of_table(ask("SELECT * FROM metric_totals").to_batches(), _MOST_SERIES), form)


def _kind(key: Key) -> FamilyKind:
    return "histogram" if key.kind == "histogram" else "counter" if key.kind == "sum" and key.monotonic else "gauge"


def _family(metric: Metric, family: Family, series: Mapping[_Labels, Series], scope: str, form: Format) -> Iterable[str]:
    # In the text format the name of a counter is that of its samples.
    name = f"{family.name}_total" if metric.kind == "counter" and form == "text" else family.name
    about = meaning(metric.name) or f"{metric.name}, measured by {scope or 'a program'}"
    yield f"# HELP {name} {_escaped_help(about, form)}"
    yield f"# TYPE {name} {metric.kind}"
    if family.unit and form == "openmetrics":
        yield f"# UNIT {name} {family.unit}"
    for found in sorted(series):
        one = series[found]
        if metric.kind == "histogram":
            yield from _histogram(family.name, found, one, form)
        elif one.value is not None and (metric.kind == "gauge" or one.value >= 0):
            yield f"{family.name}{'_total' if metric.kind == 'counter' else ''}{_labels(found)} {_value(one.value)}"


def _histogram(name: str, found: _Labels, one: Series, form: Format) -> Iterable[str]:
    total = 0
    for bound in sorted(one.buckets):
        total += one.buckets[bound]
        yield f"{name}_bucket{_labels((*found, ('le', _value(float(bound)))))} {total}"
    yield f"{name}_bucket{_labels((*found, ('le', '+Inf')))} {total + one.above}"
    # A decreasing sum is not a counter: OpenMetrics then has no sum.
    can_fall = any(bound < 0 for bound in one.buckets) or (one.value or 0) < 0
    if one.value is not None and not (can_fall and form == "openmetrics"):
        yield f"{name}_sum{_labels(found)} {_value(one.value)}"
    if not (one.value is None or can_fall) or form == "text":
        yield f"{name}_count{_labels(found)} {total + one.above}"


def _labels(found: _Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in found) + "}" if found else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _escaped_help(text: str, form: Format) -> str:
    return _escaped(text) if form == "openmetrics" else text.replace("\\", r"\\").replace("\n", r"\n")


def _value(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if value in (inf, -inf) else repr(value)
