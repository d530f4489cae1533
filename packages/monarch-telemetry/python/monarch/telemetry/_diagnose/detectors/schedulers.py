"""The deeds of the scheduler of a job: preemptions, cancellations, nodes and pods that are taken away, workers that cannot start."""

from __future__ import annotations

from monarch.telemetry._diagnose.detectors.ends import nodes_of
from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Node, Trouble
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# By the kind of a trouble: the loss of a host is a consequence of the first two; any fault of the job is more than the last two, which
# keep no running process from its work. A machine that leaves is the cause of the loss of its host.
_WEIGHTS = {"ended": 97, "stuck": 96, "leaving": 40, "queued": 40}
_LEFT = 97


def reported(graph: WaitGraph) -> list[Finding]:
    """One finding for each trouble of a known kind."""
    lost = {host.name for host in graph.index.snapshot.hosts if host.state == "lost" or host.error}
    return [_finding(graph, one, lost) for one in graph.index.snapshot.troubles if one.kind in _WEIGHTS]


def _finding(graph: WaitGraph, trouble: Trouble, lost: set[str]) -> Finding:
    job = f" ({trouble.job})" if trouble.job else ""
    fact = Fact(f"the answer of the scheduler{job}", trouble.source or "scheduler")
    has_left = trouble.kind == "leaving" and not lost.isdisjoint(trouble.hosts)
    culprits = _culprits(graph, trouble, trouble.kind == "ended" or has_left)
    return Finding(trouble.text, culprits, (fact,), trouble.command, _LEFT if has_left else _WEIGHTS[trouble.kind])


def _culprits(graph: WaitGraph, trouble: Trouble, has_ended: bool) -> tuple[Node, ...]:
    """The hosts; if their workers have ended, all that runs or ran there too. The client may run on one of them, and goes on."""
    hosts: tuple[Node, ...] = tuple(("host", name) for name in trouble.hosts)
    if not has_ended:
        return hosts
    index = graph.index
    procs = {proc.uid for proc in index.snapshot.procs if proc.host in trouble.hosts and proc.mesh is not None}
    actors: list[Node] = [("actor", one.proc, one.mesh) for one in index.snapshot.actors if one.proc in procs]
    ends = [end for end in index.snapshot.ends if end.host in trouble.hosts and not end.is_past]
    return tuple(dict.fromkeys((*hosts, *(("proc", uid) for uid in sorted(procs)), *actors, *nodes_of(graph, ends))))


DETECTORS = (Detector("scheduler", "the answer of the scheduler about the job, its hosts and their machines", reported),)
