"""Endpoints that wait in the kernel for something that cannot come: by the other end of it, as the kernel shows it."""

from __future__ import annotations

from typing import NamedTuple

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.kernel_waits import LEAST, KernelWait, Program, Waiting, endpoints, node_of_pid
from monarch.telemetry._diagnose.snapshot import Node, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# How often the kernel sends data again before its receiver counts as gone: the third time is 1.4 seconds after the first on a short link.
_AGAIN = 4
_ENDED = "Z"


def waiting(graph: WaitGraph) -> list[Finding]:
    """One finding for each thing that endpoints wait for in vain: a lock, a program, a pipe or a connection."""
    tests = (_lock, _program, _pipe, _connection)
    groups: dict[tuple[str, str, str], list[_Found]] = {}
    for one in endpoints(graph.index):
        found = next(filter(None, (test(graph, one) for test in tests)), None)
        if found is not None:
            groups.setdefault((one.actor.name, graph.index.place(one.node), found.kind), []).append(found)
    return [_finding(graph, group) for group in groups.values()]


class _Found(NamedTuple):
    """What one endpoint waits for. `kind` is equal for ranks of a mesh with the same cause; `culprit` is another process of the job.

    `subject` begins the sentence instead of the endpoint that waits.
    """

    one: Waiting
    kind: str
    text: str
    fact: str
    command: str
    weight: int
    culprit: Node | None = None
    subject: str = ""


def _finding(graph: WaitGraph, group: list[_Found]) -> Finding:
    index = graph.index
    found = min(group, key=lambda each: (each.one.actor.rank or 0, each.one.actor.proc))
    one, since = found.one, seconds(max(each.one.actor.doing_for for each in group))
    place = index.place(one.node) or f"{one.actor.doing}()"
    facts = [Fact(found.fact, "/proc, two looks"), Fact(f"{one.actor.doing}() stands in {place} since {since}", "stacks, two looks")]
    others = sorted(index.label(each.one.node) for each in group if each is not found)
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        facts.append(Fact(f"the same: {', '.join(others[:3])}{more}", "/proc, two looks"))
    also = f", and so {'do' if len(others) > 1 else 'does'} {len(others)} more" if others else ""
    if found.culprit is not None and found.subject:
        sentence = f"{found.subject} {found.text}"
    else:
        sentence = f"{index.full(one.node)} has waited in {place} for {since}{also}: {found.text}"
    nodes = [node for each in group for node in (each.one.node, ("proc", each.one.actor.proc))] if not found.subject else []
    culprits = [each.culprit for each in group if each.culprit is not None]
    return Finding(sentence, tuple(dict.fromkeys((*nodes, *culprits))), tuple(facts), found.command, found.weight)


def _lock(graph: WaitGraph, one: Waiting) -> _Found | None:
    """A lock of a file, which another process holds."""
    wait = one.wait
    if wait.call != "lock" or wait.holder is None:
        return None
    index = graph.index
    holder = node_of_pid(index, index.procs[one.actor.proc].host, wait.holder) if wait.holder else None
    command = f"ps -fp {wait.holder}" if wait.holder else "lslocks"
    fact = f"lock of {wait.target} in /proc/locks, held by {f'pid {wait.holder}' if wait.holder else 'no process of this machine'}"
    if holder is None:
        of = f"process {wait.holder_name} (pid {wait.holder})" if wait.holder else "a process of another machine or container"
        return _Found(one, f"lock {wait.target}", f"{of} holds the lock of {wait.target}", fact, command, 76)
    thread = index.thread_of(holder)
    if graph.targets(holder) or (thread is not None and not thread.paused):
        # It goes on, or waits for something else, which is the cause then.
        return None
    place = index.place(holder)
    text = f"holds the lock of {wait.target}{f' and stands in {place}' if place else ''}; {index.label(one.node)} waits for the lock"
    return _Found(one, f"lock {wait.target}", text, fact, command, 76, holder, index.full(holder))


def _program(_: WaitGraph, one: Waiting) -> _Found | None:
    """A program whose end is awaited, and which waits for its parent, or for a lock that it cannot get."""
    for program in one.programs.values():
        found = program.wait
        if found is None or not program.idle or not _is_awaited(one, program):
            continue
        pid = program.pid
        if found.call == "futex" and found.private and program.threads == 1:
            text = f"{program.label} was forked while a thread held a lock, and waits for that lock, which no thread of it can release"
            fact = f"pid {pid} has one thread, which waits for a private futex without a time limit"
            return _Found(one, "forked lock", text, fact, f"cat /proc/{pid}/syscall", 78)
        if found.call == "lock" and found.holder:
            text = f"{program.label} waits for the lock of {found.target}, which process {found.holder_name} (pid {found.holder}) holds"
            return _Found(one, f"lock {found.target}", text, f"pid {pid} waits in /proc/locks", f"ps -fp {found.holder}", 77)
        if one.wait.call != "child":
            continue
        others = {pid, *(each.pid for each in one.programs.values() if each.state == _ENDED)}
        for call, pids, verb, of in (("write", found.readers, "is full", "reads"), ("read", found.writers, "is empty", "writes")):
            if found.call == call and pids is not None and set(pids) - others == {one.pid}:
                text = f"{program.label} cannot end: its {_stream(found)} {verb}, and only the process that waits for its end {of} it"
                fact = f"pid {pid} stands in {call} of {found.target}; its other end is that of pid {one.pid}, which waits for pid {pid}"
                return _Found(one, f"pipe {call}", text, fact, f"ls -l /proc/{pid}/fd", 80)
    return None


def _stream(wait: KernelWait) -> str:
    return {0: "standard input", 1: "standard output", 2: "standard error"}.get(wait.descriptor, "pipe")


def _is_awaited(one: Waiting, program: Program) -> bool:
    """Whether an endpoint waits for this program: for its end, for any, or for data of a pipe that it writes."""
    wait = one.wait
    if wait.call == "child":
        return wait.child in (program.pid, -1)
    return wait.call in ("read", "poll") and program.pid in (wait.writers or ())


def _pipe(graph: WaitGraph, one: Waiting) -> _Found | None:
    """The standard input of a process of a job, or a pipe that no other process writes any more, while a program has ended."""
    wait = one.wait
    if wait.call == "read" and (wait.descriptor == 0 or wait.target.startswith(("/dev/tty", "/dev/pts/"))):
        of = "standard input" if wait.descriptor == 0 else f"terminal {wait.target}"
        return _Found(one, "input", f"it reads its {of}, where no input comes", f"read of {wait.target}", "monarch stack", 76)
    ended = [program for program in one.programs.values() if program.state == _ENDED]
    if not ended or wait.call not in ("read", "poll") or wait.writers is None or set(wait.writers) != {one.pid}:
        return None
    if any(thread.is_of_user and thread.number != one.actor.thread for thread in graph.index.procs[one.actor.proc].threads):
        # Another thread of the program may write.
        return None
    names = ", ".join(f"{program.name} (pid {program.pid})" for program in ended[:3])
    text = f"no other process has the pipe that it reads; its program {names} has ended, and was not waited for"
    fact = f"the only process with the end of {wait.target} for writing is pid {one.pid} itself"
    return _Found(one, "no writer", text, fact, f"ls -l /proc/{one.pid}/fd", 76)


def _connection(graph: WaitGraph, one: Waiting) -> _Found | None:
    """A connection that is not accepted, or whose other end does not acknowledge."""
    wait = one.wait
    if not wait.there:
        return None
    listens = ", ".join(f"{name} (pid {pid})" for pid, name in wait.peers[:2])
    if wait.accepted is False and listens and (wait.sent is None or wait.sent >= LEAST):
        # A server may accept the connections of others meanwhile, in turns.
        host = graph.index.procs[one.actor.proc].host
        node = node_of_pid(graph.index, host, wait.peers[0][0])
        what = "does not accept any: its queue of connections is full" if wait.connects else "has not accepted the connection"
        text = f"{listens}, which listens at {wait.there}, {what}"
        command = f"ss -ltnp 'sport = :{wait.there.rpartition(':')[2]}'"
        culprit = None if node is None or node[1] == one.actor.proc else node
        return _Found(one, f"not accepted {wait.there}", text, "the kernel's queue of the listening socket", command, 78, culprit)
    if wait.connects:
        text = f"{wait.there} does not answer the first packet of a connection"
        return _Found(one, f"connects {wait.there}", text, "the connection is in state SYN_SENT", f"ss -tno dst {wait.there}", 78)
    if wait.again >= _AGAIN:
        text = f"{wait.there} does not acknowledge data, which was sent {wait.again} times"
        return _Found(one, f"again {wait.there}", text, "the kernel's table of connections", f"ss -tnoi dst {wait.there}", 77)
    return None


DETECTORS = (
    Detector(
        "outside",
        f"endpoints that wait for {LEAST:g} s or longer in the kernel for a lock of a file, a program, a pipe or a connection",
        waiting,
    ),
)
