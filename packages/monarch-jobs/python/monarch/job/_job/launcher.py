"""The protocol of a scheduler (entry-point group `monarch.launcher`), and its data: plans, the status of a job and of its hosts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

Phase = Literal["none", "pending", "running", "ended", "unknown"]
HostPhase = Literal["waiting", "joined", "lost"]


class Host(NamedTuple):
    """A place in a mesh."""

    mesh: str
    rank: int

    def __str__(self) -> str:
        return f"{self.mesh}[{self.rank}]"


class HostStatus(NamedTuple):
    """A host of a job: `name` is the machine's, empty where it is not known yet; `detail` its last words."""

    mesh: str
    rank: int
    name: str
    phase: HostPhase
    address: str | None
    detail: str


# The most hosts that one line names.
MOST_NAMED = 4


def described(host: HostStatus) -> str:
    """A lost host in a line: its place, its machine and the reason."""
    name = f" ({host.name})" if host.name else ""
    return f"{host.mesh}[{host.rank}]{name} is lost: {host.detail.partition(chr(10))[0] or 'no reason given'}"


class JobStatus(NamedTuple):
    """`phase` as the scheduler has it, `detail` the reason that it gives, `hosts` in the order of the meshes."""

    phase: Phase
    detail: str
    hosts: list[HostStatus]


class HealReport(NamedTuple):
    """What `heal` did with the lost hosts: started again in place, replaced by others, or nothing could be done."""

    restarted: list[HostStatus]
    replaced: list[HostStatus]
    missing: list[HostStatus]


class Trouble(NamedTuple):
    """What a scheduler knows to be wrong with a job, in a sentence that begins with its subject; `hosts` has (mesh, rank)
    of those that it is about, none for all.

    `kind`: the job or these workers have `ended`, the workers are `stuck` and will not start by themselves, the machines of running workers
    are `leaving` or do not answer the scheduler, or the job is `queued`. `source` was asked, `command` shows more.
    """

    kind: Literal["ended", "stuck", "leaving", "queued"]
    text: str
    hosts: tuple[tuple[str, int], ...] = ()
    source: str = ""
    command: str = ""


class LogFile(NamedTuple):
    """A file with the output of a worker; `stream` is `out`, `err`, or `system` for what is not a worker's."""

    mesh: str
    rank: int
    stream: str
    path: str


for _public in (HostStatus, JobStatus, HealReport, Trouble):
    _public.__module__ = "monarch.job"


class Plan:
    """The submission of a job: `str(plan)` prints it. Deterministic, and free of secrets.

    `kind` names the backend, `text` is the script, the manifest or the commands, `files` has what is written beside it (name to content),
    `redacted` is true where something secret is left out of what is shown.
    """

    __module__ = "monarch.job"
    __slots__ = ("_files", "_kind", "_redacted", "_text")

    def __init__(self, kind: str, text: str, files: Mapping[str, str] | None = None, redacted: bool = False) -> None:
        self._kind = kind
        self._text = text
        self._files = MappingProxyType(dict(files or {}))
        self._redacted = redacted

    @property
    def kind(self) -> str:
        return self._kind

    @property
    def text(self) -> str:
        return self._text

    @property
    def files(self) -> Mapping[str, str]:
        return self._files

    @property
    def redacted(self) -> bool:
        return self._redacted

    def __str__(self) -> str:
        parts = [self._text.rstrip("\n")]
        parts += [f"--- {name} ---\n{content.rstrip(chr(10))}" for name, content in self._files.items()]
        return "\n".join(parts) + "\n"

    def __repr__(self) -> str:
        return f"<Plan of a {self._kind} job, {len(self._text.splitlines())} lines, {len(self._files)} files>"

    def _key(self) -> tuple[Any, ...]:
        return (self._kind, self._text, tuple(self._files.items()), self._redacted)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        return (Plan, (self._kind, self._text, dict(self._files), self._redacted))


@runtime_checkable
class Launcher(Protocol):
    """Talks to one scheduler, never to hosts: joining, certificates, re-attaching and healing are common code.

    One with `machines_outlive_workers = True` starts workers again also where all have ended and `poll` has the phase "ended".

    One with a method `ending() -> (state, reason)` gives, for a job that has ended, state and reason in the scheduler's terms, as the last
    `poll` found them. Without the method, they are `phase` and `detail` of the status.

    One with a method `troubles(ids) -> list[Trouble]` gives `monarch diagnose` what it knows to be wrong. It changes nothing, and may take
    seconds.

    `ids` is what `submit` returned, plain JSON; it is all that another process needs to go on with the allocation.
    """

    kind: str

    def plan(self) -> Plan:
        """What will be submitted; nothing is touched."""
        ...

    def submit(self, plan: Plan, secret: bytes) -> dict[str, Any]:
        """Submits the plan and returns at once. If it raises, also by Ctrl-C, nothing half-made is left."""
        ...

    def poll(self, ids: dict[str, Any]) -> JobStatus:
        """One look at the scheduler; hosts are `waiting`, or `lost` where the scheduler knows that their worker ended."""
        ...

    def addresses(self, ids: dict[str, Any]) -> dict[str, list[str | None]]:
        """Per mesh, by rank, where the worker listens; None: not yet."""
        ...

    def relaunch(self, ids: dict[str, Any], lost: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Starts the workers of these (mesh, rank) again, and gives those for which that was possible; changes `ids` in place."""
        ...

    def cancel(self, ids: dict[str, Any]) -> None:
        """Ends the allocation; one that is over is fine."""
        ...
