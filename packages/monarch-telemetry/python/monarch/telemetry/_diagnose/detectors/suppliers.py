"""Ranks that wait for an item of their own process, such as a batch of a data loader, while the other ranks wait for them."""

from __future__ import annotations

from collections.abc import Sequence

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.groups import has_waited_long
from monarch.telemetry._diagnose.snapshot import Actor, Node, Thread, seconds
from monarch.telemetry._diagnose.supplies import Program, Supply
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The seconds of an endpoint from which its wait is a finding.
LEAST = 5.0
# A loader may itself wait for another one: the thread that pins memory waits for the programs that load.
_MOST_STEPS = 4
# Files of the library with the loops of servers.
_SERVERS = ("/socketserver.py", "/asyncio/base_events.py")
_ITEMS = {"queue": "an item of a queue", "result": "a result", "pipe": "data of a pipe"}


def starving(graph: WaitGraph) -> list[Finding]:
    """One finding for each actor whose thread waits for its own process, and for which the other ranks of its mesh wait."""
    waits = {(one.proc, one.thread): one for one in graph.index.snapshot.supplies}
    found: list[Finding] = []
    for supply in waits.values():
        actor = graph.index.by_thread.get((supply.proc, supply.thread))
        if actor is None or actor.doing is None or actor.doing_for < LEAST or not _is_waited_for(graph, actor):
            continue
        if (finding := _finding(graph, actor, last_supply(supply, waits))) is not None:
            found.append(finding)
    return found


def last_supply(supply: Supply, waits: dict[tuple[str, int], Supply]) -> Supply:
    """The wait at the end of a chain: the thread that supplies one may wait for an item of another one."""
    for _ in range(_MOST_STEPS):
        after = waits.get((supply.proc, supply.threads[0])) if len(supply.threads) == 1 else None
        if after is None or not (after.threads or after.programs):
            break
        supply = after
    return supply


def _is_waited_for(graph: WaitGraph, actor: Actor) -> bool:
    """Whether a process waits for the actor, and most other ranks of its mesh have no endpoint in progress or wait for it.

    Ranks that wait in a collective count if they have waited much longer than usual.
    """
    node: Node = ("actor", actor.proc, actor.mesh)
    behind = graph.waiting_for((node,))
    others = [one for one in graph.index.snapshot.actors if one.mesh == actor.mesh and one.proc != actor.proc]
    idle = [one for one in others if one.doing is None]
    late = [one for one in others if one.doing is not None and ("actor", one.proc, one.mesh) in behind]
    of_late = {one.proc for one in late}
    ranks = [one for one in graph.index.snapshot.groups if one.proc in of_late and one.waits is not None]
    if not has_waited_long(graph.index.snapshot, ranks):
        late = []
    return bool(behind) and 2 * (len(idle) + len(late)) > len(others)


def _finding(graph: WaitGraph, actor: Actor, supply: Supply) -> Finding | None:
    node: Node = ("actor", actor.proc, actor.mesh)
    place = graph.index.place(node)
    suffix = f" in {place}" if place else ""
    waits = f"has waited for {_ITEMS.get(supply.kind, 'an item')}{suffix} for {seconds(actor.doing_for)}"
    facts = [Fact(f"{actor.doing}() of {graph.index.label(node)} stands{suffix}", "stacks, two looks")]
    loaders: list[Node] = []
    command = "monarch stack"
    if not supply.still or not all(_stands(graph.index.threads.get((supply.proc, number))) for number in supply.threads):
        return None
    if supply.threads:
        loaders = [("thread", supply.proc, str(number)) for number in supply.threads]
        first = loaders[0]
        sentence = f"{_threads(graph, loaders)} {_does(graph, first)}, and {graph.index.full(node)} {waits}"
        facts += [Fact(f"{graph.index.label(one)} {_does(graph, one)}", "stacks, two looks") for one in loaders[:3]]
    elif supply.programs:
        one = supply.programs[0]
        more = len(supply.programs) - 1
        subject = f"the program {_named(one)}{f' and {more} more' if more else ''}"
        sentence = f"{subject} {'supply' if more else 'supplies'} nothing ({_state(one)}), and {graph.index.full(node)} {waits}"
        facts += [Fact(f"{_named(one)}: {_state(one)}", f"/proc/{one.pid}") for one in supply.programs[:3]]
        command = f"cat /proc/{one.pid}/wchan"
    else:
        return None
    return Finding(sentence, (node, ("proc", actor.proc), *loaders), tuple(facts), command, 63)


def _stands(thread: Thread | None) -> bool:
    """Whether a thread stands still. A thread of a server waits for requests from outside, and may do so for any time."""
    return thread is not None and thread.paused and not any(frame.file.endswith(_SERVERS) for frame in thread.frames)


def _threads(graph: WaitGraph, nodes: Sequence[Node]) -> str:
    more = f" and {len(nodes) - 1} more threads" if len(nodes) > 1 else ""
    return f"{graph.index.label(nodes[0])}{more}"


def _does(graph: WaitGraph, node: Node) -> str:
    place = graph.index.place(node)
    return f"stands in {place}" if place else "supplies nothing"


def _named(one: Program) -> str:
    return f"{one.name or 'a program'} (pid {one.pid})"


def _state(one: Program) -> str:
    """`state S in the kernel at pipe_read, reads /data/part-7`."""
    return f"state {one.state or '?'} in the kernel{f' at {one.place}' if one.place else ''}{f', {one.file}' if one.file else ''}"


DETECTORS = (
    Detector(
        "starving", f"endpoints of {LEAST:g} s or longer that wait for a loader of their own process, while other ranks wait", starving
    ),
)
