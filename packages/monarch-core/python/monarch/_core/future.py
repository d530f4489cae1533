"""Futures: results that can be waited for by threads and by any asyncio loop, any number of times.

A future looks at a native cell, which the I/O side fills without the GIL. The first observer decodes; all later ones get the same object.
An event loop learns of answers through one descriptor per loop, with one wake-up per batch.
"""

from __future__ import annotations

from _thread import allocate_lock

from monarch._core.generic import Generic
from monarch._core.process import simulated_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    import threading
    from _thread import LockType
    from collections.abc import Awaitable, Callable, Generator
    from typing import Any, ParamSpec, TypeVar
    from typing import cast as _cast
    from weakref import WeakKeyDictionary

    R = TypeVar("R")
    P = ParamSpec("P")
else:
    R = None


class WouldBlockRuntime(RuntimeError):
    """`get()` inside a coroutine that a `get()` is driving: await there instead."""

    __module__ = "monarch.actor"


_settle = allocate_lock()
_own = object()

# States of a future.
_PENDING, _VALUE, _ERROR = 0, 1, 2


def _running_loop() -> Any:
    import sys

    module = sys.modules.get("_asyncio")
    return module._get_running_loop() if module is not None else None


class Future(Generic[R]):
    """The result of an operation of Monarch.

    `get(timeout)` blocks, `await` works on every asyncio loop; both can be repeated, mixed and called from any thread, and give the same
    value or raise the same exception object. A timeout is in seconds, raises `TimeoutError` and cancels nothing.
    """

    __slots__ = ("__weakref__", "_cell", "_decode", "_index", "_result", "_state")
    _cell: Any
    _decode: Any
    _index: int
    _result: Any
    _state: int

    def __init__(self, *, _token: object = None) -> None:
        if _token is not _own:
            raise TypeError("Future objects are returned by Monarch operations and cannot be constructed directly.")

    @classmethod
    def _of(cls, cell: Any, decode: Callable[[Any], Any], index: int = 0) -> Future[Any]:
        self = cls.__new__(cls)
        self._cell = cell
        self._decode = decode
        self._index = index
        self._state = _PENDING
        self._result = None
        return self

    @classmethod
    def _value(cls, value: Any) -> Future[Any]:
        self = cls._of(None, _identity)
        self._result, self._state = value, _VALUE
        return self

    @classmethod
    def _error(cls, error: BaseException) -> Future[Any]:
        self = cls._of(None, _identity)
        self._result, self._state = error, _ERROR
        return self

    def _finish(self) -> None:
        """Decodes the answer, which is there."""
        cell = self._cell
        if cell is None:
            return
        try:
            result, state = self._decode(cell), _VALUE
        except BaseException as e:
            result, state = e, _ERROR
        with _settle:
            if self._state == _PENDING:
                self._result, self._state = result, state
        # Large answers and the slot are not kept for the life of the future.
        self._cell = None
        self._decode = _identity

    def _observe(self) -> R:
        if self._state == _PENDING:
            self._finish()
        if self._state == _ERROR:
            error: BaseException = self._result
            # The same object every time: without this its traceback would grow with each observation.
            raise error.with_traceback(None)
        return self._result

    def _done(self) -> bool:
        cell = self._cell  # another thread may let go of it
        return self._state != _PENDING or cell is None or cell.done(self._index)

    def _wait(self, timeout: float | None) -> bool:
        cell = self._cell
        return cell is None or cell.wait(self._index, timeout)

    def get(self, timeout: float | None = None) -> R:
        """Blocks until the result is there; `TimeoutError` after `timeout` seconds."""
        if timeout is not None:
            _check_timeout(timeout)
        if self._state == _PENDING and not self._done():
            if _running_loop() is not None:
                _warn_blocking()
            if not self._wait(timeout):
                raise TimeoutError(f"no result after {timeout} s")
        return self._observe()

    result = get

    def exception(self, timeout: float | None = None) -> Exception | None:
        """The exception, or None if there is a value; waits like `get`."""
        try:
            self.get(timeout)
        except BaseException as e:
            if self._state == _ERROR and e is self._result:
                return self._result
            raise
        return None

    def __await__(self) -> Generator[Any, None, R]:
        if not self._done():
            loop = _running_loop()
            if loop is None:
                raise ValueError("no active event loop: use get()")
            yield from self._arrival(loop)
        elif _running_loop() is None:
            raise ValueError("no active event loop: use get()")
        else:
            try:
                return self._observe()
            except BaseException:
                # Who calls again at once what fails at once must not keep `__supervise__`, which would change that, from running.
                yield
                raise
        return self._observe()

    def _arrival(self, loop: Any) -> asyncio.Future[None]:
        cell = self._cell
        if cell is None:
            future = loop.create_future()
            future.set_result(None)
            return future
        return _bridge(loop).wait_for(loop, cell, self._index)

    def as_asyncio(self) -> asyncio.Future[R]:
        """An asyncio future of the running loop; each call gives one of its own, so cancelling it concerns nobody else."""
        loop = _running_loop()
        if loop is None:
            raise RuntimeError("as_asyncio needs a running event loop")
        outer: asyncio.Future[R] = loop.create_future()
        if self._done():
            _transfer(self, outer)
            return outer
        inner = self._arrival(loop)
        inner.add_done_callback(lambda _: _transfer(self, outer))
        outer.add_done_callback(lambda _: inner.cancel() if outer.cancelled() else None)
        return outer

    def __repr__(self) -> str:
        names = {_PENDING: "done, not looked at" if self._done() else "pending", _VALUE: "value", _ERROR: "error"}
        return f"<Future {names[self._state]}>"


def _identity(cell: Any) -> Any:
    return cell


def _transfer(source: Future[Any], outer: asyncio.Future[Any]) -> None:
    if outer.cancelled():
        return
    try:
        outer.set_result(source._observe())
    except StopIteration as e:
        error = RuntimeError("the operation raised StopIteration")
        error.__cause__ = e
        outer.set_exception(error)
    except BaseException as e:
        outer.set_exception(e)


def _check_timeout(timeout: float) -> None:
    if not 0 <= timeout < float("inf"):
        raise ValueError(f"invalid timeout {timeout}")


def _warn_blocking() -> None:
    import warnings

    warnings.warn(
        "get() blocks the active event loop of this thread until the result is there: await the Future, or use as_asyncio()",
        UserWarning,
        stacklevel=3,
    )


class _Bridge:
    """Wakes one event loop for all cells it waits for. Does not keep the loop, which keeps it."""

    __slots__ = ("__weakref__", "next", "waiting", "watcher")

    def __init__(self, loop: Any) -> None:
        from monarch._core._native import LoopWatcher

        self.watcher = LoopWatcher()
        self.waiting: dict[int, Any] = {}
        self.next = 0
        loop.add_reader(self.watcher.fileno(), self.wake)

    def wait_for(self, loop: Any, cell: Any, index: int) -> Any:
        future = loop.create_future()
        self.next = token = self.next + 1
        self.waiting[token] = future
        cell.watch(index, self.watcher, token)
        return future

    def wake(self) -> None:
        waiting = self.waiting
        for token in self.watcher.drain():
            future = waiting.pop(token, None)
            if future is not None and not future.done():
                future.set_result(None)


_bridges: WeakKeyDictionary[Any, _Bridge] | None = None


def _bridge(loop: Any) -> _Bridge:
    global _bridges
    if _bridges is None:
        from weakref import WeakKeyDictionary

        _bridges = WeakKeyDictionary()
    bridge = _bridges.get(loop)
    if bridge is None:
        bridge = _bridges[loop] = _Bridge(loop)
    return bridge


def _simulated_event(process: Any) -> Any:
    from monarch._core.simulated import Event

    return Event(process)


class _LazyFuture(Future[R]):
    """The future of an async function that the first observer runs."""

    __slots__ = ("_body", "_event", "_lock", "_loop", "_task", "_waiters")
    _body: Callable[[], Awaitable[Any]] | None
    _event: threading.Event | None
    _lock: LockType
    _loop: Any
    _task: asyncio.Task[None] | None
    _waiters: list[tuple[Any, Any]]

    @classmethod
    def _make(cls, body: Callable[[], Awaitable[Any]]) -> _LazyFuture[Any]:
        self = cls.__new__(cls)
        self._cell = self._decode = self._result = None
        self._index = 0
        self._state = _PENDING
        self._body = body
        self._lock = allocate_lock()
        self._event = None
        self._waiters = []
        # Where the body runs if it was awaited first; the loop itself holds tasks only weakly.
        self._loop = self._task = None
        return self

    def _start(self) -> Callable[[], Awaitable[Any]] | None:
        """The body for the first observer, None for all others."""
        import threading

        with self._lock:
            body, self._body = self._body, None
            if body is not None:
                process = simulated_process()
                self._event = threading.Event() if process is None else _simulated_event(process)
            return body

    def _set(self, result: Any, state: int) -> None:
        with self._lock:
            if self._state != _PENDING:
                return
            self._result, self._state = result, state
            waiters, self._waiters = self._waiters, []
            self._loop = self._task = None
        if self._event is not None:
            self._event.set()
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(lambda f=future: f.done() or f.set_result(None))
            except RuntimeError:  # that loop is closed: nobody waits there
                continue

    def _done(self) -> bool:
        return self._state != _PENDING

    def _finish(self) -> None:
        return

    async def _run(self, body: Callable[[], Awaitable[Any]]) -> None:
        try:
            self._set(await body(), _VALUE)
        except BaseException as e:
            self._set(e, _ERROR)
            if not isinstance(e, Exception):
                raise

    def get(self, timeout: float | None = None) -> R:
        if timeout is not None:
            _check_timeout(timeout)
        if self._state != _PENDING:
            return self._observe()
        running = _running_loop()
        if running is not None and getattr(running, "_monarch_driven_by_get", False):
            raise WouldBlockRuntime("get() inside a coroutine that a get() is driving: await it")
        body = self._start()
        if body is None:
            if running is not None:
                if running is self._loop:
                    raise WouldBlockRuntime("get() on the loop that runs the coroutine it would wait for: await it")
                _warn_blocking()
            if not self._event.wait(timeout):  # pyright: ignore
                raise TimeoutError(f"no result after {timeout} s")
            return self._observe()
        if running is None:
            self._drive(body, timeout)
            return self._observe()
        _warn_blocking()
        process = simulated_process()
        if process is not None:
            process.start_thread(self._drive, body, timeout)
            self._event.wait()  # pyright: ignore
            return self._observe()
        import threading

        helper = threading.Thread(target=self._drive, args=(body, timeout), daemon=True, name="monarch-future")
        helper.start()
        helper.join()
        return self._observe()

    result = get

    def _drive(self, body: Callable[[], Awaitable[Any]], timeout: float | None) -> None:
        import asyncio

        async def main() -> None:
            asyncio.get_running_loop()._monarch_driven_by_get = True  # pyright: ignore
            task = asyncio.ensure_future(self._run(body))
            try:
                done, _ = await asyncio.wait((task,), timeout=timeout)
            except asyncio.CancelledError as e:  # Ctrl-C
                await self._cancel(task, e)
                raise
            if not done:
                await self._cancel(task, TimeoutError(f"no result after {timeout} s"))

        try:
            process = simulated_process()
            if process is None:
                asyncio.run(main())
            else:
                from monarch._core.simulated_loop import run

                run(process, main())
        except BaseException as e:
            self._set(e, _ERROR)
            if not isinstance(e, Exception):
                raise

    async def _cancel(self, task: asyncio.Task[None], outcome: BaseException) -> None:
        """Ends the body; what it makes of that does not count."""
        import asyncio

        self._set(outcome, _ERROR)
        task.cancel()
        await asyncio.wait((task,))

    def _arrival(self, loop: Any) -> asyncio.Future[None]:
        body = self._start()
        future = loop.create_future()
        if body is not None:
            # Who awaits may be cancelled, the body goes on for the others.
            self._loop = loop
            self._task = loop.create_task(self._run(body))
        with self._lock:
            if self._state == _PENDING:
                self._waiters.append((loop, future))
                return future
        future.set_result(None)
        return future


def returns_future(function: Callable[P, Awaitable[R]]) -> Callable[P, Future[R]]:
    """Makes an async function return a `Future`: calling it only prepares, the first observer runs the body, once.

    `TypeError` for anything but an async function.
    """
    from functools import wraps

    from monarch._core.actor import is_coroutine_function

    if not callable(function) or not is_coroutine_function(function):
        raise TypeError("returns_future requires an async function")

    @wraps(function)
    def prepare(*args: P.args, **kwargs: P.kwargs) -> Future[R]:
        import contextvars

        from monarch._core.context import context

        context()
        variables = contextvars.copy_context()
        made = _LazyFuture._make(lambda: _in_context(variables, function, args, kwargs))
        return _cast("Future[R]", made) if TYPE_CHECKING else made

    return prepare


def _in_context(variables: Any, function: Any, args: Any, kwargs: Any) -> Any:
    """The body, with the caller's context variables in force at each of its steps."""
    coroutine = variables.run(lambda: function(*args, **kwargs))
    return _Stepped(variables, coroutine)


class _Stepped:
    __slots__ = ("coroutine", "variables")

    def __init__(self, variables: Any, coroutine: Any) -> None:
        self.variables = variables
        self.coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        run, coroutine = self.variables.run, self.coroutine
        step, value = coroutine.send, None
        while True:
            try:
                yielded = run(step, value)
            except StopIteration as e:
                return e.value
            try:
                value = yield yielded
                step = coroutine.send
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as e:
                step, value = coroutine.throw, e
