"""Limits that are reached: full or read-only file systems, open descriptors, threads of a cgroup; file systems that do not answer."""

from __future__ import annotations

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Check, Node
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The part of a limit at which it is reached.
_FULL = 0.97
_MIB = 1 << 20
# The part of the time for which a cgroup is held back from which its limit slows the job.
_HELD_BACK = 0.5
# Free bytes of a file system below which it is full, whatever its size.
_LEAST_FREE = 16 * _MIB


def reached(graph: WaitGraph) -> list[Finding]:
    """One finding for each limit that is reached."""
    return [
        finding
        for check in graph.index.snapshot.checks
        if (finding := _finding(graph, check, graph.index.of_procs(*check.procs))) is not None
    ]


def _finding(graph: WaitGraph, check: Check, nodes: tuple[Node, ...]) -> Finding | None:
    match check.kind:
        case "file_system" if check.limit - check.value < min(_LEAST_FREE, check.limit * (1 - _FULL)):
            free = check.limit - check.value
            rest = f"{free / _MIB:.1f} of {check.limit / _MIB:,.0f} MiB are free{_user(graph, check)}"
            sentence = f"{check.subject} of host {check.host} is full: {rest}"
            return Finding(sentence, nodes, (Fact(check.detail or check.subject, "statvfs"),), f"df {check.detail or check.subject}", 74)
        case "inodes" if check.value >= check.limit:
            sentence = f"{check.subject} of host {check.host} has no free inode of {check.limit:,.0f}"
            return Finding(sentence, nodes, (Fact(check.detail or check.subject, "statvfs"),), f"df -i {check.detail or check.subject}", 74)
        case "descriptors" if check.value >= _FULL * check.limit:
            sentence = f"{check.subject} has {check.value:,.0f} of at most {check.limit:,.0f} open descriptors"
            return Finding(sentence, nodes, (Fact(check.detail, "/proc"),), f"ls -l {check.detail}", 73)
        case "held_back" if check.value >= _HELD_BACK:
            count = f"{len(check.procs)} procs" if len(check.procs) > 1 else "1 proc"
            sentence = f"the cgroup of {count} of host {check.host} limits processor time: it is held back {check.value:.0%} of the time"
            return Finding(sentence, nodes, (Fact(check.subject, "cpu.stat"),), f"cat {check.detail}", 66)
        case "read_only":
            sentence = f"{check.subject} of host {check.host} is mounted read-only"
            return Finding(sentence, nodes, (Fact(check.detail or check.subject, "statvfs"),), f"mount | grep {check.subject}", 74)
        case "pids_limit" if check.value >= _FULL * check.limit:
            sentence = f"the cgroup {check.subject} of host {check.host} has {check.value:,.0f} of at most {check.limit:,.0f} threads"
            return Finding(sentence, nodes, (Fact(f"{check.subject}/pids.current", "pids cgroup"),), f"cat {check.subject}/pids.max", 73)
        case "hangs":
            sentence = f"{check.subject} of host {check.host} does not answer: a call to it takes longer than {check.limit:g} s"
            return Finding(sentence, nodes, (Fact(check.detail or check.subject, "statvfs"),), f"mount | grep {check.subject}", 79)
        case _:
            return None


def _user(graph: WaitGraph, check: Check) -> str:
    """The process that uses most of a file system for shared memory, if it uses half of it or more."""
    if check.subject != "/dev/shm":
        return ""
    used = {uid: int(graph.index.procs[uid].resources.get("memory", {}).get("shared", 0)) for uid in check.procs}
    most = max(used, key=lambda uid: used[uid], default="")
    if not most or used[most] < check.limit / 2:
        return ""
    return f"; {graph.index.of_proc(most)} uses {used[most] / _MIB:,.0f} MiB of shared memory"


DETECTORS = (Detector("limits", "file systems that the job uses, open descriptors, limits of processor time by cgroups", reached),)
