"""Queues of messages that grow: senders are faster than the actor."""

from __future__ import annotations

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Actor, Node, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# A queue is long from this number of messages, whatever it does.
_LONG = 200
# How many seconds of the actor's own speed a growing queue has to hold, so that a short burst is none.
_BACKLOG = 10.0
# The seconds of an endpoint behind which a growing queue is no burst.
_STUCK = 5.0


def growing(graph: WaitGraph) -> list[Finding]:
    """One finding for each actor whose long queue has grown between both looks, and that will not be done with it soon."""
    return [_finding(graph, actor) for actor in graph.index.snapshot.actors if _grows(actor, graph.index.snapshot.seconds)]


def _grows(actor: Actor, between: float) -> bool:
    if actor.queued_before is None or actor.taken_before is None or between <= 0:
        return False
    if actor.queued < _LONG or actor.queued <= actor.queued_before:
        return False
    taken = actor.taken - actor.taken_before
    if taken == 0:
        return actor.doing is not None and actor.doing_for >= _STUCK
    return actor.queued / (taken / between) >= _BACKLOG


def _finding(graph: WaitGraph, actor: Actor) -> Finding:
    between = graph.index.snapshot.seconds
    taken = (actor.taken - (actor.taken_before or 0)) / between
    arrived = taken + (actor.queued - (actor.queued_before or 0)) / between
    node: Node = ("actor", actor.proc, actor.mesh)
    place = graph.index.place(node)
    sentence = (
        f"{graph.index.full(node)} handles {taken:.0f} messages/s while {arrived:.0f}/s arrive: "
        f"{actor.queued:,} messages wait and their number grows"
    )
    doing = (
        f"{actor.doing}() since {seconds(actor.doing_for)}{f' in {place}' if place else ''}" if actor.doing else "no endpoint in progress"
    )
    facts = (
        Fact(f"queue {actor.queued_before:,} to {actor.queued:,} messages in {seconds(between)}", "queues, two looks"),
        Fact(doing, "stacks"),
    )
    return Finding(sentence, (node,), facts, "monarch stack", 45)


DETECTORS = (Detector("growing_queue", f"queues of {_LONG} messages or more that grow faster than their actor works", growing),)
