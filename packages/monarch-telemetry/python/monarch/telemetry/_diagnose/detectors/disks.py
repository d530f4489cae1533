"""Endpoints that wait for a disk: the kernel keeps their thread in an uninterruptible wait, at the same place in both looks."""

from __future__ import annotations

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Actor, Node, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The seconds of an endpoint from which its wait is a finding.
LEAST = 5.0


def waiting(graph: WaitGraph) -> list[Finding]:
    """One finding for each actor whose thread has been in an uninterruptible wait in both looks."""
    return [found for actor in graph.index.snapshot.actors if (found := _finding(graph, actor)) is not None]


def _finding(graph: WaitGraph, actor: Actor) -> Finding | None:
    proc = graph.index.procs.get(actor.proc)
    thread = graph.index.threads.get((actor.proc, actor.thread))
    if proc is None or thread is None or thread.native is None or not thread.paused or actor.doing is None or actor.doing_for < LEAST:
        return None
    looks = [one.get("threads", {}).get("blocked", ()) for one in (proc.resources_before, proc.resources)]
    if not all(thread.native in one for one in looks):
        return None
    node: Node = ("actor", actor.proc, actor.mesh)
    read, written = (_rate(graph, actor, name) for name in ("read", "written"))
    sentence = (
        f"{graph.index.full(node)} has waited for a disk in {graph.index.place(node)} for {seconds(actor.doing_for)}: "
        f"the process reads {read} and writes {written}"
    )
    facts = (
        Fact(f"thread {thread.native} in an uninterruptible wait of the kernel (state D) in two looks", "/proc/PID/task"),
        Fact(f"{actor.doing}() stands in {graph.index.place(node)}", "stacks, two looks"),
    )
    nodes: tuple[Node, ...] = (node, ("proc", actor.proc))
    return Finding(sentence, nodes, facts, f"cat /proc/{proc.pid}/task/{thread.native}/stack", 76)


def _rate(graph: WaitGraph, actor: Actor, name: str) -> str:
    proc = graph.index.procs[actor.proc]
    before, now = (one.get("disk", {}).get(name, 0) for one in (proc.resources_before, proc.resources))
    return f"{(now - before) / max(graph.index.snapshot.seconds, 0.1) / (1 << 10):,.0f} KiB/s"


DETECTORS = (Detector("disk", f"endpoints that have waited for {LEAST:g} s or longer for a disk, in the kernel", waiting),)
