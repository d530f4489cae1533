"""Errors at run time: exception classes, failures, exit reasons, and all their texts.

Codes, templates and hints are data in `table`; the texts below are made from it. A text names the culprit on its first line;
the other lines are indented by two, with the hint last.
"""

# Reports look into failures, which are theirs.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from monarch._core._native.events import Event
    from monarch._core.errors.table import ERROR_TABLE as ERROR_TABLE
    from monarch._core.errors.table import ErrorRow


_NO_DETAIL = "(no reason provided)"


def __getattr__(name: str) -> Any:
    if name == "ERROR_TABLE":
        from monarch._core.errors.table import ERROR_TABLE

        return ERROR_TABLE
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _row(code: str) -> ErrorRow | None:
    from monarch._core.errors.table import ROWS

    return ROWS.get(code)


def fill(row: str, /, **fields: object) -> str:
    """The template of a row with its fields."""
    from monarch._core.errors.table import ROWS

    return ROWS[row].template.format(**fields)


def _hint(code: str) -> str | None:
    row = _row(code)
    if row is None:
        from monarch._core.errors.known_rows import row_of

        row = row_of(code)
    return row.hint if row else None


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

    def _fields(self) -> tuple[Any, ...]:
        return (self.kind, self.code, self.signal, self.core_dumped, self.detail)

    def to_wire(self) -> bytes:
        return marshal.dumps(self._fields())

    @classmethod
    def from_wire(cls, data: bytes) -> ExitReason:
        return cls(*marshal.loads(data))

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, ExitReason) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        names = ("code", "signal", "core_dumped", "detail")
        return f"ExitReason({self.kind!r}{''.join(f', {name}={getattr(self, name)!r}' for name in names if getattr(self, name))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (ExitReason, self._fields())


class MeshFailure:
    """The failure of one rank of a mesh, as `__supervise__` and the fault hook receive it.

    `mesh_name` is the unique name (`<none>` if there is no mesh), `name` the one given to `spawn`, `actor` the display name, `cause` the
    failure of an owned actor that caused this one. `report()` is the full text.
    """

    __slots__ = (
        "_chain",
        "_during",
        "_output",
        "_recent",
        "_traceback",
        "actor",
        "cause",
        "crashed_ranks",
        "host",
        "mesh_name",
        "name",
        "pid",
        "reason",
    )
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
        self._traceback = None if traceback is None else _exact(traceback)
        self._output = [_exact(line) for line in output]
        self._chain = [_exact(display) for display in chain]
        self._during, self._recent = during, recent

    @property
    def recent_events(self) -> tuple[Event, ...]:
        """The last events of the process whose end was the cause, oldest first; empty if none were recorded."""
        from monarch._core._native.events import decode

        return tuple(decode(_first(self)[0]._recent))

    def report(self) -> str:
        """The full report: culprit and cause first, then the owners that passed the failure on, traceback, last output and a hint."""
        return failure_report(self)

    def _plain(self) -> tuple[Any, ...]:
        during = self._during
        cause = None if self.cause is None or self.cause is during else self.cause._plain()
        return (
            (self.mesh_name, self.name, tuple(self.crashed_ranks), self.actor, self.host, self.pid, self.reason._fields()),
            (self._traceback, tuple(self._output), tuple(self._chain), self._recent),
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
        return cls._from_plain(marshal.loads(data))

    def __reduce__(self) -> tuple[Any, ...]:
        return (_failure_from_wire, (self.to_wire(),))

    def __eq__(self, other: object) -> bool:
        return self._plain() == other._plain() if isinstance(other, MeshFailure) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._plain())

    def __repr__(self) -> str:
        first = _first(self)[0]
        text = _split(cause(first.reason, host=first.host, mesh=first.name))[0]
        place = where(first.pid, first.host, first.reason.signal)
        return fill("mesh_failure", mesh_name=self.mesh_name, ranks=self.crashed_ranks, display=first.actor, cause=text, where=place)


def _failure_from_wire(data: bytes) -> MeshFailure:
    return MeshFailure.from_wire(data)


# Texts ------------------------------------------------------------------------------------------------------------------------


def where(pid: int | None, host: str | None, signal: int | None = None) -> str:
    """`(pid 12 on host)`, followed by the name of the signal if there is one."""
    place = f"(pid {'unknown' if pid is None else pid} on {host or 'unknown host'})"
    name = _signal_name(signal) if signal else ""
    return f"{place} {name}" if name else place


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def cause(reason: ExitReason, *, host: str | None = None, mesh: str | None = None) -> str:
    """The cause of a failure in the words of a report; `host` is the lost host, `mesh` the name of an orphaned mesh."""
    detail = reason.detail or _NO_DETAIL
    if _row(reason.kind) is None:
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
    head, rest = _split(cause(reason, host=first.host, mesh=first.name))
    if reason.kind == "stopped":
        stop, rest = _split(reason.detail or _NO_DETAIL)
        lines = [status_stopped(first.actor, stop, place)]
    else:
        lines = [fill("actor_failed", display=first.actor, cause=head, where=place)]
    lines += ["  " + fill("not_handled", display=display) for display in levels]
    lines += _indent(first._traceback.rstrip("\n").split("\n") if first._traceback else rest)
    if first._output:
        lines.append("  last output:")
        lines += _indent((line.rstrip("\r\n") for line in first._output), "    ")
    if first._during is not None:
        lines.append("  " + fill("while_handling"))
        lines += _indent(failure_report(first._during, hint=False).split("\n"), "    ")
    advice = _advice(first, levels) if hint else None
    if advice:
        lines.append(f"  hint: {advice}")
    return "\n".join(lines)


def _advice(first: MeshFailure, levels: list[str]) -> str | None:
    from monarch._core.errors.table import CRASHED, CRASHES, EXITED, KILLED, NOT_RUN, NOT_RUN_CODES, UNHANDLED_BY_ROOT

    reason = first.reason
    if first._traceback and "\nhint: " in f"\n{first._traceback}":
        return None  # the exception has a hint of its own
    if reason.kind == "raised" and not levels and first.actor.startswith("<root>.") and first.actor.count(">.<") == 1:
        return UNHANDLED_BY_ROOT
    if reason.kind == "signal":
        name = _signal_name(reason.signal or 0)
        return CRASHED.format(signal=name) if name in CRASHES else KILLED if name == "SIGKILL" else None
    if reason.kind == "exit_code":
        return NOT_RUN if reason.code in NOT_RUN_CODES else EXITED
    return _hint(reason.kind)


def _first(failure: MeshFailure) -> tuple[MeshFailure, list[str]]:
    """The original failure, and the displays of the owners that did not handle it, nearest first."""
    path = [failure]
    while path[-1]._during is None and path[-1].cause is not None:
        path.append(path[-1].cause)
    levels: list[str] = []
    for step in reversed(path):
        if step is not path[-1] and step.actor != path[-1].actor:
            levels.append(step.actor)
        levels += step._chain
    return path[-1], list(dict.fromkeys(levels))


def _split(text: str) -> tuple[str, list[str]]:
    head, *rest = text.split("\n")
    return head, rest


def _indent(lines: Iterable[str], by: str = "  ") -> list[str]:
    return [by + line if line else line for line in lines]


def status_stopped(display: str, reason: str, where: str) -> str:
    return fill("actor_stopped", display=display, reason=reason, where=where)


def call_failed(mesh: str, method: str, report: str) -> str:
    return fill("call_failed", endpoint=f"{mesh}.{method}()", message=report)


def spawn_failed(mesh: str, cause: str, where: str) -> str:
    return fill("spawn_failed", mesh=mesh, cause=cause, where=where)


def procs_not_started(n: int, procs: Sequence[tuple[str, str, Sequence[str]]]) -> str:
    """The text of procs that did not start. `n` is the requested number, `procs` has command, exit and last output of each failed proc."""
    lines = [fill("procs_not_started", k=len(procs), n=n)]
    for command, ended, output in procs:
        lines.append(f"  {command}: {ended}")
        if output:
            lines.append("    last output:")
            lines += _indent((line.rstrip("\r\n") for line in output), "      ")
    return "\n".join([*lines, f"  hint: {_hint('procs_not_started')}"])


def gave_up(name: str, rank: int, count: int, within: float, report: str) -> str:
    """The text for a supervisor that gives up restarting. `report` is that of the last failure."""
    head = fill("gave_up", name=name, rank=rank, count=count, within=f"{within:g}")
    return "\n".join([head, *_indent(report.split("\n"))])


def undeliverable(target: str, sender: str, dest: str, why: str) -> str:
    """The text of an undelivered message. `target` is `{mesh}.{method}()` or its substitute; the root client is shown as `client`."""
    return fill("undeliverable", target=target, sender=_client(sender), dest=_client(dest), why=why)


def _client(display: str) -> str:
    return "client" if display == "<root>" else display


def attach_failed(n: int, hosts: Mapping[str, str]) -> str:
    """The text of a failed attachment. `n` is the requested number, `hosts` gives the reason for each address that did not join."""
    return fill("attach_failed", k=len(hosts), n=n, hosts="; ".join(f"{address}: {why}" for address, why in hosts.items()))


def version_mismatch(ours: str, theirs: str, peer: str) -> str:
    return fill("version_mismatch", ours=ours, theirs=theirs, peer=peer)


def authentication_failed(peer: str, why: str = "refused") -> str:
    return fill("authentication_failed", peer=peer, why=why)


def controller_failed(name: str, failure: str) -> str:
    return fill("controller_failed", name=name, failure=failure)


def unhandled_at_root(host: str, pid: int, time: str) -> str:
    return fill("unhandled_at_root", host=host, pid=pid, time=time)


def fault_hook_failed(error: BaseException) -> str:
    """The text after the report if the hook did not end the program on purpose."""
    from monarch._core.pickle.remote_exception import exception_text, format_exception, type_name

    text = fill("fault_hook_failed", error=f"{type_name(type(error))}: {exception_text(error)}")
    return "\n".join([text, *_indent(format_exception(error).split("\n"))])


def actor_call_failed(mesh: str, method: str, base: bool = False) -> str:
    """The message of an `ActorError`; `base`: the raised exception is not an `Exception`."""
    return f"Actor call {mesh}.{method} failed{' with BaseException' if base else ''}."


def reload_failed(failed: Sequence[tuple[str, str, int, str, Any]]) -> ActorError:
    """The error of a failed reload. `failed` has host, proc, pid, module and packed exception of each; the first is raised, the others
    follow its traceback.
    """
    host, proc, pid, module, packed = failed[0]
    kind, text, formatted, data = packed
    listed = {(module, formatted)}
    lines = [formatted.rstrip("\n")]
    for other_host, other_proc, other_pid, other_module, other in failed[1:]:
        lines.append(f"{fill('reload_failed', module=other_module)} {other[0]}: {other[1]} at {other_proc} {where(other_pid, other_host)}")
        if (other_module, other[2]) not in listed:
            listed.add((other_module, other[2]))
            lines += _indent(other[2].rstrip("\n").split("\n"))
    error = ActorError._received((kind, text, "\n".join(lines), data), fill("reload_failed", module=module), proc, pid, host)
    error.code, error.hint = "reload_failed", _hint("reload_failed")
    return error


# Classes ----------------------------------------------------------------------------------------------------------------------


class MonarchError(Exception):
    """Base of Monarch's errors at run time, with a stable `code` and a `hint` or None."""

    __module__ = "monarch.actor"
    _default_code = "error"

    def __init__(self, message: str = "", *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = self._default_code if code is None else code
        self.hint = _hint(self.code) if hint is None else hint

    def _state(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def _restore(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self)
        # Classes of this package are pickled by name, so that the public module need not be loaded.
        return (_rebuild, (kind.__name__ if kind.__module__ == "monarch.actor" else kind, self.args, self._state()))


# `Py_TPFLAGS_HEAPTYPE`: the flag of classes that are not built in.
_HEAP_TYPE = 1 << 9


def _rebuild(kind: str | type[MonarchError], args: tuple[Any, ...], state: dict[str, Any]) -> MonarchError:
    found: type[MonarchError] = globals()[kind] if isinstance(kind, str) else kind
    try:
        error = found.__new__(found, *args)
    except TypeError:
        # Of several built-in bases, such as `RuntimeError` and `TimeoutError`, the base with the layout of the class creates its objects.
        base: type[Any] = found
        while base.__flags__ & _HEAP_TYPE:
            base = base.__base__ or object
        error = base.__new__(found, *args)
    error.args = args
    error._restore(state)
    return error


class ActorError(MonarchError):
    """An endpoint raised an `Exception`, and its actor is alive.

    `exception` is the original if it can be pickled, else an `Exception` of the same text; `exception_type` its qualified name and
    `exception_formatted` its traceback with causes and contexts, made in the process that raised it.
    """

    __module__ = "monarch.actor"
    _default_code = "actor_error"

    def __init__(self, exception: BaseException, message: str = "A remote actor call has failed.") -> None:
        from monarch._core.pickle.remote_exception import describe

        super().__init__(message)
        self.message = message
        self.exception = exception
        self.exception_type, self._text, self.exception_formatted = describe(exception)
        self._place = ""

    @classmethod
    def _received(
        cls,
        packed: tuple[str, str, str, bytes | None],
        message: str,
        display: str,
        pid: int | None,
        host: str | None,
    ) -> ActorError:
        """The exception that a caller raises. `packed` is the result of `pack_exception` in the process of the actor `display`."""
        from monarch._core.pickle.remote_exception import unpack_exception

        error = cls.__new__(cls)
        MonarchError.__init__(error, message)
        error.message = message
        error.exception_type, error._text, error.exception_formatted, _ = packed
        error.exception = unpack_exception(packed)
        error._place = f"at {display} {where(pid, host)}"
        return error

    def _state(self) -> dict[str, Any]:
        from monarch._core.pickle.remote_exception import pack_exception

        state = super()._state()
        state["exception"] = pack_exception(self.exception)
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        from monarch._core.pickle.remote_exception import unpack_exception

        super()._restore(state)
        self.exception = unpack_exception(state["exception"])

    def __str__(self) -> str:
        text = self._text.split("\n", 1)[0]
        error = f"{self.exception_type}: {text}" if text else self.exception_type
        if not self._place:
            return f"{self.message} {error}\n {self.exception_formatted}"
        return f"{fill('actor_error', message=self.message, error=error, place=self._place)}\n {self.exception_formatted}"


class SupervisionError(MonarchError, RuntimeError):
    """The called actors have failed or were stopped; `failure` has the details, `endpoint` is the call, like `work.step()`.

    ```python
    from monarch.actor import Actor, SupervisionError, endpoint, this_host

    class Worker(Actor):
        @endpoint
        def work(self) -> None: ...

    with this_host().spawn_procs({"procs": 1}) as procs:
        workers = procs.spawn("workers", Worker)
        workers.stop("no work is left").get()
        error = workers.work.call().exception()
        assert isinstance(error, SupervisionError) and error.failure.reason.kind == "stopped"
    ```
    """

    __module__ = "monarch.actor"
    _default_code = "actor_failed"

    def __init__(
        self,
        message: str,
        endpoint: str | None = None,
        *,
        failure: MeshFailure | None = None,
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        if code is None and failure is not None and self._default_code == "actor_failed":
            code = failure.reason.kind
        super().__init__(message, code=code, hint=hint)
        self.message = message
        self.endpoint = endpoint
        self.failure = failure

    def __str__(self) -> str:
        return self.message if self.endpoint is None else fill("call_failed", endpoint=self.endpoint, message=self.message)


class SpawnError(SupervisionError):
    """A process or an actor could not be started on the requested host or proc."""

    __module__ = "monarch.actor"
    _default_code = "spawn_failed"


class DeliveryError(SupervisionError):
    """A call could not be delivered; its sender is unharmed."""

    __module__ = "monarch.actor"
    _default_code = "undeliverable"


class AttachError(MonarchError, RuntimeError):
    """Hosts could not be attached; `hosts` gives the reason for each address."""

    __module__ = "monarch.actor"
    _default_code = "attach_failed"

    def __init__(self, message: str, hosts: Mapping[str, str] | None = None, *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, code=code, hint=hint)
        self.hosts = dict(hosts or {})


class VersionMismatch(AttachError):
    """The two sides have different wire versions or minor versions of Python."""

    __module__ = "monarch.actor"
    _default_code = "version_mismatch"


class AuthenticationError(AttachError):
    """A peer did not prove that it belongs to the job, or refused this process's proof."""

    __module__ = "monarch.actor"
    _default_code = "authentication_failed"
