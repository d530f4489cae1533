"""Endpoints that wait in Python while a thread or task of their process has ended with an exception, which no code has seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.kernel_waits import LEAST
from monarch.telemetry._diagnose.snapshot import Actor, Frame, Node, Proc, Thread, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The files of the waits of threads and of event loops.
_WAITS = ("/threading.py", "/queue.py", "/selectors.py", "/asyncio/base_events.py")


def waiting(graph: WaitGraph) -> list[Finding]:
    """One finding for each process with such an endpoint, or with a thread for which it waits."""
    found: dict[Node, Finding] = {}
    for actor in graph.index.snapshot.actors:
        proc = graph.index.procs.get(actor.proc)
        raised = [] if proc is None else list(_raised(proc))
        if not raised or actor.doing is None or actor.doing_for < LEAST:
            continue
        node: Node = ("actor", actor.proc, actor.mesh)
        others = graph.waited_for_by([node])
        ends = [one for one in (node, *sorted(others)) if not graph.targets(one)]
        if ends and all(one[0] != "host" and one[1] == actor.proc and _waits(graph, one) for one in ends):
            found.setdefault(ends[0], _finding(graph, actor, ends[0], raised))
    return list(found.values())


def _waits(graph: WaitGraph, node: Node) -> bool:
    thread = graph.index.thread_of(node)
    return thread is not None and thread.paused and any(frame.file.endswith(_WAITS) for frame in thread.frames[:2])


def _raised(proc: Proc) -> Iterator[tuple[str, str, str]]:
    """The name of each thread or task that has raised, the exception, and its place."""
    try:
        for row in cast("list[Mapping[str, Any]]", proc.resources.get("raised", ())):
            thread = Thread(0, "", tuple(Frame(*frame) for frame in row["frames"]))
            at = thread.place()
            yield f"{row['kind']} {row['name']}", str(row["error"]), "" if at is None else f" in {at.short}"
    except (AttributeError, KeyError, TypeError, ValueError):  # of another release
        return


def _finding(graph: WaitGraph, actor: Actor, node: Node, raised: list[tuple[str, str, str]]) -> Finding:
    index = graph.index
    name, error, at = raised[-1]
    place = index.place(node) or f"{actor.doing}()"
    ended = f"{name} of the process has ended with {error}{at}"
    sentence = f"{index.full(node)} has waited in {place} for {seconds(actor.doing_for)}; {ended}"
    facts = [Fact(f"{one} has raised {text}{place}", "exceptions that no code has seen") for one, text, place in raised[:3]]
    return Finding(sentence, (node, ("proc", actor.proc)), tuple(facts), "monarch stack", 62)


DETECTORS = (Detector("raised", "endpoints that wait while a thread or task of their process has ended with an exception", waiting),)
