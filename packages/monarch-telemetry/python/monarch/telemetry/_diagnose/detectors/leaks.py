"""Numbers of threads and descriptors that only a leak explains: far more than in the other ranks of a mesh, or ever more of one kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import median

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Proc
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# A process has many threads or descriptors from these numbers, if the other ranks of its mesh have a small part of it.
_MANY_THREADS, _MANY_DESCRIPTORS = 200, 500
_TIMES = 8
# Without other ranks: threads at one place, or descriptors of one target, and they became more between both looks.
_MOST_THREADS, _MOST_DESCRIPTORS = 1000, 2000
# The part of all of them at one place.
_ALIKE = 0.8


def leaking(graph: WaitGraph) -> list[Finding]:
    """One finding for each process with a leak of threads, and for each with one of descriptors."""
    found: list[Finding] = []
    for proc in graph.index.snapshot.procs:
        peers = [one for one in graph.index.snapshot.procs if one.mesh == proc.mesh and proc.mesh is not None and one is not proc]
        if (number := _threads(proc)) and _is_leak(proc, peers, _threads, _MANY_THREADS, _MOST_THREADS):
            found.append(_of_threads(graph, proc, peers, number))
        if (number := _descriptors(proc)) and _is_leak(proc, peers, _descriptors, _MANY_DESCRIPTORS, _MOST_DESCRIPTORS):
            found.append(_of_descriptors(graph, proc, peers, number))
    return found


def _is_leak(proc: Proc, peers: list[Proc], count: Callable[[Proc], int], many: int, most: int) -> bool:
    number = count(proc)
    of_peers = [count(one) for one in peers if one.resources]
    if of_peers:
        return number >= many and number >= _TIMES * max(1.0, median(of_peers))
    before = count(proc._replace(resources=proc.resources_before)) if proc.resources_before else number
    return number >= most and number > before


def _threads(proc: Proc) -> int:
    return int(proc.resources.get("threads", {}).get("number", 0))


def _descriptors(proc: Proc) -> int:
    return int(proc.resources.get("descriptors", {}).get("number", 0))


def _of_threads(graph: WaitGraph, proc: Proc, peers: list[Proc], number: int) -> Finding:
    places = Counter(frame.short for thread in proc.threads if (frame := thread.place()) is not None)
    place, most = places.most_common(1)[0] if places else ("", 0)
    where = f": {most:,} of them stand in {place}" if most >= _ALIKE * len(proc.threads) else ""
    sentence = f"{graph.index.of_proc(proc.uid)} has {number:,} threads{where}{_beside(peers, _threads)}"
    facts = [Fact(f"{number:,} threads of the process", "/proc")]
    if place:
        facts.append(Fact(f"{most:,} threads in {place}", "stacks"))
    return Finding(sentence, graph.index.of_procs(proc.uid), tuple(facts), "monarch stack --all", 62)


def _of_descriptors(graph: WaitGraph, proc: Proc, peers: list[Proc], number: int) -> Finding:
    given = proc.resources["descriptors"]
    targets = ", ".join(f"{count:,} of {target}" for target, count in given.get("targets", ()))
    sentence = (
        f"{graph.index.of_proc(proc.uid)} has {number:,} open descriptors of at most {given['limit']:,}{_beside(peers, _descriptors)}"
    )
    facts = (Fact(f"of the last ones {targets}", f"/proc/{proc.pid}/fd"),)
    return Finding(sentence, graph.index.of_procs(proc.uid), facts, f"ls -l /proc/{proc.pid}/fd", 62)


def _beside(peers: list[Proc], count: Callable[[Proc], int]) -> str:
    found = [count(one) for one in peers if one.resources]
    return f", other ranks have {median(found):,.0f}" if found else ", and their number grows"


DETECTORS = (Detector("leaks", "threads and descriptors of a process: far more than in the other ranks, or many and ever more", leaking),)
