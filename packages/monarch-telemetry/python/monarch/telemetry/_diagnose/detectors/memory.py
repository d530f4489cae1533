"""Memory that is nearly used up: a cgroup at its limit, whose next step is that the kernel kills one of its processes."""

from __future__ import annotations

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Check, Proc
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The part of a limit from which memory is nearly used up, and the part at which requests for memory were refused.
_NEARLY, _REFUSED = 0.95, 0.85
_MIB = 1 << 20


def pressed(graph: WaitGraph) -> list[Finding]:
    """One finding for each cgroup whose memory is nearly used up; the process that uses most is its culprit."""
    checks = graph.index.snapshot.checks
    refused = {(one.host, one.subject): one.value for one in checks if one.kind == "memory_failures"}
    found: list[Finding] = []
    for check in checks:
        if check.kind != "memory_limit" or not check.limit:
            continue
        times = refused.get((check.host, check.subject), 0.0)
        if check.value >= _NEARLY * check.limit or (times > 0 and check.value >= _REFUSED * check.limit):
            found.append(_finding(graph, check, times))
    return found


def _finding(graph: WaitGraph, check: Check, times: float) -> Finding:
    procs = sorted((graph.index.procs[uid] for uid in check.procs if uid in graph.index.procs), key=_own, reverse=True)
    first = procs[0]
    more = f", {len(procs)} procs share it" if len(procs) > 1 else ""
    sentence = (
        f"{graph.index.of_proc(first.uid)} has nearly used up the memory of its cgroup: "
        f"{check.value / _MIB:,.0f} of {check.limit / _MIB:,.0f} MiB on host {check.host}{more}"
    )
    shares = ", ".join(f"{graph.index.of_proc(one.uid)}: {_own(one) / _MIB:,.0f} MiB" for one in procs[:3])
    facts = [Fact(check.subject, "memory cgroup"), Fact(shares, "/proc")]
    if times > 0:
        facts.append(Fact(f"the limit was reached {times:,.0f} times between both looks", "memory cgroup"))
    nodes = graph.index.of_procs(first.uid)
    return Finding(sentence, nodes, tuple(facts), f"cat {check.subject}/memory.stat", 77)


def _own(proc: Proc) -> int:
    """Bytes that belong to a process, and not to a file."""
    memory = proc.resources.get("memory", {})
    return int(memory.get("anonymous", 0)) + int(memory.get("shared", 0))


DETECTORS = (Detector("memory", "memory of cgroups that is nearly used up, and the process that uses most of it", pressed),)
