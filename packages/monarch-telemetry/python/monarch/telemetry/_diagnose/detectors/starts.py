"""Ranks that are slow to start, while the other ranks of their mesh are ready."""

from __future__ import annotations

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Actor, Frame, Node, Proc, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The seconds of a start from which it is slow.
LEAST = 10.0
_CONSTRUCTOR = "__init__"


def slow(graph: WaitGraph) -> list[Finding]:
    """One finding for each process that is not ready, and each actor in its constructor, where most of their mesh are further."""
    snapshot = graph.index.snapshot
    found: list[Finding] = []
    for proc in snapshot.procs:
        mesh = [one for one in snapshot.procs if one.mesh == proc.mesh and proc.mesh is not None]
        ready = [one for one in mesh if one.state == "running"]
        if proc.state == "starting" and proc.age >= LEAST and 2 * len(ready) >= len(mesh):
            found.append(_of_proc(graph, proc, len(ready)))
    for actor in snapshot.actors:
        if not _constructs(actor):
            continue
        mesh_of = [one for one in snapshot.actors if one.mesh == actor.mesh]
        done = [one for one in mesh_of if not _constructs(one)]
        node: Node = ("actor", actor.proc, actor.mesh)
        if actor.doing_for >= LEAST and 2 * len(done) >= len(mesh_of) and (actor.queued or graph.waiting_for((node,))):
            found.append(_of_actor(graph, actor, len(done)))
    return found


def _constructs(actor: Actor) -> bool:
    return actor.doing == _CONSTRUCTOR


def _of_proc(graph: WaitGraph, proc: Proc, ready: int) -> Finding:
    place = _main_place(proc)
    where = f"; it stands in {place.short}" if place is not None else ""
    sentence = f"{graph.index.full(('proc', proc.uid))} has been starting for {seconds(proc.age)}, and {_ready(ready)}{where}"
    facts = [Fact("the process has not reported that it is ready", "agent of the host")]
    if place is not None:
        facts.append(Fact(f"its main thread in {place.short}", "stacks"))
    return Finding(sentence, (("proc", proc.uid),), tuple(facts), "monarch stack --all", 58)


def _of_actor(graph: WaitGraph, actor: Actor, done: int) -> Finding:
    node: Node = ("actor", actor.proc, actor.mesh)
    place = graph.index.place(node)
    thread = graph.index.thread_of(node)
    where = f"; it {'stands' if thread is not None and thread.paused else 'works'} in {place}" if place else ""
    sentence = f"{graph.index.full(node)} has been in its constructor for {seconds(actor.doing_for)}, and {_ready(done)}{where}"
    count = "1 message waits" if actor.queued == 1 else f"{actor.queued:,} messages wait"
    facts = (Fact(f"{count} behind {_CONSTRUCTOR}()", "queues"),)
    return Finding(sentence, (node, ("proc", actor.proc)), facts, "monarch stack", 58)


def _ready(number: int) -> str:
    return "1 other rank is ready" if number == 1 else f"{number} other ranks are ready"


def _main_place(proc: Proc) -> Frame | None:
    """The place of the main thread; stacks without names have it last."""
    main = next((one for one in proc.threads if one.name == "MainThread"), None)
    threads = [main] if main is not None else list(reversed(proc.threads))
    return next((place for one in threads if (place := one.place()) is not None), None)


DETECTORS = (Detector("slow_start", f"ranks that have been starting for {LEAST:g} s or longer while their mesh is ready", slow),)
