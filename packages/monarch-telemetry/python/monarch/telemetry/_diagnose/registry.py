"""All detectors: those of this wheel, and those of other wheels by the entry points `monarch.detector`.

An entry point refers to a `Detector`, or a tuple of them. A detector that cannot be loaded, that raises, that gives other types, or that
does not return in time is named and left out.
"""

from __future__ import annotations

import threading
import time
from itertools import islice
from typing import NamedTuple, cast

from monarch.extension import BrokenEntry, entry_names, load_entry
from monarch.telemetry._diagnose.detectors import (
    clocks,
    collectives,
    deadlock,
    differences,
    disks,
    ends,
    event_loops,
    growth,
    hosts,
    imports,
    leaks,
    limits,
    links,
    locks,
    memory,
    names,
    numbers,
    outside,
    prints,
    processors,
    programs,
    queues,
    raised,
    schedulers,
    starts,
    suppliers,
    swapping,
    unresponsive,
)
from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.wait_graph import WaitGraph

GROUP = "monarch.detector"
OWN: tuple[Detector, ...] = tuple(
    one
    for module in (
        ends,
        hosts,
        schedulers,
        unresponsive,
        programs,
        processors,
        deadlock,
        locks,
        memory,
        limits,
        disks,
        names,
        outside,
        suppliers,
        starts,
        swapping,
        prints,
        event_loops,
        raised,
        links,
        leaks,
        growth,
        clocks,
        imports,
        queues,
        collectives,
        differences,
        numbers,
    )
    for one in module.DETECTORS
)
_MOST_TEXT = 200
# The most findings of a detector, and the most characters of each text of a finding.
_MOST_FINDINGS = 10_000
_MOST_SENTENCE = 4000
# The parts of each kind of node.
_SIZES = {"host": 2, "proc": 2, "actor": 3, "thread": 3}
# Seconds for all detectors together. They are pure functions, which need milliseconds.
SECONDS = 10.0


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
        if several and all(isinstance(one, Detector) and isinstance(cast("object", one.name), str) for one in several):
            found += cast("tuple[Detector, ...]", several)
        else:
            left_out.append(LeftOut(name, f"{entry.wheel}: {entry.target} is no Detector"[:_MOST_TEXT]))
    return tuple(found), tuple(left_out)


def run(graph: WaitGraph, detectors: tuple[Detector, ...], seconds: float = SECONDS) -> tuple[list[Finding], list[LeftOut]]:
    """The findings of all detectors, each with the name of its own. A detector that does not return keeps its thread."""
    found, left_out = list[Finding](), list[LeftOut]()
    until = time.monotonic() + seconds
    for one in detectors:
        answer = _Answer(one, graph)
        answer.start()
        answer.join(max(until - time.monotonic(), 0.0))
        if answer.is_alive():
            left_out.append(LeftOut(one.name, f"it has not returned; all detectors have {seconds:g} s"))
        elif answer.error is not None:
            left_out.append(LeftOut(one.name, _described(answer.error)))
        else:
            found += answer.found
    return found, left_out


class _Answer(threading.Thread):
    """The findings of a detector, or the error that it raised."""

    def __init__(self, detector: Detector, graph: WaitGraph) -> None:
        super().__init__(name=f"monarch-detector-{detector.name}", daemon=True)
        self._detector, self._graph = detector, graph
        self.found: list[Finding] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            given = islice(self._detector.test(self._graph), _MOST_FINDINGS)
            self.found = [_checked(finding)._replace(detector=self._detector.name) for finding in given]
        except BaseException as error:  # another wheel may raise anything, and its finding may have any form
            self.error = error


def _checked(given: Finding) -> Finding:
    """The finding; `TypeError` for one whose fields have other types, which would fail later without the name of its detector."""
    found = Finding(*given)
    facts = tuple(Fact(*one) for one in found.facts)
    texts: list[object] = [found.sentence, found.command, *(part for one in facts for part in one)]
    nodes = [*found.nodes, *found.explains]
    if not all(isinstance(one, str) for one in texts) or not all(_is_node(node) for node in nodes):
        raise TypeError(f"a finding with fields of other types: {given!r}"[:_MOST_TEXT])
    return found._replace(
        sentence=found.sentence[:_MOST_SENTENCE],
        nodes=tuple(found.nodes),
        facts=tuple(Fact(one.text[:_MOST_SENTENCE], one.source[:_MOST_TEXT]) for one in facts),
        command=found.command[:_MOST_SENTENCE],
        weight=int(found.weight),
        explains=tuple(found.explains),
    )


def _is_node(node: object) -> bool:
    """Whether an object is a `Node`: the kind, and the parts that it has."""
    parts = cast("tuple[object, ...]", node) if isinstance(node, tuple) else ()
    if not parts or not all(isinstance(part, str) for part in parts) or _SIZES.get(str(parts[0])) != len(parts):
        return False
    return parts[0] != "thread" or str(parts[2]).lstrip("-").isdecimal()


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_MOST_TEXT]
    except Exception:  # a class of another wheel
        return type(error).__name__
