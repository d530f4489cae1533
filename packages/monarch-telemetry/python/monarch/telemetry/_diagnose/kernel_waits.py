"""The waits of endpoints and programs in the kernel, from the answers of their processes, as far as both looks have seen the same wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from monarch.telemetry._diagnose.snapshot import Actor, Index, Node, Wait

# The seconds of an endpoint from which its wait is looked at: shorter ones are ordinary.
LEAST = 5.0


class KernelWait(NamedTuple):
    """A wait of a thread: the kind of its system call, and what that leads to.

    `target` is the file, or the name of a pipe or socket. `readers` and `writers` of a pipe are processes. `peers` are those with the other
    end of a connection on this machine: those that listen where it is not `accepted`. `holder` has the lock of a file. `again`: how
    often the kernel has sent the same data.
    """

    call: str
    thread: int
    pid: int = 0
    target: str = ""
    child: int = 0
    private: bool = False
    holder: int | None = None
    holder_name: str = ""
    readers: tuple[int, ...] | None = None
    writers: tuple[int, ...] | None = None
    there: str = ""
    connects: bool = False
    accepted: bool | None = None
    again: int = 0
    peers: tuple[tuple[int, str], ...] = ()
    descriptor: int = -1
    # The seconds since this end of a connection has sent data, if they are known.
    sent: float | None = None


class Program(NamedTuple):
    """A process below one of the job. `idle`: it has used no processor time between both looks."""

    pid: int
    name: str
    state: str
    threads: int
    idle: bool
    wait: KernelWait | None = None

    @property
    def label(self) -> str:
        return f"its program {self.name} (pid {self.pid})"


class Waiting(NamedTuple):
    """An endpoint that has waited for `LEAST` seconds or longer, with the programs of its process."""

    node: Node
    actor: Actor
    pid: int
    wait: KernelWait
    programs: Mapping[int, Program]


def endpoints(index: Index) -> Iterator[Waiting]:
    """The endpoints whose threads were in the same wait in both looks."""
    programs: dict[str, Mapping[int, Program]] = {}
    for actor in index.snapshot.actors:
        proc, thread = index.procs.get(actor.proc), index.threads.get((actor.proc, actor.thread))
        if proc is None or thread is None or thread.native is None or actor.doing is None or actor.doing_for < LEAST:
            continue
        try:
            waits = [_waits_of(one).get(thread.native) for one in (proc.resources_before, proc.resources)]
            if waits[1] is None or waits[0] is None or _key(waits[0]) != _key(waits[1]):
                continue
            if proc.uid not in programs:
                programs[proc.uid] = {one.pid: one for one in _programs(proc.resources_before, proc.resources)}
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):  # of another release
            continue
        yield Waiting(("actor", actor.proc, actor.mesh), actor, proc.pid, waits[1], programs[proc.uid])


def _rows(resources: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return cast("list[Mapping[str, Any]]", resources.get("kernel_waits", {}).get(name, []))


def _waits_of(resources: Mapping[str, Any]) -> dict[int, KernelWait]:
    return {int(row["thread"]): wait_of(row) for row in _rows(resources, "threads")}


def _programs(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Program]:
    earlier = {row["pid"]: row for row in _rows(before, "programs")}
    for row in _rows(now, "programs"):
        known = earlier.get(row["pid"], {})
        wait = wait_of(row["wait"]) if row["wait"] else None
        earlier_wait = wait_of(known["wait"]) if known.get("wait") else None
        if wait is not None and (earlier_wait is None or _key(earlier_wait) != _key(wait)):
            wait = None
        idle = known.get("ran") == row["ran"]
        yield Program(int(row["pid"]), str(row["name"]), str(row["state"]), int(row["threads"]), idle, wait)


def wait_of(row: Mapping[str, Any]) -> KernelWait:
    """The wait of a row, as a process reports it."""
    pids = {name: tuple(int(pid) for pid in row[name]) if row.get(name) is not None else None for name in ("readers", "writers")}
    return KernelWait(
        str(row["call"]),
        int(row["thread"]),
        int(row.get("pid", 0)),
        str(row.get("target", "")),
        int(row.get("child", 0)),
        bool(row.get("private")),
        row.get("holder"),
        str(row.get("holder_name", "")),
        pids["readers"],
        pids["writers"],
        str(row.get("there", "")),
        bool(row.get("connects")),
        row.get("accepted"),
        int(row.get("again", 0)),
        tuple((int(pid), str(name)) for pid, name in row.get("peers", ())),
        int(row.get("descriptor", -1)),
        None if row.get("sent") is None else float(row["sent"]),
    )


def _key(wait: KernelWait) -> tuple[object, ...]:
    return wait.call, wait.target, wait.child, wait.holder, wait.accepted, wait.connects


def node_of_pid(index: Index, host: str, pid: int) -> Node | None:
    """The actor of a process of the job, if it has exactly one, else the process; None for a process that is not of the job."""
    proc = next((one for one in index.snapshot.procs if one.host == host and one.pid == pid), None)
    if proc is None:
        return None
    actors = [one for one in index.snapshot.actors if one.proc == proc.uid]
    return ("actor", proc.uid, actors[0].mesh) if len(actors) == 1 else ("proc", proc.uid)


def awaited(index: Index) -> Iterator[tuple[Node, Node, Wait | None]]:
    """Edges of the wait graph: from an endpoint to the process of the job that has its lock of a file, or the other end of its connection.

    An edge of a lock has a wait. A process may answer a connection in any thread, so that such an edge is no part of a deadlock.
    """
    for one in endpoints(index):
        wait = one.wait
        pids = [wait.holder] if wait.holder else [pid for pid, _ in wait.peers] if wait.accepted else []
        # A socket with several users is that of a server, and any of them may answer.
        target = node_of_pid(index, index.procs[one.actor.proc].host, pids[0]) if len(pids) == 1 else None
        if target is not None and target[1] != one.actor.proc:
            yield one.node, target, Wait(one.actor.proc, one.actor.thread, thing=f"the lock of {wait.target}") if wait.holder else None
