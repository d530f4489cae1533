"""Output that the console of the job does not take: the rank that prints far more than the others, or the console itself."""

from __future__ import annotations

from statistics import median

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Proc, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The seconds of an endpoint from which much output is no short burst.
LEAST = 5.0
# Times the bytes of the other ranks, since their start and in the time between both looks; the least bytes, and bytes in a second.
_TIMES, _MOST, _RATE = 8, 256 << 10, 64 << 10
# The least bytes of a rank that waits for the console, which has taken no more: as many as a pipe has room for.
_PIPE = 64 << 10
_MIB = 1 << 20


def flooding(graph: WaitGraph) -> list[Finding]:
    """One finding for each rank whose output is a burst for which others wait, or one for all that wait for the console."""
    procs = [proc for proc in graph.index.snapshot.procs if proc.mesh is not None]
    blocked = [proc for proc in procs if _blocked(proc)]
    # The client writes the lines of all procs to the console.
    is_full = any(_blocked(proc) for proc in graph.index.snapshot.procs if proc.mesh is None)
    busy = {one.proc for one in graph.index.snapshot.actors if one.doing is not None and one.doing_for >= LEAST}
    found: list[Finding] = []
    for proc in procs:
        others = [one for one in procs if one.mesh == proc.mesh and one is not proc]
        is_waited_for = bool(graph.waiting_for(graph.index.of_procs(proc.uid)))
        if proc.uid in busy and is_waited_for and others and _is_burst(graph, proc, others, is_full or bool(_printing(proc))):
            found.append(_burst(graph, proc, others, [one for one in blocked if one is not proc]))
    stuck = [proc for proc in blocked if proc.uid in busy]
    return found if found or not stuck else [_console(graph, stuck)]


def _blocked(proc: Proc) -> bool:
    """Whether a thread of the process was in a write of its output in both looks."""
    before = set(proc.resources_before.get("threads", {}).get("printing", ()))
    return bool(before & set(proc.resources.get("threads", {}).get("printing", ())))


def _printing(proc: Proc) -> set[int]:
    """The threads of the process that were in a write of its output in any look."""
    return {int(number) for one in (proc.resources_before, proc.resources) for number in one.get("threads", {}).get("printing", ())}


def _is_burst(graph: WaitGraph, proc: Proc, others: list[Proc], is_blocked: bool) -> bool:
    if proc.printed[0] < max(_PIPE if is_blocked else _MOST, _TIMES * median(one.printed[0] for one in others)):
        return False
    rate = _rate(graph, proc)
    return is_blocked or (rate >= _RATE and rate >= _TIMES * median(_rate(graph, one) for one in others))


def _rate(graph: WaitGraph, proc: Proc) -> float:
    return (proc.printed[0] - proc.printed_before[0]) / max(graph.index.snapshot.seconds, 0.1)


def _burst(graph: WaitGraph, proc: Proc, others: list[Proc], behind: list[Proc]) -> Finding:
    usual = median(one.printed[0] for one in others)
    size, lines = proc.printed
    now = f"{_rate(graph, proc) / _MIB:,.2f} MiB/s now"
    slow = ", more than the console takes" if _blocked(proc) else ""
    sentence = (
        f"{graph.index.of_proc(proc.uid)} prints far more than the other ranks: {size / _MIB:,.1f} MiB in {lines:,} lines, {now}{slow}; "
        f"other ranks have {usual / _MIB:,.1f} MiB"
    )
    facts = [Fact(f"{size:,} bytes of output, of the others {usual:,.0f}", "agent of the host")]
    if slow:
        facts.append(Fact(f"a thread waits in write() of its output{_at(graph, proc)}", f"/proc/{proc.pid}/task, two looks"))
    explains = graph.index.of_procs(*(one.uid for one in behind))
    return Finding(sentence, graph.index.of_procs(proc.uid), tuple(facts), "monarch stack", 62, explains)


def _console(graph: WaitGraph, stuck: list[Proc]) -> Finding:
    first = stuck[0]
    more = f" and {len(stuck) - 1} more" if len(stuck) > 1 else ""
    longest = max((one.doing_for for one in graph.index.snapshot.actors if one.proc == first.uid and one.doing is not None), default=0.0)
    sentence = (
        f"the output of the job is not taken: {graph.index.of_proc(first.uid)}{more} waits to print{_at(graph, first)} in an endpoint of "
        f"{seconds(longest)}"
    )
    facts = (Fact("a thread waits in write() of its output", f"/proc/{first.pid}/task, two looks"),)
    nodes = graph.index.of_procs(*(one.uid for one in stuck))
    return Finding(sentence, nodes, facts, "monarch stack", 60)


def _at(graph: WaitGraph, proc: Proc) -> str:
    printing = set(proc.resources.get("threads", {}).get("printing", ()))
    place = next((place for one in proc.threads if one.native in printing and (place := one.place()) is not None), None)
    return f" in {place.short}" if place is not None else ""


DETECTORS = (
    Detector("output", "ranks that print far more than the others while others wait, and output that the console does not take", flooding),
)
