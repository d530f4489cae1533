"""Names of Prometheus: of metrics and labels, with units, without collisions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple
from zlib import crc32

from monarch.telemetry._tables.metrics import SDK

FamilyKind = Literal["gauge", "counter", "histogram"]
_OTHER = re.compile(r"[^a-zA-Z0-9_:]+")
_LABEL_OTHER = re.compile(r"[^a-zA-Z0-9_]")
_SEVERAL = re.compile("__+")
# The names of UCUM units in metric names.
UNITS = {
    "By": "bytes",
    "KiBy": "kibibytes",
    "MiBy": "mebibytes",
    "GiBy": "gibibytes",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    "%": "percent",
    "Hz": "hertz",
    "W": "watts",
    "Cel": "celsius",
    "J": "joules",
    "V": "volts",
}
_SAMPLES: dict[FamilyKind, tuple[str, ...]] = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}


class Metric(NamedTuple):
    """A metric as its meter names it."""

    name: str
    unit: str
    kind: FamilyKind


class Family(NamedTuple):
    """A metric as Prometheus names it: without `_total`. `unit` is empty where the name does not end with it."""

    name: str
    unit: str


def plain_name(name: str) -> str:
    """A name of the letters that Prometheus takes."""
    found = _SEVERAL.sub("_", _OTHER.sub("_", name)).strip("_") or "metric"
    return f"_{found}" if found[0].isdigit() else found


def label_name(name: str) -> str:
    """A label of the letters that Prometheus takes; two underscores at the beginning belong to Prometheus itself."""
    found = _LABEL_OTHER.sub("_", name) or "_"
    if found[0].isdigit():
        found = f"_{found}"
    return f"key{found}" if found.startswith("__") else found


def _family(metric: Metric) -> Family:
    """With the unit at the end, unless it is somewhere in the name, short or long."""
    name = plain_name(metric.name)
    if metric.kind == "counter":
        name = name.removesuffix("_total")
    known = UNITS.get(metric.unit)
    if known is None:
        return Family(name, "")
    words = name.split("_")
    for word in (known, metric.unit):
        if word in words:
            return Family(name, word if words[-1] == word and len(words) > 1 else "")
    return Family(f"{name}_{known}", known)


def families(metrics: Iterable[Metric]) -> dict[Metric, Family]:
    """A family for each metric; no two have a sample of the same name.

    The metric whose name needs no change keeps it; another one gets a number that is made of its name, kind and unit, and stays the same.
    """
    taken: set[str] = set()
    found: dict[Metric, Family] = {}
    wanted = {metric: _family(metric) for metric in metrics}
    for metric in sorted(wanted, key=lambda one: (wanted[one].name != one.name, one)):
        family = wanted[metric]
        if taken & _names(family.name, metric.kind):
            number = crc32("\0".join(metric).encode("utf-8", "surrogatepass"))
            base = family.name.removesuffix(f"_{family.unit}") if family.unit else family.name
            family = Family(f"{base}_{number:08x}{f'_{family.unit}' if family.unit else ''}", family.unit)
            while taken & _names(family.name, metric.kind):
                family = Family(f"{family.name}_", "")
        taken |= _names(family.name, metric.kind)
        found[metric] = family
    return found


def _names(name: str, kind: FamilyKind) -> set[str]:
    """The names that a family occupies: its own, and those of its samples."""
    return {name, *(f"{name}{suffix}" for suffix in _SAMPLES[kind])}


def labels(attributes: Mapping[str, Any], resource: Mapping[str, Any], scope: str) -> tuple[tuple[str, str], ...]:
    """The labels of a series, sorted: `otel_scope_name`, the resource attributes, then the attributes.

    An attribute that has the label of a resource attribute gets `exported_` before it, as Prometheus does it for labels of targets. Values
    of labels that are the same but for letters that Prometheus does not take are joined by `;`.
    """
    found: dict[str, str] = {"otel_scope_name": scope} if scope else {}
    # The name of the service is the label `job` of the target, and all series of a target are made by the same library.
    for name, value in _joined({name: value for name, value in resource.items() if name != "service.name" and name not in SDK}).items():
        found.setdefault(name, value)
    for name, value in _joined(attributes).items():
        while name in found or name == "le":
            name = f"exported_{name}"
        found[name] = value
    return tuple(sorted(found.items()))


def _joined(attributes: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in sorted(attributes):
        value = attributes[name]
        if value is not None:
            label, text = label_name(name), _text(value)
            found[label] = f"{found[label]};{text}" if label in found else text
    return found


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    from json import dumps

    return dumps(value, sort_keys=True, default=str)
