"""The failure of a rank of a mesh and the reason of an end: values with a wire form, and their texts.

The text of a failure names the actor that failed first, then every owner that passed the failure on.
"""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch._core.errors.text import fill, first_line, hint_of, indented, row_of, signal_name, where

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monarch._core._native.events import Event

_NO_DETAIL = "(no reason provided)"


def _exact(value: object) -> str:
    """Plain `str` of any object: a subclass would not survive the wire, and a `__str__` may raise."""
    try:
        return str.__str__(value if isinstance(value, str) else str(value))
    except Exception:
        return f"<unprintable {type(value).__name__} object>"


class ExitReason:
    """The reason of an actor's or a process's end: the same value on the wire and in Python.

    `kind` is one of the first ten codes of the table; `code`, `signal` and `core_dumped` are the process's, `detail` is the text that the
    kind needs: the error, the cgroup, the reason of a host's loss or of a stop, the display of a vanished owner.
    """

    __slots__ = ("code", "core_dumped", "detail", "kind", "signal")

    def __init__(
        self, kind: str, code: int | None = None, signal: int | None = None, core_dumped: bool = False, detail: str | None = None
    ) -> None:
        self.kind = _exact(kind)
        self.code = None if code is None else int(code)
        self.signal = None if signal is None else int(signal)
        self.core_dumped = bool(core_dumped)
        self.detail = None if detail is None else _exact(detail)

    def to_wire(self) -> bytes:
        return marshal.dumps(_fields(self))

    @classmethod
    def from_wire(cls, data: bytes) -> ExitReason:
        return cls(*marshal.loads(data))

    def __eq__(self, other: object) -> bool:
        return _fields(self) == _fields(other) if isinstance(other, ExitReason) else NotImplemented

    def __hash__(self) -> int:
        return hash(_fields(self))

    def __repr__(self) -> str:
        names = ("code", "signal", "core_dumped", "detail")
        return f"ExitReason({self.kind!r}{''.join(f', {name}={getattr(self, name)!r}' for name in names if getattr(self, name))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (ExitReason, _fields(self))


def _fields(reason: ExitReason) -> tuple[Any, ...]:
    return (reason.kind, reason.code, reason.signal, reason.core_dumped, reason.detail)


class FailureDetails(NamedTuple):
    """What only the report of a failure shows."""

    traceback: str | None
    # The last lines of the process.
    output: tuple[str, ...]
    # The owners that did not handle the failure.
    chain: tuple[str, ...]
    # The last events of the process, encoded.
    recent: bytes
    # The failure in whose handling this one happened.
    during: MeshFailure | None


class MeshFailure:
    """The failure of one rank of a mesh, as `__supervise__` and the fault hook receive it.

    `mesh_name` is the unique name (`<none>` if there is no mesh), `name` the one given to `spawn`, `actor` the display name, `cause` the
    failure of an owned actor that caused this one. `report()` is the full text.
    """

    __slots__ = ("__core__", "actor", "cause", "crashed_ranks", "host", "mesh_name", "name", "pid", "reason")
    mesh: None = None

    def __init__(
        self,
        *,
        actor: str,
        reason: ExitReason,
        mesh_name: str | None = None,
        name: str | None = None,
        crashed_ranks: Iterable[int] = (),
        host: str | None = None,
        pid: int | None = None,
        cause: MeshFailure | None = None,
        traceback: str | None = None,
        output: Iterable[str] = (),
        chain: Iterable[str] = (),
        during: MeshFailure | None = None,
        recent: bytes = b"",
    ) -> None:
        self.mesh_name = "<none>" if mesh_name is None else _exact(mesh_name)
        self.name = None if name is None else _exact(name)
        self.crashed_ranks = [int(rank) for rank in crashed_ranks]
        self.actor = _exact(actor)
        self.host = None if host is None else _exact(host)
        self.pid = None if pid is None else int(pid)
        self.reason = reason
        self.cause = during if cause is None else cause
        lines, displays = tuple(_exact(line) for line in output), tuple(_exact(display) for display in chain)
        self.__core__ = FailureDetails(None if traceback is None else _exact(traceback), lines, displays, recent, during)

    @property
    def recent_events(self) -> tuple[Event, ...]:
        """The last events of the process whose end was the cause, oldest first; empty if none were recorded."""
        from monarch._core._native.events import decode

        return tuple(decode(_first(self)[0].__core__.recent))

    def report(self) -> str:
        """The full report: culprit and cause first, then the owners that passed the failure on, traceback, last output and a hint."""
        return failure_report(self)

    def _plain(self) -> tuple[Any, ...]:
        traceback, output, chain, recent, during = self.__core__
        cause = None if self.cause is None or self.cause is during else self.cause._plain()
        return (
            (self.mesh_name, self.name, tuple(self.crashed_ranks), self.actor, self.host, self.pid, _fields(self.reason)),
            (traceback, output, chain, recent),
            cause,
            None if during is None else during._plain(),
        )

    @classmethod
    def _from_plain(cls, plain: tuple[Any, ...]) -> MeshFailure:
        (mesh_name, name, ranks, actor, host, pid, reason), (traceback, output, chain, recent), cause, during = plain
        return cls(
            actor=actor,
            reason=ExitReason(*reason),
            mesh_name=mesh_name,
            name=name,
            crashed_ranks=ranks,
            host=host,
            pid=pid,
            cause=None if cause is None else cls._from_plain(cause),
            traceback=traceback,
            output=output,
            chain=chain,
            during=None if during is None else cls._from_plain(during),
            recent=recent,
        )

    def to_wire(self) -> bytes:
        return marshal.dumps(self._plain())

    @classmethod
    def from_wire(cls, data: bytes) -> MeshFailure:
        """The failure of `to_wire`; `ValueError` if the bytes are malformed."""
        try:
            return cls._from_plain(marshal.loads(data))
        except (EOFError, ValueError, TypeError, AttributeError, RecursionError) as e:
            raise ValueError("a malformed failure") from e

    def __reduce__(self) -> tuple[Any, ...]:
        return (failure_from_wire, (self.to_wire(),))

    def __eq__(self, other: object) -> bool:
        return self._plain() == other._plain() if isinstance(other, MeshFailure) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._plain())

    def __repr__(self) -> str:
        first = _first(self)[0]
        text = first_line(cause(first.reason, host=first.host, mesh=first.name))[0]
        place = where(first.pid, first.host, first.reason.signal)
        return fill("mesh_failure", mesh_name=self.mesh_name, ranks=self.crashed_ranks, display=first.actor, cause=text, where=place)


def failure_from_wire(data: bytes) -> MeshFailure:
    return MeshFailure.from_wire(data)


def cause(reason: ExitReason, *, host: str | None = None, mesh: str | None = None) -> str:
    """The cause of a failure in the words of a report; `host` is the lost host, `mesh` the name of an orphaned mesh."""
    detail = reason.detail or _NO_DETAIL
    if row_of(reason.kind) is None:
        return detail if reason.detail else reason.kind
    signal = 9 if reason.signal is None else reason.signal
    return fill(
        reason.kind, detail=detail, code=reason.code, signal=signal, host=host or "unknown host", mesh=mesh or "<none>", owner=detail
    )


def failure_report(failure: MeshFailure, hint: bool = True) -> str:
    """The text of a failure: it names the actor that failed first, then every level that passed the failure on."""
    first, levels = _first(failure)
    reason = first.reason
    place = where(first.pid, first.host, reason.signal)
    head, rest = first_line(cause(reason, host=first.host, mesh=first.name))
    if reason.kind == "stopped":
        stop, rest = first_line(reason.detail or _NO_DETAIL)
        lines = [fill("actor_stopped", display=first.actor, reason=stop, where=place)]
    else:
        lines = [fill("actor_failed", display=first.actor, cause=head, where=place)]
    lines += ["  " + fill("not_handled", display=display) for display in levels]
    lines += indented(first.__core__.traceback.rstrip("\n").split("\n") if first.__core__.traceback else rest)
    if first.__core__.output:
        lines.append("  last output:")
        lines += indented((line.rstrip("\r\n") for line in first.__core__.output), "    ")
    if first.__core__.during is not None:
        lines.append("  " + fill("while_handling"))
        lines += indented(failure_report(first.__core__.during, hint=False).split("\n"), "    ")
    advice = _advice(first, levels) if hint else None
    if advice:
        lines.append(f"  hint: {advice}")
    return "\n".join(lines)


def _advice(first: MeshFailure, levels: list[str]) -> str | None:
    from monarch._core.errors.table import CRASHED, CRASHES, EXITED, KILLED, NOT_RUN, NOT_RUN_CODES, UNHANDLED_BY_ROOT

    reason = first.reason
    if first.__core__.traceback and "\nhint: " in f"\n{first.__core__.traceback}":
        return None  # the exception has a hint of its own
    if reason.kind == "raised" and not levels and first.actor.startswith("<root>.") and first.actor.count(">.<") == 1:
        return UNHANDLED_BY_ROOT
    if reason.kind == "signal":
        name = signal_name(reason.signal or 0)
        return CRASHED.format(signal=name) if name in CRASHES else KILLED if name == "SIGKILL" else None
    if reason.kind == "exit_code":
        return NOT_RUN if reason.code in NOT_RUN_CODES else EXITED
    return hint_of(reason.kind)


def _first(failure: MeshFailure) -> tuple[MeshFailure, list[str]]:
    """The original failure, and the displays of the owners that did not handle it, nearest first."""
    path = [failure]
    while path[-1].__core__.during is None and path[-1].cause is not None:
        path.append(path[-1].cause)
    levels: list[str] = []
    for step in reversed(path):
        if step is not path[-1] and step.actor != path[-1].actor:
            levels.append(step.actor)
        levels += step.__core__.chain
    return path[-1], list(dict.fromkeys(levels))
