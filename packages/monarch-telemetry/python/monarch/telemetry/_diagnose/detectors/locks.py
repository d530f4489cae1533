"""Locks for which a thread waits while another thread holds them without progress."""

from __future__ import annotations

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Node, Wait, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The seconds of an endpoint after which its wait for a lock is a finding: shorter ones are ordinary.
LEAST = 5.0


def held(graph: WaitGraph) -> list[Finding]:
    """One finding for each held lock that keeps an endpoint, if its holder stands still and waits for nothing itself."""
    waits: dict[tuple[str, str], list[Wait]] = {}
    for wait in graph.index.snapshot.waits:
        if wait.lock is not None:
            waits.setdefault((wait.proc, wait.lock), []).append(wait)
    return [finding for group in waits.values() if (finding := _finding(graph, group)) is not None]


def _finding(graph: WaitGraph, waits: list[Wait]) -> Finding | None:
    index = graph.index
    waiting = [(index.node_of_thread(wait.proc, wait.thread), wait) for wait in waits]
    ages = [actor.doing_for for node, _ in waiting if node[0] == "actor" and (actor := index.actors[node[1], node[2]]).doing is not None]
    if not ages or max(ages) < LEAST:
        return None
    node, wait = waiting[0]
    facts = [Fact(f"{index.label(one)} waits in {index.place(one)}", "waits, two looks") for one, _ in waiting[:3]]
    since = seconds(max(ages))
    if wait.holder is None:
        sentence = (
            f"{index.full(node)} waits in {index.place(node)} for a lock since {since}; no thread that stands in a with statement holds it"
        )
        return Finding(sentence, (node,), tuple(facts), "monarch stack --all", 60)
    holder: Node = index.node_of_thread(wait.proc, wait.holder)
    thread = index.threads.get((wait.proc, wait.holder))
    if thread is None or not thread.paused or graph.targets(holder):
        # A holder that goes on will release the lock; one that waits is a consequence of what it waits for.
        return None
    place = wait.held_at.short if wait.held_at is not None else index.place(holder)
    facts.append(Fact(f"the holder stands in {index.place(holder) or place}", "stacks, two looks"))
    sentence = f"{index.full(holder)} holds a lock in {place} for which {index.label(node)} waits since {since}"
    return Finding(sentence, (holder,), tuple(facts), "monarch stack --all", 75)


DETECTORS = (Detector("lock", f"locks that keep an endpoint for {LEAST:g} s or longer while their holder stands still", held),)
