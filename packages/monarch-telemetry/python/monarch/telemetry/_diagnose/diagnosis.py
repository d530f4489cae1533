"""The result of a diagnosis, and its text: at most 40 lines and 8 kB, with every text of the job made printable."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from monarch.extension.masking import Masking
from monarch.telemetry._diagnose import registry
from monarch.telemetry._diagnose.detectors.ends import ENDS_PROCESS
from monarch.telemetry._diagnose.finding import Detector
from monarch.telemetry._diagnose.ranking import Cause, ranked
from monarch.telemetry._diagnose.registry import LeftOut
from monarch.telemetry._diagnose.snapshot import Node, Snapshot, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph
from monarch.telemetry._queries.values import printable

# The limits of a text: lines, bytes, bytes of a line, causes, and names in a list.
MOST_LINES = 40
MOST_BYTES = 8000
_MOST_LINE = 700
_MOST_CAUSES = 8
_MOST_NAMES = 4
# The limit of a diagnosis as JSON in bytes, with indentation: that of 100 to 300 causes. A program that reads it has to hold it whole, and
# an agent pays for each byte. The most texts of each list in it: the names of 512 ranks behind 512 causes would be megabytes.
MOST_JSON_BYTES = 256 << 10
_MOST_LISTED = 50

_Listed = TypeVar("_Listed")


class FoundCause(NamedTuple):
    """A cause as callers see it: plain texts. `waiting` has the names of what waits for it, `consequences` sentences that it explains."""

    detector: str
    sentence: str
    facts: tuple[tuple[str, str], ...]
    waiting: tuple[str, ...]
    consequences: tuple[str, ...]
    command: str


class Diagnosis(NamedTuple):
    """What is wrong with a job now: its causes, most likely first. `str()` is for a person, `to_json()` for a program.

    `healthy_procs` of `procs` are no part of a cause, `answered_hosts` of `hosts` have answered. `left_out` has each detector without a
    result with the reason, `missing` each source that gave no answer, `busy` the endpoints that have run longest.
    """

    causes: tuple[FoundCause, ...]
    procs: int
    healthy_procs: int
    hosts: int
    answered_hosts: int
    coverage: float
    busy: tuple[str, ...]
    detectors: tuple[str, ...]
    sources: tuple[str, ...]
    missing: tuple[str, ...]
    left_out: tuple[LeftOut, ...]

    def __str__(self) -> str:
        lines = [line for number, cause in enumerate(self.causes[:_MOST_CAUSES], 1) for line in _cause_lines(number, cause)]
        if not self.causes:
            # Without processes only the past was looked at.
            text = "nothing is wrong" if self.procs else "no cause was found, and no process could be looked at"
            lines = [text, *(f"  longest: {one}" for one in self.busy)]
        elif len(self.causes) == 1:
            lines.append("2  no second cause")
        elif len(self.causes) > _MOST_CAUSES:
            lines.append(f"   {len(self.causes) - _MOST_CAUSES} more causes: --json has all")
        tail = [
            f"healthy: {self.healthy_procs} of {self.procs} procs, {self.answered_hosts} of {self.hosts} hosts,"
            f" coverage {self.coverage:.0%}",
            f"looked at: {', '.join(self.sources)}; {len(self.detectors)} detectors: {', '.join(self.detectors)}",
            *(f"no answer: {one}" for one in self.missing[:_MOST_NAMES]),
            *(f"left out: detector {one.name}: {one.reason}" for one in self.left_out[:_MOST_NAMES]),
        ]
        return _bounded(lines, tail)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON objects, of at most `MOST_JSON_BYTES`, and the text as `text`. `omitted` has the number of things left out."""
        omitted: dict[str, int] = dict.fromkeys(("causes", "facts", "waiting", "consequences", "missing", "left_out"), 0)
        causes = list[dict[str, Any]]()
        found: dict[str, Any] = {
            **self._asdict(),
            "causes": causes,
            "missing": [_cut(one) for one in _listed("missing", self.missing, omitted)],
            "left_out": [one._asdict() for one in _listed("left_out", self.left_out, omitted)],
            "text": str(self),
            "omitted": omitted,
        }
        # The counts may have more figures at the end.
        size = _size(found) + 100
        for number, cause in enumerate(self.causes):
            left = dict(omitted)
            shown = _cause_object(cause, left)
            size += _size(shown)
            if size > MOST_JSON_BYTES:
                omitted["causes"] = len(self.causes) - number
                break
            causes.append(shown)
            omitted.update(left)
        return found


def _cause_object(cause: FoundCause, omitted: dict[str, int]) -> dict[str, Any]:
    return {
        **cause._asdict(),
        "facts": [{"text": text, "source": source} for text, source in _listed("facts", cause.facts, omitted)],
        "waiting": _listed("waiting", cause.waiting, omitted),
        "consequences": _listed("consequences", cause.consequences, omitted),
    }


def _listed(name: str, given: tuple[_Listed, ...], omitted: dict[str, int]) -> list[_Listed]:
    omitted[name] += max(0, len(given) - _MOST_LISTED)
    return list(given[:_MOST_LISTED])


def _size(found: dict[str, Any]) -> int:
    """The bytes of an object with indentation; a cause is in a list, which indents it by two steps more."""
    text = json.dumps(found, indent=2)
    return len(text) + 4 * (text.count("\n") + 1) + 2


def diagnosed(snapshot: Snapshot, detectors: tuple[Detector, ...] | None = None) -> Diagnosis:
    """The diagnosis of a snapshot, by these detectors or by those of all wheels."""
    broken: tuple[LeftOut, ...] = ()
    if detectors is None:
        detectors, broken = registry.load()
    graph = WaitGraph(snapshot)
    findings, left_out = registry.run(graph, detectors)
    causes = ranked(graph, findings)
    ill = {node[1] for cause in causes for node in (*cause.finding.nodes, *cause.waiting) if node[0] != "host"}
    ill |= {proc.uid for proc in snapshot.procs for cause in causes if ("host", proc.host) in cause.finding.nodes}
    # Processes that have ended are in no list any more.
    here = {(proc.host, proc.pid) for proc in snapshot.procs}
    ended = {(end.host, end.pid) for end in snapshot.ends if end.is_cause and end.kind in ENDS_PROCESS and end.pid is not None} - here
    answered = [host for host in snapshot.hosts if host.state != "lost" and not host.error]
    asked = len(snapshot.procs) + len(snapshot.hosts)
    silent = sum(not proc.answered for proc in snapshot.procs) + len(snapshot.hosts) - len(answered)
    # Failures of living processes come with the texts of their exceptions, as the program raised them.
    mask = Masking.of_environment(os.environ).text
    return Diagnosis(
        causes=tuple(_plain(graph, cause, mask) for cause in causes),
        procs=len(snapshot.procs) + len(ended),
        healthy_procs=sum(proc.uid not in ill for proc in snapshot.procs),
        hosts=len(snapshot.hosts),
        answered_hosts=len(answered),
        coverage=1.0 if not asked else (asked - silent) / asked,
        busy=_busy(graph),
        detectors=tuple(one.name for one in detectors if one.name not in {left.name for left in left_out}),
        sources=snapshot.sources,
        missing=tuple(mask(one) for one in snapshot.missing),
        left_out=(*broken, *left_out),
    )


def _plain(graph: WaitGraph, cause: Cause, mask: Callable[[str], str]) -> FoundCause:
    """The cause as texts without secrets."""
    finding = cause.finding
    return FoundCause(
        finding.detector,
        mask(finding.sentence),
        tuple((mask(one.text), one.source) for one in finding.facts),
        tuple(dict.fromkeys(mask(graph.index.label(node)) for node in _shown(cause.waiting))),
        tuple(mask(one.sentence) for one in cause.consequences),
        finding.command,
    )


def _shown(nodes: tuple[Node, ...]) -> list[Node]:
    """Actors and threads before processes; a process whose actor is shown is left out."""
    actors = {node[1] for node in nodes if node[0] == "actor"}
    return [node for node in nodes if node[0] != "proc" or node[1] not in actors]


def _busy(graph: WaitGraph) -> tuple[str, ...]:
    """The endpoints that have run longest."""
    actors = sorted((one for one in graph.index.snapshot.actors if one.doing is not None), key=lambda one: -one.doing_for)
    found: list[str] = []
    for one in actors[:2]:
        node: Node = ("actor", one.proc, one.mesh)
        place = graph.index.place(node)
        where = f" in {place}" if place else ""
        found.append(f"{graph.index.label(node)} runs {one.doing}() since {seconds(one.doing_for)}{where}")
    return tuple(found)


def _cause_lines(number: int, cause: FoundCause) -> list[str]:
    lines = [f"{number}  {cause.sentence}"]
    command = f"      next: {cause.command}" if cause.command else ""
    if cause.facts or command:
        lines.append(f"   evidence: {'; '.join(f'{text} ({source})' for text, source in cause.facts)}{command}")
    if cause.waiting:
        lines.append(f"   explains: {len(cause.waiting)} {'waits' if len(cause.waiting) == 1 else 'wait'} for it: {_names(cause.waiting)}")
    lines += [f"   consequence: {one}" for one in cause.consequences[:2]]
    return lines


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else "")


def _bounded(lines: list[str], tail: list[str]) -> str:
    """The lines within the limits; the tail is always there."""
    # A character has a byte at least: what is behind the limit is not looked at.
    shown = [_cut(printable(line[: _MOST_LINE + 1])) for line in lines]
    end = [_cut(printable(line[: _MOST_LINE + 1])) for line in tail]
    while len(shown) + len(end) > MOST_LINES or sum(len(line.encode("utf-8", "replace")) + 1 for line in (*shown, *end)) > MOST_BYTES:
        shown.pop()
    return "\n".join([*shown, *end])


def _cut(line: str) -> str:
    data = line.encode("utf-8", "replace")
    return line if len(data) <= _MOST_LINE else f"{data[: _MOST_LINE - 3].decode('utf-8', 'ignore')}…"
