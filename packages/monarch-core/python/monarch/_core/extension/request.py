"""Named requests between processes of a job, answered on the extension thread of the receiver."""

from __future__ import annotations

from contextlib import suppress

from monarch._core._native import thread_limit
from monarch._core._native.protocol import ERROR, FAILED, FIRST_ERROR, OK, PROC_ENDED
from monarch._core.call.future import Future, new_future
from monarch._core.config.entry_points import BrokenEntry, load_entry
from monarch._core.errors.extension import RequestError
from monarch._core.errors.text import fill
from monarch._core.extension.ids import ProcId
from monarch._core.extension.membership import end_of
from monarch._core.extension.process_check import UNKNOWN, check_exists, checked_id
from monarch._core.extension.thread import extension_thread, report_raised
from monarch._core.pickle.remote_exception import raised_text
from monarch._core.process.current import current_process, refuse_in_child
from monarch._core.process.forked_child import is_child
from monarch._core.process.process import NAMED
from monarch._core.process.request_fields import MalformedRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from monarch._core._native import PendingCall
    from monarch._core.process.process import LocalProcess

    Handler: TypeAlias = Callable[["Request"], bytes | None]

GROUP = "monarch.requests"
# The longest name in bytes: its length is sent in one byte.
_LONGEST = 255


class _Answer:
    """The answer to a request, which is sent once. A request that nothing refers to any more fails."""

    __slots__ = ("_name", "_proc", "_process", "_slot", "is_deferred", "is_sent")

    def __init__(self, process: LocalProcess, proc: int, slot: int, name: str) -> None:
        self._process = process
        self._proc = proc
        self._slot = slot
        self._name = name
        self.is_deferred = self.is_sent = False

    def send(self, status: int, body: bytes) -> None:
        if not isinstance(body, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"request {self._name!r} answered with {type(body).__name__}: expected bytes")
        if not self.is_sent:
            self.is_sent = True
            self._process.native.reply(self._proc, self._slot, 0, status, bytes(body))

    def refuse(self, why: str) -> None:
        """Fails the request because there is no handler."""
        self.send(FAILED, why.encode())

    def __del__(self) -> None:
        # No code can answer the request any more: the sender would wait for ever.
        if not self.is_sent and not is_child():
            with suppress(Exception):  # the interpreter ends
                self.send(ERROR, b"its handler has dropped it without an answer")


class Request:
    """A request that this process has received.

    `proc` is the sender, `body` its bytes. A handler returns the answer, or None after `defer`.
    """

    __slots__ = ("__core__", "body", "name", "proc")

    def __init__(self, process: LocalProcess, sender: int, slot: int, name: str, body: bytes) -> None:
        self.proc = ProcId(sender)
        self.name = name
        self.body = body
        self.__core__ = _Answer(process, sender, slot, name)

    def defer(self) -> None:
        """The answer comes later, by `answer` or `fail` from any thread; the handler's result is ignored."""
        self.__core__.is_deferred = True

    def answer(self, body: bytes = b"") -> None:
        """Completes the future of the sender; an answer after the first is dropped."""
        self.__core__.send(OK, body)

    def fail(self, body: bytes) -> None:
        """Fails the future of the sender with a `RequestError` that has this `body`; for errors with a meaning between two wheels."""
        self.__core__.send(ERROR, body)


_handlers: dict[str, Handler] = {}
# The handlers of this package, by request name, with their modules.
_OWN = {
    "monarch.handle": "handle_bytes",
    "monarch.service": "host_services",
    "monarch.service.serve": "served_jobs",
    "monarch.settings": "proc_settings",
    "monarch.state": "proc_state",
}


def serve(name: str, handler: Handler) -> None:
    """Answers requests of this name in this process from now on, instead of the entry point of that name.

    `RuntimeError` in a forked child, which receives no requests.
    """
    _label(name)
    if not callable(handler):
        raise TypeError(f"serve({name!r}): expected a function that takes a request, not {handler!r}")
    refuse_in_child()
    _handlers[name] = handler


def ask(proc: ProcId | int, name: str, body: bytes = b"") -> Future[bytes]:
    """Sends a request to a process of the job; the future has the answer.

    The future raises `RequestError` if the handler failed, if there is none, if the process has ended (`.end`), or if no process of that
    identity is known: to this process by a handle, a message or `reach`, or to the agent of its host.
    """
    label = _label(name)
    proc = checked_id(proc, f"ask(..., {name!r})")
    if not isinstance(body, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"ask({proc}, {name!r}): the body is bytes, not {type(body).__name__}")
    process = current_process()
    call = process.native.cell(FIRST_ERROR, 1, [proc])
    if check_exists(process, call, proc):
        process.native.request(proc, NAMED, bytes((len(label),)) + label + body, call.slot)
    return new_future(call, lambda c: _answer(c, proc, name))


def _label(name: str) -> bytes:
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"request name {name!r}: expected a str, not {type(name).__name__}")
    label = name.encode()
    if not 0 < len(label) <= _LONGEST:
        raise ValueError(f"request name {name!r}: expected 1 to {_LONGEST} bytes, not {len(label)}")
    return label


def _answer(call: PendingCall, proc: ProcId, name: str) -> bytes:
    error = call.error()
    if error is None:
        result = call.result(0)
        assert result is not None
        return bytes(result.raw())
    call.set_retrieved()
    raw = bytes(error.raw())
    if error.status == ERROR:
        raise RequestError(fill("request_failed", name=name, proc=proc, why=_text(raw)), raw)
    if error.status == FAILED and raw == UNKNOWN:
        raise RequestError(fill("proc_unknown", what=f"request {name} to", proc=proc), b"", code="proc_unknown")
    if error.status == PROC_ENDED:
        end = end_of(proc)
        why = "it has ended" if end is None else end.describe()
        raise RequestError(fill("request_proc_ended", name=name, proc=proc, why=why), b"", end, code="request_proc_ended")
    raise RequestError(fill("request_unhandled", name=name, proc=proc, why=_text(raw)), b"", code="request_unhandled")


def _text(raw: bytes) -> str:
    text = raw.decode(errors="replace")
    # The text of an exception may have several lines.
    return text.replace("\n", "\n  ") if "".join(text.split()).isprintable() else f"{len(raw)} bytes"


def received(process: LocalProcess, sender: int, slot: int, body: bytes) -> None:
    """Handles a received request. Called on the housekeeping thread, which does not wait."""
    if not body or len(body) <= body[0]:
        raise MalformedRequest
    end = 1 + body[0]
    request = Request(process, sender, slot, body[1:end].decode(errors="replace"), body[end:])
    try:
        extension_thread().run(lambda: _handle(request))
    except (RuntimeError, MemoryError, OSError) as e:  # the sender would wait for ever
        request.fail(f"no thread can be started for it: {e}{thread_limit()}".encode(errors="backslashreplace"))


def _handle(request: Request) -> None:
    try:
        handler = _handlers.get(request.name) or _found(request)
        if handler is None:
            return
        answer = handler(request)
        if request.__core__.is_deferred and answer is None:
            return
        if request.__core__.is_deferred:
            raise TypeError(f"the handler deferred the answer, and returned {type(answer).__name__}")
        if not isinstance(answer, bytes | bytearray | memoryview):
            raise TypeError(f"the handler returned {type(answer).__name__}, not bytes")
        request.answer(bytes(answer))
    except BaseException as e:  # also `SystemExit`: the sender would wait for ever
        # This comes first, since the log may have no room.
        request.fail(raised_text(e).encode(errors="backslashreplace"))
        report_raised(f"the handler of requests {request.name!r}", e)


def _found(request: Request) -> Handler | None:
    """The handler of an entry point; answers the request if there is none."""
    if request.name in _OWN:
        from importlib import import_module

        own: Handler = import_module(f"monarch._core.extension.{_OWN[request.name]}").handle
        _handlers[request.name] = own
        return own
    found = load_entry(GROUP, request.name)
    if found is None:
        request.__core__.refuse("no wheel that is installed there has a handler of this name")
        return None
    if isinstance(found, BrokenEntry):
        request.__core__.refuse(found.describe())
        return None
    handler: Handler = found.value
    _handlers[request.name] = handler
    return handler
