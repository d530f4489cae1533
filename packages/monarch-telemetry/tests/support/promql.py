"""What a query of PromQL names: its metrics with the labels of their selectors, and the labels that it groups by."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from monarch.telemetry._export.metric_names import METRICS
from monarch.telemetry._export.prometheus_names import Metric, families, label_name

_TOKEN = re.compile(r"\"(?:[^\"\\]|\\.)*\"|\[[^\]]*\]|[a-zA-Z_:][a-zA-Z0-9_:]*|[0-9][0-9a-zA-Z.]*|=~|!~|!=|==|[^\s]")
_NAME = re.compile(r"[a-zA-Z_:]")
_GROUPING = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "inf", "nan"})
# Prometheus adds the first two to each series; the third is the resource attribute that all series of Monarch have.
_ALWAYS = frozenset({"job", "instance", "host_name", "otel_scope_name"})
# A metric of Prometheus itself.
_UP = {"up": frozenset({"job", "instance"})}


class Named(NamedTuple):
    """`selectors` are pairs of a metric and the labels in its braces."""

    selectors: tuple[tuple[str, frozenset[str]], ...]
    grouped: frozenset[str]


def exported() -> dict[str, frozenset[str]]:
    """The labels of every sample that Monarch exports, by its name."""
    found: dict[str, frozenset[str]] = dict(_UP)
    kinds = {"gauge": "gauge", "counter": "counter", "histogram": "histogram", "up_down_counter": "gauge"}
    named = families(Metric(one.name, one.unit, kinds[one.kind]) for one in METRICS)  # type: ignore[arg-type]
    for one in METRICS:
        family = named[Metric(one.name, one.unit, kinds[one.kind])].name  # type: ignore[arg-type]
        labels = _ALWAYS | {label_name(name) for name in one.attributes}
        if one.kind == "histogram":
            found |= {f"{family}_sum": labels, f"{family}_count": labels}
            if "without buckets" not in one.meaning:
                found[f"{family}_bucket"] = labels | {"le"}
        else:
            found[f"{family}_total" if one.kind == "counter" else family] = labels
    return found


def named(query: str) -> Named:
    """The names of a query without variables."""
    tokens = _TOKEN.findall(query)
    selectors: list[tuple[str, frozenset[str]]] = []
    grouped: set[str] = set()
    at = 0
    while at < len(tokens):
        token, following = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
        at += 1
        if not _NAME.match(token) or token.lower() in _WORDS:
            continue
        if token in _GROUPING:
            if following != "(":
                continue
            end = tokens.index(")", at)
            grouped |= {one for one in tokens[at:end] if _NAME.match(one)}
            at = end
        elif following == "{":
            end = tokens.index("}", at)
            selectors.append((token, frozenset(one for one in tokens[at:end] if _NAME.match(one))))
            at = end
        elif following not in ("(", "by", "without"):
            selectors.append((token, frozenset()))
    return Named(tuple(selectors), frozenset(grouped))


def problems(query: str) -> Iterator[str]:
    """The metrics and labels of a query that Monarch does not export."""
    known, found = exported(), named(query)
    if not found.selectors:
        yield f"no metric in {query!r}"
    for metric, labels in found.selectors:
        if metric not in known:
            yield f"no metric {metric!r} in {query!r}"
            continue
        for label in sorted((labels | found.grouped) - known[metric]):
            yield f"{metric} has no label {label!r} in {query!r}"
