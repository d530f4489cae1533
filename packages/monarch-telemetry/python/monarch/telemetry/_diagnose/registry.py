"""All detectors: those of this wheel, and those of other wheels by the entry points `monarch.detector`.

An entry point refers to a `Detector`, or a tuple of them. A detector that cannot be loaded, or that raises, is named and left out.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from monarch.extension import BrokenEntry, entry_names, load_entry
from monarch.telemetry._diagnose.detectors import deadlock, ends, hosts, imports, limits, locks, queues, unresponsive
from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.wait_graph import WaitGraph

GROUP = "monarch.detector"
OWN: tuple[Detector, ...] = tuple(
    one for module in (ends, hosts, unresponsive, deadlock, locks, limits, imports, queues) for one in module.DETECTORS
)
_MOST_TEXT = 200


class LeftOut(NamedTuple):
    """A detector without a result, and the reason."""

    name: str
    reason: str


def load() -> tuple[tuple[Detector, ...], tuple[LeftOut, ...]]:
    """The detectors of all wheels, and those that cannot be loaded."""
    found, left_out = list(OWN), list[LeftOut]()
    for name in entry_names(GROUP):
        entry = load_entry(GROUP, name)
        if entry is None:
            continue
        if isinstance(entry, BrokenEntry):
            left_out.append(LeftOut(name, entry.describe()[:_MOST_TEXT]))
            continue
        given = cast("object", entry.value)
        several = cast("tuple[object, ...]", (given,) if isinstance(given, Detector) else given if isinstance(given, tuple) else ())
        if several and all(isinstance(one, Detector) for one in several):
            found += cast("tuple[Detector, ...]", several)
        else:
            left_out.append(LeftOut(name, f"{entry.wheel}: {entry.target} is no Detector"[:_MOST_TEXT]))
    return tuple(found), tuple(left_out)


def run(graph: WaitGraph, detectors: tuple[Detector, ...]) -> tuple[list[Finding], list[LeftOut]]:
    """The findings of all detectors, each with the name of its own."""
    found, left_out = list[Finding](), list[LeftOut]()
    for one in detectors:
        try:
            found += [_checked(finding)._replace(detector=one.name) for finding in one.test(graph)]
        except Exception as error:  # another wheel may raise anything, and its finding may have any form
            left_out.append(LeftOut(one.name, _described(error)))
    return found, left_out


def _checked(given: Finding) -> Finding:
    """The finding; `TypeError` for one whose fields have other types, which would fail later without the name of its detector."""
    found = Finding(*given)
    texts: tuple[object, ...] = (found.sentence, found.command, *(part for one in found.facts for part in Fact(*one)))
    parts: list[object] = [part for node in (*found.nodes, *found.explains) for part in tuple(node)]
    if not all(isinstance(one, str) for one in (*texts, *parts)):
        raise TypeError(f"a finding with fields of other types: {given!r}"[:_MOST_TEXT])
    facts = tuple(Fact(*one) for one in found.facts)
    return found._replace(weight=int(found.weight), facts=facts)


def _described(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_MOST_TEXT]
    except Exception:  # a class of another wheel
        return type(error).__name__
