"""The state of a job at one moment: plain values, without a connection to the job. Detectors read nothing else.

Times are in seconds before the moment. A *node* names a thing that waits or is waited for: a tuple of its kind and its identity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from monarch.telemetry._diagnose.group_rank import GroupRank
from monarch.telemetry._diagnose.software import Software
from monarch.telemetry._diagnose.supplies import Lookup, Supply

# A node: ("host", name), ("proc", uid), ("actor", uid of its proc, mesh) or ("thread", uid of its proc, number).
Node = tuple[str, ...]

# Parts of the paths of files that are no code of the user.
_RUNTIME = re.compile(r"/monarch/(?:_\w+|actor|telemetry|extension)/")
_LIBRARY = re.compile(r"/lib(?:64)?/python3[.\d]*/(?!site-packages|dist-packages)")
_INSTALLED = ("/site-packages/", "/dist-packages/")
# The most characters of the name of a thread in a sentence; a program may give any.
_MOST_NAME = 80


class Frame(NamedTuple):
    """A call of a stack."""

    file: str
    line: int
    name: str

    @property
    def short(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line} in {self.name.rpartition('.')[2]}"


def _is_installed(frame: Frame) -> bool:
    return any(part in frame.file for part in _INSTALLED)


class Thread(NamedTuple):
    """A thread with its calls, innermost first. `paused`: it has stood still between both looks.

    `ran` is its time on a processor in nanoseconds, None where that is not known.
    """

    number: int
    name: str
    frames: tuple[Frame, ...]
    paused: bool = False
    ran: int | None = None
    # Its number in the kernel, if it is known.
    native: int | None = None

    def place(self) -> Frame | None:
        """The innermost call of the user's own code, else that of an installed package, else of the library; none for the runtime alone."""
        shown = [frame for frame in self.frames if _RUNTIME.search(frame.file) is None]
        own = [frame for frame in shown if not frame.file.startswith("<") and _LIBRARY.search(frame.file) is None]
        first = next((frame for frame in own if not _is_installed(frame)), None)
        return first or next(iter(own), None) or next(iter(shown), None)

    @property
    def is_of_user(self) -> bool:
        """Whether the user's own code is among its calls, and no library alone."""
        place = self.place()
        return place is not None and _LIBRARY.search(place.file) is None and not place.file.startswith("<") and not _is_installed(place)


class Proc(NamedTuple):
    """A process. `state` is that of `monarch ps`; `silent` how long it has run no Python, and `reason` the probable reason.

    `kernel` is the state letter of the kernel, `answered` whether the process has answered by itself, `source` how its stacks were read.
    """

    uid: str
    host: str
    pid: int
    name: str
    mesh: str | None = None
    rank: int | None = None
    size: int = 1
    state: str = "running"
    age: float = 0.0
    silent: float | None = None
    reason: str = ""
    kernel: str = ""
    rss: int | None = None
    answered: bool = True
    threads: tuple[Thread, ...] = ()
    stacks_without_gil: bool = False
    # In one of the looks or both, Python has run in it to read its stacks.
    ran_python: bool = False
    # Its memory, descriptors, threads, cgroups, file systems and connections, as reported in each look; empty without an answer.
    resources: Mapping[str, Any] = {}
    resources_before: Mapping[str, Any] = {}
    # Bytes and lines of its output in each look.
    printed: tuple[int, int] = (0, 0)
    printed_before: tuple[int, int] = (0, 0)


class Actor(NamedTuple):
    """An actor. `doing` is the endpoint in progress, `queued` the messages behind it, `taken` the messages that were handled so far."""

    proc: str
    mesh: str
    name: str
    kind: str = ""
    rank: int | None = None
    size: int = 1
    doing: str | None = None
    doing_for: float = 0.0
    queued: int = 0
    taken: int = 0
    overdue: float | None = None
    thread: int = 0
    # Endpoints in progress beside the one in `doing`.
    concurrent: tuple[str, ...] = ()
    # In the look before: messages that waited, and that had been handled.
    queued_before: int | None = None
    taken_before: int | None = None


class Wait(NamedTuple):
    """A wait of a thread that both looks have seen: for ranks that have not answered a call, or for a lock.

    `blocks`: the actor of the thread handles no other message meanwhile. `late` is the number of ranks without an answer, of `size`.
    """

    proc: str
    thread: int
    blocks: bool = True
    call: int = 0
    endpoint: str = ""
    name: str = ""
    mesh: str = ""
    size: int = 1
    late: int = 0
    # (rank, uid of the proc)
    targets: tuple[tuple[int, str], ...] = ()
    timeout: float | None = None
    lock: str | None = None
    holder: int | None = None
    held_at: Frame | None = None
    # The calls of a task, innermost first: its thread itself stands in an event loop.
    frames: tuple[Frame, ...] = ()
    # Another thing that a process has, such as `the lock of /data/lock`.
    thing: str = ""


class Called(NamedTuple):
    """An actor as its callers know it. `rank` is that in the mesh of the actor."""

    name: str
    rank: int | None
    size: int


class End(NamedTuple):
    """The failure of a rank of a mesh. `kind` is that of `ExitReason`; `is_cause`: no other failure caused it."""

    name: str
    rank: int | None
    kind: str
    size: int = 1
    mesh: str = ""
    actor: str = ""
    is_actor: bool = True
    is_cause: bool = True
    code: int | None = None
    signal: int | None = None
    detail: str = ""
    traceback: str = ""
    output: tuple[str, ...] = ()
    host: str | None = None
    pid: int | None = None
    # Since the failure, if it is known.
    age: float | None = None
    source: str = "failures of owned meshes"
    # The mesh is gone: its owner has handled the failure.
    is_past: bool = False


class Host(NamedTuple):
    """A host of the job. `state` is joining, joined or lost; `error` the reason of a missing answer."""

    name: str
    state: str = "joined"
    error: str = ""
    # The resources of its agent in each look: its connections to other hosts, and its clock.
    resources: Mapping[str, Any] = {}
    resources_before: Mapping[str, Any] = {}


class Check(NamedTuple):
    """A measured property of a host or process, such as free bytes of a file system: `value` of at most `limit`."""

    kind: str
    host: str
    subject: str
    value: float
    limit: float
    procs: tuple[str, ...] = ()
    detail: str = ""


class Trouble(NamedTuple):
    """What a scheduler knows to be wrong with a job of a process, in a sentence; `hosts` are the names of the hosts that it is about.

    `kind`: the job or its workers have `ended`, are `stuck` before their start, their machines are `leaving`, or the job is `queued`.
    """

    kind: str
    text: str
    hosts: tuple[str, ...] = ()
    job: str = ""
    source: str = ""
    command: str = ""


class Snapshot(NamedTuple):
    """A job at one moment. `seconds` is the time between both looks, `sources` what was asked, `missing` what gave no answer."""

    procs: tuple[Proc, ...] = ()
    actors: tuple[Actor, ...] = ()
    hosts: tuple[Host, ...] = ()
    waits: tuple[Wait, ...] = ()
    ends: tuple[End, ...] = ()
    checks: tuple[Check, ...] = ()
    # Rows of tables by the name of their statement, where telemetry runs.
    rows: Mapping[str, Sequence[Mapping[str, Any]]] = {}
    seconds: float = 0.0
    sources: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    # Where no client of the job was found.
    is_orphan: bool = False
    # Ranks of process groups, and the time between the first and the last look at them.
    groups: tuple[GroupRank, ...] = ()
    group_seconds: float = 0.0
    software: tuple[Software, ...] = ()
    # The answers of schedulers in one of the looks.
    troubles: tuple[Trouble, ...] = ()
    # The actors of calls in any look, by their processes: names of processes that list no actors.
    called: Mapping[str, Called] = {}
    # Waits for an item of the own process, and look-ups of names, which both looks have seen.
    supplies: tuple[Supply, ...] = ()
    lookups: tuple[Lookup, ...] = ()


class Index:
    """A snapshot with its things by their nodes, and the names by which texts call them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.procs = {one.uid: one for one in snapshot.procs}
        self.actors = {(one.proc, one.mesh): one for one in snapshot.actors}
        self.threads = {(proc.uid, thread.number): thread for proc in snapshot.procs for thread in proc.threads}

    @cached_property
    def by_thread(self) -> dict[tuple[str, int], Actor]:
        return {(one.proc, one.thread): one for one in self.snapshot.actors if one.thread}

    @cached_property
    def _tasks(self) -> dict[tuple[str, int], tuple[Frame, ...]]:
        return {(wait.proc, wait.thread): wait.frames for wait in self.snapshot.waits if wait.frames and wait.blocks}

    @cached_property
    def _called(self) -> dict[str, Called]:
        """An actor of each process that has not listed its actors, from the calls that wait for it."""
        silent = set(self.procs) - {one.proc for one in self.snapshot.actors}
        of_waits = {proc: Called(wait.name, rank, wait.size) for wait in self.snapshot.waits for rank, proc in wait.targets}
        return {proc: one for proc, one in {**self.snapshot.called, **of_waits}.items() if proc in silent}

    @cached_property
    def _many_hosts(self) -> bool:
        return len({proc.host for proc in self.snapshot.procs}) > 1

    def of_procs(self, *procs: str) -> tuple[Node, ...]:
        """Processes, and their actors."""
        actors: list[Node] = [("actor", one.proc, one.mesh) for one in self.snapshot.actors if one.proc in procs]
        return (*(("proc", proc) for proc in procs), *actors)

    def node_of_thread(self, proc: str, thread: int) -> Node:
        """The actor of a thread, or the thread itself where it has none."""
        actor = self.by_thread.get((proc, thread))
        return ("thread", proc, str(thread)) if actor is None else ("actor", proc, actor.mesh)

    def thread_of(self, node: Node) -> Thread | None:
        if node[0] == "actor" and (actor := self.actors.get((node[1], node[2]))) is not None:
            return self.threads.get((actor.proc, actor.thread))
        return self.threads.get((node[1], int(node[2]))) if node[0] == "thread" else None

    def place(self, node: Node) -> str:
        """`reader.py:88 in load` of the thread of a node, or of its task that waits; empty where it is not known."""
        thread = self.thread_of(node)
        if thread is not None and (frames := self._tasks.get((node[1], thread.number))):
            thread = thread._replace(frames=frames)
        frame = None if thread is None else thread.place()
        return "" if frame is None else frame.short

    def label(self, node: Node) -> str:
        """The short name of a node: `trainer rank 5`, `the client`, `thread uploader of trainer rank 5`."""
        if node[0] == "host":
            return f"host {node[1]}"
        if node[0] == "actor":
            actor = self.actors.get((node[1], node[2]))
            return "an actor" if actor is None else ranked(actor.name, actor.rank, actor.size)
        proc = self.procs.get(node[1])
        if node[0] == "proc" and node[1] in self._called:
            return ranked(*self._called[node[1]])
        of = "a process" if proc is None else "the client" if proc.mesh is None else ranked(proc.mesh, proc.rank, proc.size)
        if node[0] == "proc":
            return of
        thread = self.thread_of(node)
        name = "" if thread is None else thread.name
        if name == "MainThread" and proc is not None and proc.mesh is None:
            return of
        return f"thread {cut(name) or node[2]} of {of}"

    def full(self, node: Node) -> str:
        """The name of a node with its host and pid."""
        label = self.label(node)
        proc = self.procs.get(node[1]) if node[0] != "host" else None
        if proc is None:
            return label
        actor = self.actors.get((node[1], node[2])) if node[0] == "actor" else None
        size = (
            actor.size if actor is not None else self._called[node[1]].size if node[0] == "proc" and node[1] in self._called else proc.size
        )
        of = f" of {size}" if size > 1 and node[0] != "thread" else ""
        return f"{label}{of} (host {proc.host}, pid {proc.pid})" if self._many_hosts else f"{label}{of} (pid {proc.pid})"

    def of_proc(self, uid: str) -> str:
        """The full name of a process: that of its actor, if it has exactly one."""
        actors = [one for one in self.snapshot.actors if one.proc == uid]
        return self.full(("actor", uid, actors[0].mesh) if len(actors) == 1 else ("proc", uid))


def ranked(name: str, rank: int | None, size: int) -> str:
    """`trainer rank 5`, or the name alone for a mesh of one. A size of 0 is not known."""
    return name if rank is None or size == 1 else f"{name} rank {rank}"


def cut(name: str) -> str:
    """A name as a part of a sentence: what follows it has to fit too."""
    return name if len(name) <= _MOST_NAME else f"{name[:_MOST_NAME]}…"


def seconds(value: float) -> str:
    """A duration with two figures: `0.4 s`, `41 s`, `12 min`, `3 h`."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.0f} h"
