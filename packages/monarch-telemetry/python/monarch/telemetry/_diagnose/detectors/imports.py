"""Imports that do not end: a thread of an actor or of a starting process that stands still in the import of a module."""

from __future__ import annotations

import re

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Frame, Node, Proc, Thread, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The seconds after which an import that stands still is a finding: large libraries need ten.
LEAST = 10.0
_MODULE = re.compile(r"([^/]+?)(?:/__init__)?\.py$")


def hanging(graph: WaitGraph) -> list[Finding]:
    """One finding for each process in which an import stands still."""
    found: list[Finding] = []
    for proc in graph.index.snapshot.procs:
        for thread in proc.threads:
            frame = _imported(thread)
            since = _since(graph, proc, thread)
            if frame is None or since is None or since < LEAST or not thread.paused:
                continue
            node = graph.index.node_of_thread(proc.uid, thread.number)
            place = thread.place() or frame
            module = _MODULE.search(frame.file)
            name = module[1] if module else frame.file
            sentence = f"{graph.index.full(node)} has been importing {name} for {seconds(since)} and stands in {place.short}"
            facts = (Fact(f"the same calls in two looks, {len(thread.frames)} deep, below the import of {name}", "stacks, two looks"),)
            nodes: tuple[Node, ...] = (node, ("proc", proc.uid))
            found.append(Finding(sentence, nodes, facts, "monarch stack", 72))
            break
    return found


def _imported(thread: Thread) -> Frame | None:
    """The innermost module whose code runs for an import, or the file that is being found or read."""
    below = [index for index, frame in enumerate(thread.frames) if frame.file.startswith("<frozen importlib")]
    if not below:
        return None
    return next((frame for frame in thread.frames[: below[-1]] if frame.name == "<module>"), thread.frames[below[0]])


def _since(graph: WaitGraph, proc: Proc, thread: Thread) -> float | None:
    actor = graph.index.by_thread.get((proc.uid, thread.number))
    if actor is not None:
        return actor.doing_for if actor.doing is not None else None
    return proc.age if proc.state == "starting" else None


DETECTORS = (Detector("import", f"imports that stand still for {LEAST:g} s or longer", hanging),)
