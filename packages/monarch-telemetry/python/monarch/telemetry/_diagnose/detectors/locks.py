"""Locks for which a thread waits while another thread holds them without progress."""

from __future__ import annotations

from typing import NamedTuple

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Node, Wait, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The seconds of an endpoint after which its wait for a lock is a finding: shorter ones are ordinary.
LEAST = 5.0


class _Held(NamedTuple):
    """A lock of a process: the node that waits longest in it, its wait, and the node that holds the lock, if it is known."""

    node: Node
    wait: Wait
    since: float
    holder: Node | None
    facts: tuple[Fact, ...]


def held(graph: WaitGraph) -> list[Finding]:
    """One finding for each held lock that keeps an endpoint, if its holder stands still and waits for nothing itself.

    Ranks that wait alike, each for a lock of its own process, have one.
    """
    waits: dict[tuple[str, str], list[Wait]] = {}
    for wait in graph.index.snapshot.waits:
        if wait.lock is not None:
            waits.setdefault((wait.proc, wait.lock), []).append(wait)
    groups: dict[tuple[str, ...], list[_Held]] = {}
    for group in waits.values():
        if (one := _held(graph, group)) is not None:
            # The name of an actor without its rank.
            name = actor.name if (actor := graph.index.actors.get((one.node[1], one.node[-1]))) is not None else one.node[1]
            key = (name, graph.index.place(one.node), "" if one.holder is None else _place(graph, one))
            groups.setdefault(key, []).append(one)
    return [_finding(graph, group) for group in groups.values()]


def _held(graph: WaitGraph, waits: list[Wait]) -> _Held | None:
    index = graph.index
    waiting = [(index.node_of_thread(wait.proc, wait.thread), wait) for wait in waits]
    ages = [actor.doing_for for node, _ in waiting if node[0] == "actor" and (actor := index.actors[node[1], node[2]]).doing is not None]
    if not ages or max(ages) < LEAST:
        return None
    node, wait = waiting[0]
    facts = tuple(Fact(f"{index.label(one)} waits in {index.place(one)}", "waits, two looks") for one, _ in waiting[:3])
    if wait.holder is None:
        return _Held(node, wait, max(ages), None, facts)
    holder: Node = index.node_of_thread(wait.proc, wait.holder)
    thread = index.threads.get((wait.proc, wait.holder))
    if thread is None or not thread.paused or graph.targets(holder):
        # A holder that goes on will release the lock; one that waits is a consequence of what it waits for.
        return None
    return _Held(node, wait, max(ages), holder, facts)


def _place(graph: WaitGraph, one: _Held) -> str:
    return one.wait.held_at.short if one.wait.held_at is not None else graph.index.place(one.holder or one.node)


def _finding(graph: WaitGraph, group: list[_Held]) -> Finding:
    index = graph.index
    group = sorted(group, key=lambda one: index.procs[one.wait.proc].rank or 0)
    first, since = group[0], seconds(max(one.since for one in group))
    facts, others = [*first.facts], [index.label(one.node) for one in group[1:]]
    also = f"; {len(others)} more {'wait' if len(others) > 1 else 'waits'} alike" if others else ""
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    alike = [Fact(f"the same: {', '.join(others[:3])}{more}", "waits, two looks")] if others else []
    if first.holder is None:
        sentence = (
            f"{index.full(first.node)} waits in {index.place(first.node)} for a lock since {since}; no thread that stands in a with "
            f"statement holds it{also}"
        )
        return Finding(sentence, tuple(one.node for one in group), (*facts, *alike), "monarch stack --all", 60)
    place = _place(graph, first)
    facts.append(Fact(f"the holder stands in {index.place(first.holder) or place}", "stacks, two looks"))
    sentence = f"{index.full(first.holder)} holds a lock in {place} for which {index.label(first.node)} waits since {since}{also}"
    holders = tuple(one.holder for one in group if one.holder is not None)
    return Finding(sentence, holders, (*facts, *alike), "monarch stack --all", 75)


DETECTORS = (Detector("lock", f"locks that keep an endpoint for {LEAST:g} s or longer while their holder stands still", held),)
