"""Cycles of the wait graph: actors that wait for each other, and actors that wait for themselves."""

from __future__ import annotations

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Actor, Node, seconds
from monarch.telemetry._diagnose.wait_graph import Edge, WaitGraph


def deadlocked(graph: WaitGraph) -> list[Finding]:
    """One finding for each set of nodes that wait for each other."""
    return [_finding(graph, cycle) for cycle in graph.cycles() if all(edge.wait is not None for edge in cycle)]


def _finding(graph: WaitGraph, cycle: list[Edge]) -> Finding:
    index = graph.index
    nodes = [edge.source for edge in cycle]
    since = _since(graph, nodes)
    first = cycle[0]
    place = index.place(first.source)
    where = f"in {place} " if place else ""
    for_long = "" if since is None else f" since {seconds(since)}"
    if len(cycle) == 1:
        wait = first.wait
        if wait is not None and wait.lock is not None:
            sentence = f"{index.full(first.source)} waits {where}for a lock that its own thread holds{for_long}"
        elif wait is not None and wait.thing:
            sentence = f"{index.full(first.source)} waits {where}for {wait.thing}{for_long}"
        else:
            endpoint = "an endpoint" if wait is None else f"its own endpoint {wait.endpoint}()"
            sentence = (
                f"{index.full(first.source)} waits {where}for {endpoint}, which can begin only when {_doing(graph, first.source)} ends: "
                f"an actor that waits for itself{for_long}"
            )
    else:
        rest = "".join(f", which waits for {_target(graph, edge)}" for edge in cycle[1:])
        sentence = f"{index.full(first.source)} waits {where}for {_target(graph, first)}{rest}: a cycle of {len(cycle)}{for_long}"
    limits = [edge.wait.timeout for edge in cycle if edge.wait is not None and edge.wait.timeout is not None]
    if limits:
        sentence += f"; a wait has a limit of {seconds(min(limits))}"
    places = [f"{index.label(edge.source)} waits{_at(graph, edge.source)}" for edge in cycle[:4]]
    facts = [Fact(", ".join(places), "waits, two looks")]
    queued = [(index.label(node), actor.queued) for node in nodes if (actor := _actor(graph, node)) is not None and actor.queued]
    if queued:
        counts = ", ".join(f"{label} {count}" for label, count in queued[:4])
        facts.append(Fact(f"messages in queues: {counts}", "queues"))
    return Finding(sentence, tuple(nodes), tuple(facts), "monarch stack", 85)


def _target(graph: WaitGraph, edge: Edge) -> str:
    label = graph.index.label(edge.target)
    if edge.wait is not None and edge.wait.lock is not None:
        return f"a lock of {label}"
    if edge.wait is not None and edge.wait.thing:
        return f"{edge.wait.thing} of {label}"
    return label if edge.wait is None else f"{label} ({edge.wait.endpoint}())"


def _at(graph: WaitGraph, node: Node) -> str:
    place = graph.index.place(node)
    return f" in {place}" if place else ""


def _doing(graph: WaitGraph, node: Node) -> str:
    actor = _actor(graph, node)
    return "the endpoint in progress" if actor is None or actor.doing is None else f"{actor.doing}()"


def _actor(graph: WaitGraph, node: Node) -> Actor | None:
    return graph.index.actors.get((node[1], node[2])) if node[0] == "actor" else None


def _since(graph: WaitGraph, nodes: list[Node]) -> float | None:
    """The age of the youngest endpoint in the cycle: the cycle is not older."""
    ages = [actor.doing_for for node in nodes if (actor := _actor(graph, node)) is not None and actor.doing is not None]
    return min(ages) if ages else None


DETECTORS = (Detector("deadlock", "cycles of calls in flight and of locks, seen in two looks", deadlocked),)
