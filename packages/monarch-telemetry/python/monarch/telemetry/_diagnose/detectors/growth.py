"""Memory of one rank that grows from step to step, far beyond that of the other ranks of its mesh."""

from __future__ import annotations

from statistics import median

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Proc
from monarch.telemetry._diagnose.wait_graph import WaitGraph

_MIB = 1 << 20
# Times and bytes more than the other ranks have, and bytes of growth between both looks.
_TIMES, _MORE, _GROWS = 4, 256 * _MIB, _MIB


def growing(graph: WaitGraph) -> list[Finding]:
    """One finding for each rank that has far more memory of its own than its mesh, and more after a message between both looks.

    A rank that loads data into memory in one endpoint is none.
    """
    snapshot = graph.index.snapshot
    steps = {one.proc for one in snapshot.actors if one.taken_before is not None and one.taken > one.taken_before}
    found: list[Finding] = []
    for proc in snapshot.procs:
        if proc.mesh is None or proc.uid not in steps:
            continue
        others = [_own(one) for one in snapshot.procs if one.mesh == proc.mesh and one is not proc and one.resources]
        grown = _own(proc) - _own(proc._replace(resources=proc.resources_before))
        if others and proc.resources_before and grown >= _GROWS and _own(proc) >= max(_TIMES * median(others), median(others) + _MORE):
            found.append(_finding(graph, proc, grown / max(snapshot.seconds, 0.1), median(others)))
    return found


def _own(proc: Proc) -> int:
    """Bytes that belong to a process, and not to a file."""
    memory = proc.resources.get("memory", {})
    return sum(int(memory.get(name, 0)) for name in ("anonymous", "shared", "swapped"))


def _finding(graph: WaitGraph, proc: Proc, rate: float, usual: float) -> Finding:
    sentence = (
        f"the memory of {graph.index.of_proc(proc.uid)} grows: {_own(proc) / _MIB:,.0f} MiB and {rate / _MIB:,.1f} MiB/s more, "
        f"other ranks have {usual / _MIB:,.0f} MiB"
    )
    nodes = graph.index.of_procs(proc.uid)
    facts = (Fact("it grew between both looks, in which it took messages", f"/proc/{proc.pid}/status, queues"),)
    return Finding(sentence, nodes, facts, f"grep RssAnon /proc/{proc.pid}/status", 57)


DETECTORS = (Detector("growth", "memory of one rank that grows from step to step, far beyond that of the others", growing),)
