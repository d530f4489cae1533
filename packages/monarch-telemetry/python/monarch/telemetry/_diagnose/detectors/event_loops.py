"""Actors whose event loop stands still in a synchronous call, so that no other endpoint or task of them runs; endpoints at a breakpoint."""

from __future__ import annotations

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.kernel_waits import LEAST, Waiting, endpoints
from monarch.telemetry._diagnose.snapshot import Node, Thread, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# A wait for a lock of a process may be that for a device or a library that works.
_CALLS = {
    "child": "for the end of a program",
    "connect": "for a connection",
    "lock": "for a lock of a file",
    "poll": "for a connection or a program",
    "read": "for data",
    "receive": "for data of a connection",
    "sleep": "for time to pass",
}
_DEBUGGERS = ("/_core/debug/", "/bdb.py", "/pdb.py")


def blocked(graph: WaitGraph) -> list[Finding]:
    """One finding for each actor with waiting messages whose event loop stands in the same system call in both looks."""
    return [found for one in endpoints(graph.index) if (found := _blocked(graph, one)) is not None]


def _blocked(graph: WaitGraph, one: Waiting) -> Finding | None:
    index, actor = graph.index, one.actor
    thread = index.thread_of(one.node)
    waits = actor.queued + len(actor.concurrent)
    if thread is None or not thread.paused or not waits or one.wait.call not in _CALLS or graph.targets(one.node) or not _in_loop(thread):
        return None
    place = index.place(one.node) or f"{actor.doing}()"
    sentence = (
        f"{index.full(one.node)} has blocked its event loop in {place} for {seconds(actor.doing_for)}: "
        f"a call that is no coroutine waits there {_CALLS[one.wait.call]}, and nothing else of the actor runs"
    )
    facts = (
        Fact(f"the thread of the loop stands in {place}, in the system call {one.wait.call}", "stacks, two looks"),
        Fact(f"{actor.queued} messages wait", "queues"),
    )
    return Finding(sentence, (one.node, ("proc", actor.proc)), facts, "monarch stack", 58)


def _in_loop(thread: Thread) -> bool:
    """Whether an event loop of `asyncio` runs a callback or a step of a task."""
    return any(frame.file.endswith("/asyncio/events.py") and frame.name.endswith("_run") for frame in thread.frames)


def at_breakpoint(graph: WaitGraph) -> list[Finding]:
    """One finding for each endpoint that a debugger has stopped."""
    index, found = graph.index, list[Finding]()
    for actor in index.snapshot.actors:
        thread = index.threads.get((actor.proc, actor.thread))
        if thread is None or actor.doing is None or actor.doing_for < LEAST:
            continue
        own = next((number for number, frame in enumerate(thread.frames) if not _of_debugger(frame.file)), 0)
        if not own or not any(frame.name.rpartition(".")[2] in ("interaction", "cmdloop", "ask") for frame in thread.frames[:own]):
            continue
        node: Node = ("actor", actor.proc, actor.mesh)
        frame = next((one for one in thread.frames[own:] if not one.file.endswith(("/cmd.py", *_DEBUGGERS[1:]))), thread.frames[own])
        sentence = f"{index.full(node)} has stood at a breakpoint in {frame.short} for {seconds(actor.doing_for)}: it waits for a command"
        facts = (Fact(f"{actor.doing}() stands in a debugger below {frame.short}", "stacks, two looks"),)
        found.append(Finding(sentence, (node, ("proc", actor.proc)), facts, "monarch debug", 84))
    return found


def _of_debugger(file: str) -> bool:
    return file.endswith((*_DEBUGGERS[1:], "/cmd.py")) or "/_core/" in file


DETECTORS = (
    Detector("event_loop", f"event loops that a synchronous call has blocked for {LEAST:g} s or longer while messages wait", blocked),
    Detector("breakpoint", "endpoints that a debugger has stopped", at_breakpoint),
)
