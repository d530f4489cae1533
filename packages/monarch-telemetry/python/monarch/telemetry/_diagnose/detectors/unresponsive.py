"""Processes that run no Python: stopped by a signal or a debugger, blocked in the kernel, or with a thread that keeps the GIL."""

from __future__ import annotations

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Node, Proc, Thread, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# A process that runs no Python lacks a processor if its threads wait for one for the first part of the time, and have one for less than the
# second.
_STARVED, _RUNS = 0.5, 0.05
# The seconds of a long silence.
_LONG = 5.0


def unresponsive(graph: WaitGraph) -> list[Finding]:
    """One finding for each process; processes of a silent host are not known to be unresponsive."""
    return [_finding(graph, proc) for proc in graph.index.snapshot.procs if _is_unresponsive(proc)]


def _is_unresponsive(proc: Proc) -> bool:
    """A process in which Python has run for one of the looks is slow to answer its agent: the machine may be overloaded."""
    return (bool(proc.silent) and not proc.ran_python) or proc.kernel == "T" or (proc.kernel == "t" and not proc.answered)


def _finding(graph: WaitGraph, proc: Proc) -> Finding:
    node: Node = ("proc", proc.uid)
    actors: tuple[Node, ...] = tuple(("actor", one.proc, one.mesh) for one in graph.index.snapshot.actors if one.proc == proc.uid)
    name = _name(graph, proc)
    since = f" since {seconds(proc.silent)}" if proc.silent else ""
    facts = [Fact(f"state {proc.kernel or '?'} in the kernel{f', no Python{since}' if since else ''}", "agent of the host")]
    if proc.kernel == "T":
        return Finding(f"{name} is stopped by a signal{since}", (node, *actors), tuple(facts), f"kill -CONT {proc.pid}", 88)
    if proc.kernel == "t":
        return Finding(
            f"{name} is stopped by a debugger{since}", (node, *actors), tuple(facts), f"grep TracerPid /proc/{proc.pid}/status", 88
        )
    times = {one.kind: one.value for one in graph.index.snapshot.checks if proc.uid in one.procs}
    used, waited = times.get("processor", 0.0), times.get("run_queue", 0.0)
    # The kernel counts a wait for a processor when it ends: a thread that is runnable for all of the time has none.
    is_starved = waited >= _STARVED or (proc.kernel == "R" and "processor" in times)
    if proc.kernel != "D" and is_starved and used < _RUNS:
        text = f"its threads had a processor {used:.0%} of the time between both looks, and waited for one {waited:.0%}"
        facts.append(Fact(text, "/proc/PID/schedstat"))
        text = f"{name} gets no processor time{since}: other processes keep the machine busy"
        return Finding(text, (node, *actors), tuple(facts), "uptime", 65)
    thread = _running(graph, proc)
    place = None if thread is None else thread.place()
    where = f" in {place.short}" if place is not None else ""
    if place is not None:
        facts.append(Fact(f"thread {thread.name or thread.number if thread else ''}{where}", "stacks, read without the GIL"))
    if proc.kernel == "D":
        return Finding(
            f"{name} is blocked in the kernel{where}{since}: a disk or file system does not answer",
            (node, *actors),
            tuple(facts),
            "dmesg | tail",
            78,
        )
    # Without the processor times of another machine only a long silence is no lack of a processor.
    if (proc.stacks_without_gil or proc.threads) and (times or (proc.silent or 0.0) >= _LONG):
        return Finding(
            f"{name} keeps the GIL{where}{since}: no other thread of it runs",
            (node, *actors),
            tuple(facts),
            f"monarch stack {_client(graph)}".strip(),
            80,
        )
    return Finding(
        f"{name} runs no Python{since}: {proc.reason or 'the reason is not known'}", (node, *actors), tuple(facts), "monarch ps", 70
    )


def _name(graph: WaitGraph, proc: Proc) -> str:
    """The process by its busy actor, if it has exactly one."""
    busy = [one for one in graph.index.snapshot.actors if one.proc == proc.uid and one.doing is not None]
    return graph.index.full(("actor", busy[0].proc, busy[0].mesh) if len(busy) == 1 else ("proc", proc.uid))


def _running(graph: WaitGraph, proc: Proc) -> Thread | None:
    """The thread that probably runs: that of a busy actor, else the first one in code of the user."""
    busy = {one.thread for one in graph.index.snapshot.actors if one.proc == proc.uid and one.doing is not None}
    shown = [one for one in proc.threads if one.place() is not None]
    return next((one for one in shown if one.number in busy), next(iter(shown), None))


def _client(graph: WaitGraph) -> str:
    client = next((one for one in graph.index.snapshot.procs if one.name == "client"), None)
    return "" if client is None else str(client.pid)


DETECTORS = (Detector("unresponsive", "processes that run no Python: signals, debuggers, the GIL, waits in the kernel", unresponsive),)
