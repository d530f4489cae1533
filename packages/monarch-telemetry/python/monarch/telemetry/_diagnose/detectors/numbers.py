"""Metrics of the program that are no finite number any more: the rank and the time at which this began."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Node, ranked, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph


class _Series(NamedTuple):
    """A gauge of a rank. `first` is the time of its first value that is no finite number, in microseconds, `value` this value."""

    name: str
    mesh: str
    rank: int | None
    pid: int
    first: int
    value: str
    now: int
    step: float | None


def spreading(graph: WaitGraph) -> list[Finding]:
    """One finding for each mesh: the first of its series that was finite and is not any more."""
    by_mesh: dict[str, list[_Series]] = {}
    for row in graph.index.snapshot.rows.get("numbers", ()):
        one = _series(row)
        by_mesh.setdefault(one.mesh, []).append(one)
    return [_finding(graph, sorted(ones, key=lambda one: one.first)) for ones in by_mesh.values()]


def _series(row: Mapping[str, Any]) -> _Series:
    of = cast("dict[str, Any]", json.loads(row["resource"]))
    rank, step = of.get("monarch.rank"), row.get("step")
    return _Series(
        str(row["name"]),
        str(of.get("monarch.mesh", "")),
        None if rank is None else int(rank),
        int(of.get("process.pid", 0)),
        int(row["first_us"]),
        "NaN" if row["is_nan"] else "infinite",
        int(row["now_us"]),
        None if step is None else float(step),
    )


def _finding(graph: WaitGraph, ones: list[_Series]) -> Finding:
    first = ones[0]
    node: Node | None = next(
        (("proc", one.uid) for one in graph.index.snapshot.procs if one.pid == first.pid and one.mesh is not None), None
    )
    name = ranked(first.mesh or "a process", first.rank, 0) if node is None else graph.index.of_proc(node[1])
    step = f" at step {first.step:,.0f}" if first.step is not None else ""
    ago = seconds(max(0.0, (first.now - first.first) / 1e6))
    later: dict[int, int] = {}
    for one in ones:
        if one.pid != first.pid:
            later.setdefault(one.pid, one.first)
    others = "no other rank" if not later else f"{len(later)} other {'rank' if len(later) == 1 else 'ranks'}"
    sentence = f"the metric {first.name} of {name} is {first.value} since {ago}{step}: it was finite before, and {others} followed"
    facts = [Fact(f"{first.name} of {name} first", "table metric_gauges")]
    if later:
        facts.append(Fact(f"the next rank {(min(later.values()) - first.first) / 1e6:.6f} s after it", "table metric_gauges"))
    own = {node[1]} if node is not None else set[str]()
    nodes: tuple[Node, ...] = (
        () if node is None else (node, *(("actor", one.proc, one.mesh) for one in graph.index.snapshot.actors if one.proc in own))
    )
    command = "monarch query 'SELECT * FROM metric_gauges WHERE isnan(value_f64) ORDER BY timestamp_us LIMIT 9'"
    return Finding(sentence, nodes, tuple(facts), command, 56)


DETECTORS = (Detector("numbers", "gauges of the program that became NaN or infinite, and the first rank of them", spreading),)
