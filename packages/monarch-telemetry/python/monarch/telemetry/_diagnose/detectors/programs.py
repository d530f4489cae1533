"""Programs that processes of the job run, such as the ranks of `monarch.spmd.run`: those that a signal has stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Proc
from monarch.telemetry._diagnose.wait_graph import WaitGraph


def stopped(graph: WaitGraph) -> list[Finding]:
    """One finding for each process with programs that were stopped in both looks. Programs of the client belong to its user."""
    found: list[Finding] = []
    for proc in graph.index.snapshot.procs:
        before, now = _stopped(proc.resources_before), _stopped(proc.resources)
        both = [pid for pid in now if pid in before]
        if both and proc.mesh is not None:
            found.append(_finding(graph, proc, {pid: now[pid] for pid in both}))
    return found


def _finding(graph: WaitGraph, proc: Proc, programs: Mapping[int, str]) -> Finding:
    pid, name = next(iter(programs.items()))
    more = f" and {len(programs) - 1} more programs" if len(programs) > 1 else ""
    verb = "are" if more else "is"
    sentence = f"the program {name} (pid {pid}){more} of {graph.index.of_proc(proc.uid)} {verb} stopped by a signal"
    nodes = graph.index.of_procs(proc.uid)
    return Finding(sentence, nodes, (Fact("state T in the kernel, two looks", f"/proc/{pid}/stat"),), f"kill -CONT {pid}", 79)


def _stopped(resources: Mapping[str, Any]) -> dict[int, str]:
    return {int(pid): str(name) for pid, name in resources.get("programs", {}).get("stopped", ())}


DETECTORS = (Detector("programs", "programs that processes of the job run, and that a signal has stopped", stopped),)
