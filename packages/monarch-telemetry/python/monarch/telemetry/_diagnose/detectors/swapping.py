"""Ranks that wait for pages in swap: their memory was moved to a disk, and each use of it reads a page again."""

from __future__ import annotations

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Proc, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The seconds of an endpoint from which it is no first use of memory that was not needed for long. In a full cgroup none are needed.
LEAST = 5.0
# Bytes in swap, and pages read from a disk in a second, from which a process waits for them.
_SWAPPED, _PAGES = 16 << 20, 20.0
# The part of the memory of a cgroup at which it is full.
_FULL = 0.9
_MIB = 1 << 20


def swapping(graph: WaitGraph) -> list[Finding]:
    """One finding for each process that reads its memory from swap while it runs an endpoint.

    The kernel of this machine knows its processes, and processes of other machines report themselves.
    """
    checks = graph.index.snapshot.checks
    swapped = {one.procs[0]: one.value for one in checks if one.kind == "swapped"}
    read = {one.procs[0]: one.value for one in checks if one.kind == "swap_reads"}
    full = {proc for one in checks if one.kind == "memory_limit" and one.value >= _FULL * one.limit for proc in one.procs}
    busy = {one.proc for one in graph.index.snapshot.actors if one.doing is not None and (one.doing_for >= LEAST or one.proc in full)}
    found: list[Finding] = []
    for proc in graph.index.snapshot.procs:
        size, pages = swapped.get(proc.uid, _swapped(proc)), read.get(proc.uid, _pages(graph, proc))
        # A process that gives no answer waits for a page with the GIL.
        if (proc.uid in busy or proc.silent or not proc.answered) and size >= _SWAPPED and pages >= _PAGES:
            found.append(_finding(graph, proc, size, pages))
    return found


def _swapped(proc: Proc) -> float:
    return float(proc.resources.get("memory", {}).get("swapped", 0))


def _pages(graph: WaitGraph, proc: Proc) -> float:
    """Pages that the process has read from a disk in a second, between both looks."""
    now, before = (int(one.get("memory", {}).get("major_faults", 0)) for one in (proc.resources, proc.resources_before))
    return (now - before) / max(graph.index.snapshot.seconds, 0.1) if proc.resources_before else 0.0


def _finding(graph: WaitGraph, proc: Proc, size: float, pages: float) -> Finding:
    actors = [one for one in graph.index.snapshot.actors if one.proc == proc.uid]
    longest = max((one for one in actors if one.doing is not None), key=lambda one: one.doing_for, default=None)
    where = "" if longest is None else f" in {longest.doing}() since {seconds(longest.doing_for)}"
    name = graph.index.of_proc(proc.uid)
    sentence = f"{name} waits for memory in swap: {size / _MIB:,.0f} MiB are there, and it reads {pages:,.0f} pages/s{where}"
    group = proc.resources.get("cgroups", {}).get("memory", {})
    facts = [Fact(f"{pages:,.0f} major page faults/s between both looks", f"/proc/{proc.pid}/stat")]
    if group:
        used, limit = int(group["used"]), int(group["limit"])
        facts.append(Fact(f"{group['path']} uses {used / _MIB:,.0f} of {limit / _MIB:,.0f} MiB", "memory cgroup"))
    return Finding(sentence, graph.index.of_procs(proc.uid), tuple(facts), f"grep VmSwap /proc/{proc.pid}/status", 82)


DETECTORS = (Detector("swap", "ranks that read their memory from swap", swapping),)
