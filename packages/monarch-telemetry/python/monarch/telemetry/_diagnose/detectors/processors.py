"""Ranks whose processor is taken by other processes, while the other ranks of their mesh on the same host have one."""

from __future__ import annotations

from statistics import median

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Proc
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The seconds of an endpoint from which it is no short burst of its neighbours.
LEAST = 5.0
# The part of the time in which the threads of the rank wait for a processor, and how many times less of one it gets than other ranks do.
# The scheduler of the kernel gives processes of one weight equal parts, whatever the load.
_WAITS, _TIMES = 0.6, 8
# The part of a processor that other ranks have at least: with less, all of them lack one. The least number of other ranks.
_OTHERS_HAVE, _OTHERS = 0.05, 2


def taken(graph: WaitGraph) -> list[Finding]:
    """One finding for each rank that waits for a processor far more than its mesh."""
    checks = graph.index.snapshot.checks
    used = {one.procs[0]: one.value for one in checks if one.kind == "processor"}
    waited = {one.procs[0]: one.value for one in checks if one.kind == "run_queue"}
    busy = {one.proc for one in graph.index.snapshot.actors if one.doing is not None and one.doing_for >= LEAST}
    found: list[Finding] = []
    for proc in graph.index.snapshot.procs:
        # A rank that gets nearly nothing does not list its actors in time.
        if proc.mesh is None or (proc.uid not in busy and proc.answered) or waited.get(proc.uid, 0.0) < _WAITS:
            continue
        others = [
            used[one.uid]
            for one in graph.index.snapshot.procs
            if one is not proc and (one.host, one.mesh) == (proc.host, proc.mesh) and one.uid in used and one.uid in busy
        ]
        if len(others) >= _OTHERS and median(others) >= max(_OTHERS_HAVE, _TIMES * used[proc.uid]):
            found.append(_finding(graph, proc, used[proc.uid], waited[proc.uid], median(others)))
    return found


def _finding(graph: WaitGraph, proc: Proc, used: float, waited: float, usual: float) -> Finding:
    sentence = (
        f"{graph.index.of_proc(proc.uid)} gets {used:.1%} of a processor where other ranks on host {proc.host} get {usual:.0%}: "
        "other processes take its processor, or its priority is low"
    )
    fact = Fact(f"its threads waited for a processor {waited:.0%} of the time between both looks", "/proc/PID/schedstat")
    nodes = graph.index.of_procs(proc.uid)
    return Finding(sentence, nodes, (fact,), f"taskset -cp {proc.pid}", 61)


DETECTORS = (Detector("processor", "ranks that wait for a processor while the other ranks of their mesh have one", taken),)
