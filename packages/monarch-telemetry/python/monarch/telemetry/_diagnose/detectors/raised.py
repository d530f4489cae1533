"""Endpoints that wait in Python while a thread or task of their process has ended with an exception, which no code has seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.kernel_waits import LEAST
from monarch.telemetry._diagnose.snapshot import Actor, Frame, Node, Proc, Thread, seconds
from monarch.telemetry._diagnose.supplies import Supply
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The seconds before its endpoint from which an exception explains no wait for an event: the thread has not been missed since.
_OLD = 60.0
# The threads between a wait and the one that has to act first.
_MOST_STEPS = 4
# The files of the waits of threads and of event loops.
_WAITS = ("/threading.py", "/queue.py", "/selectors.py", "/asyncio/base_events.py")


class _Raised(NamedTuple):
    """An exception that has ended a thread or task: the kind and name of that, the text and place of the exception.

    `age`: the seconds since then, if they are known.
    """

    name: str
    error: str
    at: str
    age: float | None


class _Found(NamedTuple):
    """An endpoint, the node of its process at which all waits end, and the exceptions there."""

    actor: Actor
    node: Node
    raised: list[_Raised]


def waiting(graph: WaitGraph) -> list[Finding]:
    """One finding for all ranks that wait at one place, and whose exceptions are of one class and place."""
    waits = {(one.proc, one.thread): one for one in graph.index.snapshot.supplies}
    by_node: dict[Node, _Found] = {}
    for actor in graph.index.snapshot.actors:
        proc = graph.index.procs.get(actor.proc)
        if proc is None or actor.doing is None or actor.doing_for < LEAST or not proc.resources.get("raised"):
            continue
        node: Node = ("actor", actor.proc, actor.mesh)
        others = graph.waited_for_by([node])
        ends = [one for one in (node, *sorted(others)) if not graph.targets(one)]
        raised = [one for one in _raised(proc) if one.age is None or one.age <= actor.doing_for + _OLD]
        if not raised or not ends or not all(one[0] != "host" and one[1] == actor.proc and _waits(graph, one, waits) for one in ends):
            continue
        by_node.setdefault(ends[0], _Found(actor, ends[0], raised))
    groups: dict[tuple[str, ...], list[_Found]] = {}
    for one in by_node.values():
        last = one.raised[-1]
        # The text of an exception may have a number of the rank.
        key = (one.actor.mesh, one.node[0], graph.index.place(one.node), last.error.partition(":")[0], last.at)
        groups.setdefault(key, []).append(one)
    return [_finding(graph, group) for group in groups.values()]


def _waits(graph: WaitGraph, node: Node, waits: Mapping[tuple[str, int], Supply]) -> bool:
    thread = graph.index.thread_of(node)
    if thread is None or not thread.paused or not any(frame.file.endswith(_WAITS) for frame in thread.frames[:2]):
        return False
    return not _is_supplied((node[1], thread.number), waits)


def _is_supplied(key: tuple[str, int], waits: Mapping[tuple[str, int], Supply], steps: int = _MOST_STEPS) -> bool:
    """Whether a program or a living thread supplies what a thread waits for; a supplier may itself wait for what an ended one supplied."""
    supply = waits.get(key)
    if supply is None or not steps:
        return False
    others = [(supply.proc, number) for number in supply.threads]
    return bool(supply.programs) or any(one not in waits or _is_supplied(one, waits, steps - 1) for one in others)


def _raised(proc: Proc) -> Iterator[_Raised]:
    try:
        for row in cast("list[Mapping[str, Any]]", proc.resources.get("raised", ())):
            thread = Thread(0, "", tuple(Frame(*frame) for frame in row["frames"]))
            at = thread.place()
            age = row.get("age")
            name = f"{row['kind']} {row['name']}"
            yield _Raised(name, str(row["error"]), "" if at is None else f" in {at.short}", None if age is None else float(age))
    except (AttributeError, KeyError, TypeError, ValueError):  # of another release
        return


def _finding(graph: WaitGraph, group: list[_Found]) -> Finding:
    index = graph.index
    group = sorted(group, key=lambda each: (each.actor.rank or 0, each.actor.proc))
    actor, node, raised = group[0]
    last, others = raised[-1], [index.label(each.node) for each in group[1:]]
    place = index.place(node) or f"{actor.doing}()"
    also = f", and so {'do' if len(others) > 1 else 'does'} {len(others)} more" if others else ""
    ended = f"{last.name} of {'each' if others else 'the'} process has ended with {last.error}{last.at}"
    since = seconds(max(each.actor.doing_for for each in group))
    sentence = f"{index.full(node)} has waited in {place} for {since}{also}; {ended}"
    source = "exceptions that no code has seen"
    facts = [Fact(f"{one.name} has raised {one.error}{one.at}", source) for one in raised[:3]]
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        facts.append(Fact(f"the same: {', '.join(others[:3])}{more}", source))
    nodes = dict.fromkeys(one for each in group for one in (each.node, ("proc", each.actor.proc)))
    return Finding(sentence, tuple(nodes), tuple(facts), "monarch stack", 62)


DETECTORS = (Detector("raised", "endpoints that wait while a thread or task of their process has ended with an exception", waiting),)
