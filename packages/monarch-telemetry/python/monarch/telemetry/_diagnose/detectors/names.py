"""Endpoints that wait for a name server: their thread stands in the resolution of a name in both looks."""

from __future__ import annotations

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Actor, Node, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The seconds of an endpoint from which its wait is a finding. A resolver asks again after five.
LEAST = 5.0
# The functions of the library that resolve a name, and have no frame of Python below them.
_RESOLVING = ("getaddrinfo", "gethostbyname", "getfqdn")


def resolving(graph: WaitGraph) -> list[Finding]:
    """One finding for each actor that waits for an address."""
    return [found for actor in graph.index.snapshot.actors if (found := _finding(graph, actor)) is not None]


def _finding(graph: WaitGraph, actor: Actor) -> Finding | None:
    thread = graph.index.threads.get((actor.proc, actor.thread))
    if thread is None or not thread.paused or not thread.frames or actor.doing is None or actor.doing_for < LEAST:
        return None
    first = thread.frames[0]
    if not first.file.endswith("/socket.py") or first.name.rpartition(".")[2] not in _RESOLVING:
        return None
    node: Node = ("actor", actor.proc, actor.mesh)
    place = graph.index.place(node)
    sentence = (
        f"{graph.index.full(node)} has waited for the address of a name in {place} for {seconds(actor.doing_for)}: "
        "the name server does not answer"
    )
    nodes: tuple[Node, ...] = (node, ("proc", actor.proc))
    return Finding(sentence, nodes, (Fact(f"{actor.doing}() stands in {first.short}", "stacks, two looks"),), "cat /etc/resolv.conf", 77)


DETECTORS = (Detector("names", f"endpoints that have waited for {LEAST:g} s or longer for the address of a name", resolving),)
