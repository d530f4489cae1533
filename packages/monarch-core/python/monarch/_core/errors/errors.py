"""The exceptions of Monarch at run time, with their codes and hints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch._core.errors.text import fill, hint_of, indented, where

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monarch._core.errors.failure import MeshFailure


class MonarchError(Exception):
    """Base of Monarch's errors at run time, with a stable `code` and a `hint` or None."""

    __module__ = "monarch.actor"
    _default_code = "error"

    def __init__(self, message: str = "", *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = self._default_code if code is None else code
        self.hint = hint_of(self.code) if hint is None else hint

    def _state(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any] | None, /) -> None:
        self.__dict__.update(state or {})

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
    error.__setstate__(state)
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

    def _state(self) -> dict[str, Any]:
        from monarch._core.pickle.remote_exception import pack_exception

        state = super()._state()
        state["exception"] = pack_exception(self.exception)
        return state

    def __setstate__(self, state: dict[str, Any] | None, /) -> None:
        from monarch._core.pickle.remote_exception import unpack_exception

        super().__setstate__(state)
        self.exception = unpack_exception(self.__dict__["exception"])

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


class DeadlineExceeded(MonarchError, TimeoutError):
    """The deadline of a call has passed before all ranks have answered.

    The text has one line for each state of the ranks without an answer. `values` has the answers that came in time, as `PartialValues`;
    `missing` has the other ranks, in the shape of the called mesh.

    ```python
    from monarch.actor import Actor, DeadlineExceeded, deadline, endpoint, this_host

    class Worker(Actor):
        @endpoint
        async def wait(self) -> None:
            import asyncio

            await asyncio.sleep(60)

    with this_host().spawn_procs({"procs": 1}) as procs:
        worker = procs.spawn("worker", Worker)
        with deadline(0.1):
            error = worker.wait.call_one().exception()
        assert isinstance(error, DeadlineExceeded) and error.missing == [0] and len(error.values) == 0
    ```
    """

    __module__ = "monarch.actor"
    _default_code = "deadline_exceeded"

    def __init__(
        self, message: str, *, values: Any = None, missing: Sequence[int] = (), code: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.values = values
        self.missing = list(missing)


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


def received_actor_error(
    packed: tuple[str, str, str, bytes | None], message: str, display: str, pid: int | None, host: str | None
) -> ActorError:
    """The exception that a caller raises. `packed` is the result of `pack_exception` in the process of the actor `display`."""
    kind, text, formatted, _ = packed
    state = {
        "code": "actor_error",
        "hint": hint_of("actor_error"),
        "message": message,
        "exception": packed,
        "exception_type": kind,
        "exception_formatted": formatted,
        "_text": text,
        "_place": f"at {display} {where(pid, host)}",
    }
    error = _rebuild(ActorError, (message,), state)
    assert isinstance(error, ActorError)
    return error


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
            lines += indented(other[2].rstrip("\n").split("\n"))
    error = received_actor_error((kind, text, "\n".join(lines), data), fill("reload_failed", module=module), proc, pid, host)
    error.code, error.hint = "reload_failed", hint_of("reload_failed")
    return error
