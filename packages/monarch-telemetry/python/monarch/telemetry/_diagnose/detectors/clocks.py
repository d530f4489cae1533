"""Clocks of hosts that differ, or that have jumped between both looks."""

from __future__ import annotations

from statistics import median

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Node, Proc, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# Seconds by which the clock of a process differs from the median of all, so that the time of its answer is no explanation.
LEAST = 10.0


def differing(graph: WaitGraph) -> list[Finding]:
    """One finding for each process, or host with all of its processes, whose clock differs from that of most others."""
    snapshot = graph.index.snapshot
    clocks = {proc.uid: float(proc.resources["clock"][0]) for proc in snapshot.procs if proc.resources.get("clock")}
    if len(clocks) < 2:
        return []
    # The client decides between two halves: its answer is from the machine of the script.
    middle = median(clocks.values()) if len(clocks) > 2 else next(iter(clocks.values()))
    late = [proc for proc in snapshot.procs if proc.uid in clocks and abs(clocks[proc.uid] - middle) >= LEAST]
    if len(late) * 2 > len(clocks):
        return []
    hosts: dict[str, list[Proc]] = {}
    for proc in late:
        hosts.setdefault(proc.host, []).append(proc)
    found: list[Finding] = []
    for host, procs in hosts.items():
        whole = all(proc in procs for proc in snapshot.procs if proc.host == host and proc.uid in clocks)
        for some in [procs] if whole else [[proc] for proc in procs]:
            ahead = clocks[some[0].uid] - middle
            name = f"host {host}" if whole else graph.index.full(("proc", some[0].uid))
            side = "ahead of" if ahead > 0 else "behind"
            sentence = f"the clock of {name} is {seconds(abs(ahead))} {side} the clocks of the other {len(clocks) - len(late)} procs"
            nodes: tuple[Node, ...] = (*((("host", host),) if whole else ()), *(("proc", proc.uid) for proc in some))
            facts = (Fact(f"{len(some)} of {len(clocks)} procs differ by {ahead:+.1f} s from the median", "clocks of all procs"),)
            found.append(Finding(sentence, nodes, facts, "timedatectl", 55))
    return found


DETECTORS = (Detector("clock", f"clocks of processes that differ by {LEAST:g} s or more", differing),)
