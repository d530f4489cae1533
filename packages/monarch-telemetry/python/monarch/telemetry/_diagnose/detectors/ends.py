"""Processes and actors that have ended although their owner has not stopped them; meshes that fail again and again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from signal import Signals

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import End, Frame, Node, Thread, ranked, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# Ends that are no failure of their own: the owner wanted them, or is gone itself.
_WANTED = ("stopped", "orphaned")
# Ends of processes; others are ends of an actor in a process that goes on.
ENDS_PROCESS = ("signal", "exit_code", "oom", "returned")
# Failures of meshes of one name that are a crash loop.
_LOOP = 3
# The seconds after which a loop of failures that were handled is over.
_OVER = 120.0
_LINE = re.compile(r'File "([^"\n]*)", line (\d+), in (\S+)')
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Iteration)?)(?:: (.*))?$")


def ended(graph: WaitGraph) -> list[Finding]:
    """One finding for each process, actor or host that has failed first."""
    ends = [end for end in graph.index.snapshot.ends if end.is_cause and not end.is_past and end.kind not in _WANTED]
    in_loop = {name for name, _ in _loops(graph.index.snapshot.ends)}
    groups: dict[tuple[object, ...], list[End]] = {}
    for end in ends:
        if end.name not in in_loop:
            groups.setdefault(_culprit(end), []).append(end)
    return [_finding(graph, group) for group in groups.values()]


def looping(graph: WaitGraph) -> list[Finding]:
    """One finding for each name of a mesh of which several meshes have failed."""
    found: list[Finding] = []
    for name, ends in _loops(graph.index.snapshot.ends):
        last = ends[-1]
        if last.is_past and (last.age or 0.0) > _OVER:
            continue
        found.append(
            Finding(
                f"{name} fails again and again: {len(ends)} failures, the last {_why(last)}",
                nodes_of(graph, ends),
                tuple(Fact(_fact(end), end.source) for end in ends[-2:]),
                "monarch query --run crash_loop" if last.source.startswith("table") else "monarch doctor --crash",
                92,
            )
        )
    return found


def _loops(ends: Sequence[End]) -> list[tuple[str, list[End]]]:
    """Names with the failures of their meshes, one for each mesh: a mesh fails once, and a new one of its name again."""
    ranks: dict[tuple[str, int | None], dict[str, End]] = {}
    for end in sorted(ends, key=lambda one: -(one.age or 0.0)):
        if end.is_cause and end.kind not in _WANTED and end.kind != "host_lost" and end.is_actor:
            ranks.setdefault((end.name, end.rank), {}).setdefault(end.mesh, end)
    # The first rank stands for all ranks of a mesh that fails as a whole.
    found = {name: list(meshes.values()) for (name, _), meshes in reversed(ranks.items()) if len(meshes) >= _LOOP}
    return list(found.items())


def _culprit(end: End) -> tuple[object, ...]:
    if end.kind == "host_lost":
        # Hosts that were lost together have one cause, such as a network that is cut.
        return (end.kind,)
    if end.kind == "raised" or end.pid is None:
        return (end.kind, end.actor, end.detail)
    return (end.host, end.pid)


def _finding(graph: WaitGraph, ends: Sequence[End]) -> Finding:
    # The name of an actor is known better than that of the mesh of its process.
    first = next((end for end in ends if end.is_actor), ends[0])
    names = sorted({ranked(end.name, end.rank, end.size) for end in ends})
    if first.kind == "host_lost":
        why = first.detail.partition(chr(10))[0] or "no reason is known"
        hosts = sorted({end.host for end in ends if end.host})
        if len(hosts) > 1:
            shown = f"{', '.join(hosts[:8])}{', …' * (len(hosts) > 8)}"
            sentence = f"{len(hosts)} hosts were lost: {shown}: {why}"
        else:
            sentence = f"host {first.host or 'of ' + first.name} was lost: {why}"
    else:
        of = f" of {first.size}" if first.size > 1 else ""
        parts = (f"host {first.host}" if first.host else "", f"pid {first.pid}" if first.pid else "")
        place = ", ".join(filter(None, parts))
        sentence = f"{ranked(first.name, first.rank, first.size)}{of}{f' ({place})' if place else ''} {_why(first)}"
    if first.age is not None:
        sentence += f", {seconds(first.age)} ago"
    facts = [Fact(_fact(first), first.source)]
    if first.kind == "host_lost":
        reasons = {end.host: end.detail.partition(chr(10))[0][:80] for end in ends if end.host}
        facts = [Fact(f"host {host}: {reason}", first.source) for host, reason in sorted(reasons.items())[:4]] or facts
    if len(names) > 1:
        facts.append(Fact(f"{len(names)} meshes have failed with it: {', '.join(names[:4])}{', …' * (len(names) > 4)}", first.source))
    if first.output:
        facts.append(Fact(f"last output: {first.output[-1][:160]}", "captured output"))
    command = "monarch doctor --crash" if first.kind in ("signal", "exit_code", "oom") else "monarch ps --all"
    return Finding(sentence, nodes_of(graph, ends), tuple(facts), command, 95 if first.kind in ("host_lost", "oom") else 90)


def _why(end: End) -> str:
    """The rest of a sentence about an end."""
    match end.kind:
        case "signal":
            return f"was killed by signal {end.signal}{_signal_name(end.signal)}"
        case "oom":
            return f"was killed for memory{f': {end.detail}' if end.detail else ''}"
        case "exit_code":
            return f"exited with code {end.code}"
        case "returned":
            return "exited with code 0 while it was needed"
        case "raised":
            return _raised(end)
        case "host_lost":
            return "was on a host that was lost"
        case kind:
            return f"ended: {kind}{f' ({end.detail.partition(chr(10))[0]})' if end.detail else ''}"


def _raised(end: End) -> str:
    """`raised ValueError: bad batch in train.py:31 in step`."""
    lines = [line.strip() for line in f"{end.detail}\n{end.traceback}".split("\n") if line.strip()]
    error = next((line for line in reversed(lines) if _EXCEPTION.match(line) and not line.startswith(("File ", "Traceback"))), "")
    error = error or (lines[0] if lines else "an exception")
    frame = own_frame(Frame(file, int(line), name) for file, line, name in _LINE.findall(f"{end.detail}\n{end.traceback}"))
    return f"raised {error[:200]}{f' in {frame.short}' if frame else ''}"


def own_frame(frames: Iterable[Frame]) -> Frame | None:
    """The innermost frame of the user's code; `frames` are outermost first."""
    return Thread(0, "", tuple(reversed(list(frames)))).place()


def _fact(end: End) -> str:
    detail = end.detail.partition("\n")[0][:160]
    return f"{ranked(end.name, end.rank, end.size)}: {end.kind}{f', {detail}' if detail else ''}"


def _signal_name(number: int | None) -> str:
    try:
        return f" ({Signals(number or 0).name})"
    except ValueError:
        return ""


def nodes_of(graph: WaitGraph, ends: Iterable[End]) -> tuple[Node, ...]:
    """The nodes of the ended ranks, which waits of others may still have as their targets."""
    found: list[Node] = []
    here = {(proc.pid, proc.host) for proc in graph.index.snapshot.procs}
    for end in ends:
        if end.pid is not None and (end.pid, end.host) not in here:
            # The process is in no list any more.
            found.append(("proc", f"{end.host}/{end.pid}"))
        for proc in graph.index.snapshot.procs:
            if end.pid is not None and (proc.pid, proc.host) == (end.pid, end.host):
                found += [
                    ("proc", proc.uid),
                    *(("actor", one.proc, one.mesh) for one in graph.index.snapshot.actors if one.proc == proc.uid),
                ]
        if end.kind == "host_lost" and end.host is not None:
            found.append(("host", end.host))
        # A wait that is not answered yet has the rank among its targets.
        found += [
            target
            for wait in graph.index.snapshot.waits
            if wait.name == end.name
            for rank, proc in wait.targets
            if rank == end.rank and (target := ("proc", proc))[1] not in graph.index.procs
        ]
    return tuple(dict.fromkeys(found))


DETECTORS = (
    Detector("ended", "failures of meshes that still exist: signals, exit codes, memory, exceptions, lost hosts", ended),
    Detector("crash_loop", "meshes of one name that have failed three times or more", looping),
)
