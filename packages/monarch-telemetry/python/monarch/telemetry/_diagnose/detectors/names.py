"""Endpoints that wait for a name server: their thread stands in the resolution of a name in both looks."""

from __future__ import annotations

from monarch.telemetry._diagnose.detectors.suppliers import last_supply
from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Actor, Node, seconds
from monarch.telemetry._diagnose.supplies import Lookup
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The seconds of an endpoint from which its wait is a finding. A resolver asks again after five.
LEAST = 5.0
# The names of the threads of `asyncio` begin with this.
_OF_LOOP = "asyncio_"


def resolving(graph: WaitGraph) -> list[Finding]:
    """One finding for each actor that waits for an address, by its own thread or by one that it waits for."""
    lookups = {(one.proc, one.thread): one for one in graph.index.snapshot.lookups}
    waits = {(one.proc, one.thread): one for one in graph.index.snapshot.supplies}
    found: list[Finding] = []
    for actor in graph.index.snapshot.actors:
        if actor.doing is None or actor.doing_for < LEAST:
            continue
        own = (actor.proc, actor.thread)
        suppliers = [(actor.proc, number) for number in last_supply(waits[own], waits).threads] if own in waits else []
        for key in (own, *suppliers, *_of_loop(graph, actor)):
            thread = graph.index.threads.get(key)
            if key in lookups and thread is not None and thread.paused:
                found.append(_finding(graph, actor, lookups[key]))
                break
    return found


def _of_loop(graph: WaitGraph, actor: Actor) -> list[tuple[str, int]]:
    """The threads in which the event loop of an actor runs functions that block."""
    thread = graph.index.threads.get((actor.proc, actor.thread))
    if thread is None or not any(frame.file.endswith("/asyncio/base_events.py") for frame in thread.frames):
        return []
    return [(proc, number) for (proc, number), one in graph.index.threads.items() if proc == actor.proc and one.name.startswith(_OF_LOOP)]


def _finding(graph: WaitGraph, actor: Actor, lookup: Lookup) -> Finding:
    node: Node = ("actor", actor.proc, actor.mesh)
    thread: Node = ("thread", lookup.proc, str(lookup.thread))
    is_own = lookup.thread == actor.thread
    name = f"the name {lookup.name}" if lookup.name else "a name"
    place = graph.index.place(node if is_own else thread)
    by = "" if is_own else f" by {graph.index.label(thread)}"
    servers = ", ".join(lookup.servers[:3])
    one = "server" if len(lookup.servers) == 1 else "servers"
    answer = f"the name {one} {servers} {'does' if one == 'server' else 'do'} not answer" if servers else "no name server answers"
    sentence = f"{graph.index.full(node)} has waited for the address of {name}{by} in {place} for {seconds(actor.doing_for)}: {answer}"
    facts = [Fact(f"{actor.doing}() stands in {lookup.function}()", "stacks, two looks")]
    if servers:
        facts.append(Fact(f"name servers that were asked or are set: {servers}", "/proc/PID/net/udp, /etc/resolv.conf"))
    nodes: tuple[Node, ...] = (node, ("proc", actor.proc), *(() if is_own else (thread,)))
    return Finding(sentence, nodes, tuple(facts), "cat /etc/resolv.conf", 77)


DETECTORS = (Detector("names", f"endpoints that have waited for {LEAST:g} s or longer for the address of a name", resolving),)
