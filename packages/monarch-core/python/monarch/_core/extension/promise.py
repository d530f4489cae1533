"""Futures that code outside core completes."""

from __future__ import annotations

from _thread import allocate_lock

from monarch._core._native.protocol import CLOSED, FIRST_ERROR, OK
from monarch._core.call.future import Future, new_future
from monarch._core.errors.extension import PromiseDropped, PromiseFailed
from monarch._core.errors.text import fill
from monarch._core.process.current import current_process
from monarch._core.shape.generic import Generic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, TypeVar

    from monarch._core._native import PendingCall

    T = TypeVar("T")
else:
    T = None


_lock = allocate_lock()


class Promise(Generic[T]):
    """The writing end of a `Future`: set once, from any thread. Made by `promise`.

    Any number of readers may wait for `future`, await it and pass it on. A promise that is dropped before it is set fails its future with
    `PromiseDropped`.
    """

    __slots__ = ("__weakref__", "_call", "_native", "_outcome", "future", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._call = current_process().native.cell(FIRST_ERROR, 1)
        # Both lists are shared with the future, which does not refer to the promise.
        outcome: list[tuple[Any, BaseException | None]] = []
        native: list[Callable[[bytes], Any]] = []
        self._outcome = outcome
        # The decoder of native results, once native code has the promise.
        self._native = native
        self.future: Future[T] = new_future(self._call, lambda call: _result(outcome) if outcome else _native_result(name, native[0], call))

    def set_result(self, value: T) -> None:
        """Completes the future with a value; `RuntimeError` if the promise was set before."""
        self._set(value, None)

    def set_exception(self, error: BaseException) -> None:
        """Completes the future with an error, which its readers raise; `RuntimeError` if the promise was set before."""
        if not isinstance(error, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"promise {self.name}: set_exception({error!r}): expected an exception, not {type(error).__name__}")
        self._set(None, error)

    def set_from(self, function: Callable[[], T]) -> None:
        """Completes the future with the function's result or exception. The first reader of the future runs the function, once."""
        if not callable(function):  # pyright: ignore[reportUnnecessaryComparison]
            raise TypeError(f"promise {self.name}: set_from({function!r}): expected a function, not {type(function).__name__}")
        self._set(_Later(function), None)

    def is_set(self) -> bool:
        """Whether the promise was set."""
        return self._call.done(0)

    def native_handle(self, decode: Callable[[bytes], T] | None = None) -> object:
        """Hands the promise to native code, which sets it from any thread without the GIL, with bytes or with the text of an error.

        The capsule has the table of docs/extending-calls.md. `decode` converts the bytes to the value when the future is first read;
        else the bytes are the value. From now on `set_result` and `set_exception` raise `RuntimeError`, as does a second call.
        """
        from monarch._core._native import native_promise

        with _lock:
            self._check_open()
            self._native.append(decode or _as_they_are)
        return native_promise(self._call)

    def _check_open(self) -> None:
        if self._native:
            raise RuntimeError(f"promise {self.name} belongs to native code, which sets it")
        if self._outcome:
            raise RuntimeError(f"promise {self.name} is set already")

    def _set(self, value: Any, error: BaseException | None) -> None:
        with _lock:
            self._check_open()
            self._outcome.append((value, error))
        _complete(self._call)

    def __del__(self) -> None:
        outcome = getattr(self, "_outcome", None)
        if outcome is None or outcome or self._native:  # the promise is incomplete, is set, or belongs to native code
            return
        try:
            outcome.append((None, PromiseDropped(fill("promise_dropped", name=self.name))))
        except ImportError:  # the interpreter ends, and no code reads the future
            return
        _complete(self._call)

    def __reduce__(self) -> NoReturn:
        # Dropping an unset copy would fail the future.
        raise TypeError(f"promise {self.name} cannot be copied or pickled: send its value, by a port for example")

    def __repr__(self) -> str:
        return f"<Promise {self.name}: {'set' if self.is_set() else 'not set'}>"


class _Later:
    """A value that a function computes when it is read."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function


def _complete(call: PendingCall) -> None:
    call.complete(0, OK, b"")


def _result(outcome: list[tuple[Any, BaseException | None]]) -> Any:
    value, error = outcome[0]
    if error is not None:
        raise error
    return value.function() if type(value) is _Later else value


def _as_they_are(body: bytes) -> Any:
    return body


def _native_result(name: str, decode: Callable[[bytes], Any], call: PendingCall) -> Any:
    result = call.result(0)
    assert result is not None
    if result.status == OK:
        return decode(result.raw())
    if result.status == CLOSED:
        raise PromiseDropped(fill("promise_dropped", name=name))
    raise PromiseFailed(fill("promise_failed", name=name, why=result.raw().decode(errors="replace")))


def promise(name: str) -> Promise[Any]:
    """A new promise; `name` names it in errors. The client is started in a script that has none.

    >>> from monarch.extension import promise
    >>> p = promise("the answer")
    >>> p.set_result(42)
    >>> p.future.get()
    42
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"promise({name!r}): expected a str that names what is waited for, not {type(name).__name__}")
    return Promise(name)
