"""Futures: results for which threads and asyncio loops can wait, any number of times.

A future reads a native cell, which the I/O side fills without the GIL. The first observer decodes; all later ones get the same object.
An event loop learns of answers through one descriptor per loop, with one wake-up per batch.
"""

from __future__ import annotations

from _thread import allocate_lock

from monarch._core.call.foreign_names import no_async_for
from monarch._core.shape.generic import Generic

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Sequence
    from typing import Any, ParamSpec, Self, TypeVar
    from weakref import WeakKeyDictionary

    from monarch._core._native import PendingCall
    from monarch._core.call.late_call import Called
    from monarch._core.errors.errors import MonarchError

    R = TypeVar("R")
    P = ParamSpec("P")
else:
    R = None


_settle = allocate_lock()
# The modules whose frames are between the code that waits and the warning that it blocks its loop.
_OWN_MODULES = ("monarch._core.call.future", "monarch._core.call.lazy_future", "monarch._core.call.receive")

# Milliseconds between two checks whether a loop that cannot watch descriptors is closed.
_CLOSED_CHECK = 1000

# The hint of errors about what a future is not.
_OBSERVE = ".get(timeout=...) waits for the result, as `await` does in a coroutine"

# States of a future.
PENDING, VALUE, ERROR = 0, 1, 2


class _Raised:
    """A `MonarchError` that a future has raised. It is built again once no other object refers to the first exception.

    Its traceback leads to the frames of its observers, which have the future and the memory of the operation. A future that led back to it
    would keep them until the cyclic collector runs.
    """

    __slots__ = ("cause", "error", "parts")

    def __init__(self, error: MonarchError) -> None:
        from weakref import ref

        self.error = ref(error)
        self.parts = error.__reduce__()
        self.cause = error.__cause__

    def again(self) -> BaseException:
        from weakref import ref

        with _settle:
            error = self.error()
            if error is None:
                make, arguments = self.parts
                error = make(*arguments)
                error.__cause__ = self.cause
                self.error = ref(error)
        return error


class _Unseen:
    """An error that a future has from the start; `seen` is called before it is raised for the first time."""

    __slots__ = ("error", "seen")

    def __init__(self, error: BaseException, seen: Callable[[], None]) -> None:
        self.error = error
        self.seen = seen


def running_loop() -> Any:
    import sys

    module = sys.modules.get("_asyncio")
    return module._get_running_loop() if module is not None else None


class Wait:
    """The wait for a future: the pending call and the index of the answer in it; None without one. `wait(None)` gives no warning.

    `called` is the target of an endpoint's call, and `rank` the position of the called actor if it is one of several.
    """

    __slots__ = ("call", "called", "done", "index", "rank", "wait")

    def __init__(
        self,
        call: PendingCall | None,
        index: int,
        done: Callable[[], bool],
        wait: Callable[[float | None], bool],
        called: Called | None,
        rank: int | None,
    ) -> None:
        self.call = call
        self.called = called
        self.index = index
        self.done = done
        self.rank = rank
        self.wait = wait


class Future(Generic[R]):
    """The result of an operation of Monarch.

    `get(timeout)` blocks, `await` works on every asyncio loop; both can be repeated, mixed and called from any thread, and give the same
    value or raise the same exception object. A timeout is in seconds, raises `TimeoutError` and cancels nothing.

    ```python
    import asyncio

    from monarch.actor import Actor, endpoint, this_host

    class Worker(Actor):
        @endpoint
        async def work(self) -> int:
            return 7

    async def main() -> None:
        with this_host().spawn_procs({"procs": 1}) as procs:
            future = procs.spawn("worker", Worker).work.call_one()
            assert await future == 7
            assert future.get() == 7  # the same value again

    asyncio.run(main())
    ```
    """

    __slots__ = ("__weakref__", "_called", "_cell", "_decode", "_index", "_rank", "_result", "_state")
    _called: Called | None
    _cell: Any
    _decode: Any
    _index: int
    _rank: int | None
    _result: Any
    _state: int

    def __init__(self) -> None:
        raise TypeError("Future objects are returned by Monarch operations and cannot be constructed directly.")

    @property
    def __core__(self) -> Wait:
        return Wait(self._cell, self._index, self._done, self._wait, self._called, self._rank)

    def _finish(self) -> None:
        """Decodes the answer, which has arrived."""
        cell = self._cell
        if cell is None:
            return
        try:
            result, state = self._decode(cell), VALUE
        except KeyboardInterrupt:
            # The interrupt belongs to the waiting thread and not to the answer: the next observer decodes again.
            raise
        except BaseException as e:
            result, state = e.with_traceback(None), ERROR
        with _settle:
            if self._state == PENDING:
                self._result, self._state = result, state
        # The future does not keep large answers and the call id.
        self._cell = None
        self._decode = _identity

    def _observe(self) -> R:
        if self._state == PENDING:
            self._finish()
        if self._state == ERROR:
            error = self._raised()
            try:
                # Every observation raises the same object: without this its traceback would grow with each observation.
                raise error.with_traceback(None)
            finally:
                # This frame is part of the traceback.
                del error, self
        return self._result

    def _raised(self) -> BaseException:
        """The error of this future."""
        result = self._result
        if type(result) is _Unseen:
            result.seen()
            result = self._result = result.error
        if type(result) is _Raised:
            return result.again()
        from monarch._core.errors.errors import MonarchError

        if isinstance(result, MonarchError):
            self._result = _Raised(result)
        return result

    def _done(self) -> bool:
        cell = self._cell  # another thread may drop the cell
        return self._state != PENDING or cell is None or cell.done(self._index)

    def _wait(self, timeout: float | None) -> bool:
        cell = self._cell
        return cell is None or cell.wait(self._index, timeout)

    def _late(self, timeout: float | None) -> str:
        """The text of a `TimeoutError`. The future of a call has the endpoint and the late ranks."""
        called, cell = self._called, self._cell
        late = "" if called is None or cell is None else called.unanswered(cell, self._rank)
        return f"no result after {timeout} s{late}"

    def get(self, timeout: float | None = None) -> R:
        """Blocks until the result is there.

        Args:
            timeout: seconds; None waits without a limit.

        Returns:
            The result of the operation.

        Raises:
            TimeoutError: the result is not there after `timeout` seconds; the operation goes on, and `get` can be repeated. The text names
                the endpoint of a call and the ranks without an answer.
            ActorError: the called endpoint raised.
            SupervisionError: the called actor has failed or was stopped.

        ```python
        from monarch.actor import this_host

        with this_host().spawn_procs({"procs": 2}) as procs:
            assert procs.initialized.get(timeout=60) is True
        ```
        """
        if timeout is not None:
            check_timeout(timeout)
        if self._state == PENDING and not self._done():
            if running_loop() is not None:
                warn_blocking()
            if not self._wait(timeout):
                raise TimeoutError(self._late(timeout))
        try:
            return self._observe()
        finally:
            # The traceback of an error has this frame.
            del self

    result = get

    def start(self) -> Self:
        """Makes sure that the operation runs, without waiting for it.

        An operation of Monarch runs from its call on, so this does nothing for the Future of a call, a spawn or a stop: `mesh.stop()` alone
        stops. The Future of a function of `returns_future`, which the first reader runs, begins here: on the running event loop, or else
        on a thread.

        Returns:
            This Future.

        ```python
        from monarch.actor import this_host

        procs = this_host().spawn_procs({"procs": 1})
        stopping = procs.stop().start()  # other work here
        stopping.get()
        ```
        """
        return self

    def exception(self, timeout: float | None = None) -> Exception | None:
        """The exception of the operation; waits like `get`.

        Args:
            timeout: seconds; None waits without a limit.

        Returns:
            The exception, or None if the operation has a value.

        Raises:
            TimeoutError: the result is not there after `timeout` seconds.

        ```python
        from monarch.actor import Actor, ActorError, endpoint, this_host

        class Worker(Actor):
            @endpoint
            def fail(self) -> None:
                raise ValueError("no data")

        with this_host().spawn_procs({"procs": 1}) as procs:
            error = procs.spawn("worker", Worker).fail.call_one().exception()
            assert isinstance(error, ActorError) and "no data" in str(error)
        ```
        """
        try:
            self.get(timeout)
        except BaseException as e:
            if self._state == ERROR and e is self._raised():
                return e.with_traceback(None)  # pyright: ignore[reportReturnType]
            raise
        return None

    def __await__(self) -> Generator[Any, None, R]:
        if not self._done():
            loop = running_loop()
            if loop is None:
                raise ValueError("no active event loop: use get()")
            yield from self._arrival(loop)
        elif running_loop() is None:
            raise ValueError("no active event loop: use get()")
        else:
            try:
                return self._observe()
            except BaseException:
                # A coroutine that retries a failing call at once must let `__supervise__` run, which may end the failure.
                yield
                raise
            finally:
                del self
        try:
            return self._observe()
        finally:
            del self

    def _arrival(self, loop: Any) -> asyncio.Future[None]:
        cell = self._cell
        if cell is None:
            future = loop.create_future()
            future.set_result(None)
            return future
        return _bridge(loop).wait_for(loop, cell, self._index)

    def as_asyncio(self) -> asyncio.Future[R]:
        """An asyncio future of the running loop; each call gives one of its own, so cancelling it affects no other reader."""
        loop = running_loop()
        if loop is None:
            raise RuntimeError("as_asyncio needs a running event loop")
        outer: asyncio.Future[R] = loop.create_future()
        if self._done():
            self._transfer(outer)
            return outer
        inner = self._arrival(loop)
        inner.add_done_callback(lambda _: self._transfer(outer))
        outer.add_done_callback(lambda _: inner.cancel() if outer.cancelled() else None)
        return outer

    def _transfer(self, outer: asyncio.Future[R]) -> None:
        if outer.cancelled():
            return
        try:
            outer.set_result(self._observe())
        except StopIteration as e:
            error = RuntimeError("the operation raised StopIteration")
            error.__cause__ = e
            outer.set_exception(error)
        except BaseException as e:
            outer.set_exception(e.with_traceback(None))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> None:
            # A private name may be a slot of an instance without fields.
            raise AttributeError(name if name[:1] == "_" else f"'Future' object has no attribute {name!r}: {_OBSERVE}")

        __aiter__ = no_async_for("a Future", _OBSERVE)

    def __repr__(self) -> str:
        names = {PENDING: "done, not looked at" if self._done() else "pending", VALUE: "value", ERROR: "error"}
        return f"<Future {names[self._state]}>"


class _Operation(Future[Any] if TYPE_CHECKING else Future):
    """The future of an operation of this package."""

    __slots__ = ()

    def __init__(
        self,
        cell: PendingCall | None,
        decode: Callable[[Any], Any],
        index: int = 0,
        result: Any = None,
        state: int = PENDING,
        called: Called | None = None,
        rank: int | None = None,
    ) -> None:
        self._called = called
        self._cell = cell
        self._decode = decode
        self._index = index
        self._rank = rank
        self._result = result
        self._state = state


# The future of an answer, which `decode` makes the result of.
new_future = _Operation


def done_future(value: Any) -> Future[Any]:
    """A future that has its result."""
    return _Operation(None, _identity, 0, value, VALUE)


def failed_future(error: BaseException) -> Future[Any]:
    """A future that raises `error`."""
    return _Operation(None, _identity, 0, error, ERROR)


def unseen_failure(error: BaseException, seen: Callable[[], None]) -> Future[Any]:
    """A future that raises `error`, and calls `seen` before it does so for the first time."""
    return _Operation(None, _identity, 0, _Unseen(error, seen), ERROR)


def _identity(cell: Any) -> Any:
    return cell


def check_timeout(timeout: float) -> None:
    if not 0 <= timeout < float("inf"):
        raise ValueError(f"invalid timeout {timeout}")


def warn_blocking() -> None:
    """Warns that a coroutine blocks its loop. Frames of this package are skipped, so the warning names the function that blocks."""
    import sys
    import warnings

    frame, level = sys._getframe(1), 2  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__") in _OWN_MODULES:
        frame, level = frame.f_back, level + 1
    if str(frame.f_globals.get("__name__")).startswith("monarch."):
        return
    warnings.warn(
        "get() blocks the active event loop of this thread until the result is there: await the Future, or use as_asyncio()",
        UserWarning,
        stacklevel=level,
    )


class _Bridge:
    """Wakes one event loop for all cells that it waits for. The loop holds the bridge, not the reverse."""

    __slots__ = ("__weakref__", "next", "waiting", "watcher")

    def __init__(self, loop: Any) -> None:
        from monarch._core._native import LoopWatcher

        self.watcher = LoopWatcher()
        self.waiting: dict[int, Any] = {}
        self.next = 0
        try:
            loop.add_reader(self.watcher.fileno(), self.wake)
        except NotImplementedError:  # asyncio leaves the method to the loop
            self._wake_by_thread(loop)

    def _wake_by_thread(self, loop: Any) -> None:
        """Reads the descriptor on a thread, for a loop that cannot watch one. The thread ends with the loop."""
        import threading
        from select import poll
        from weakref import ref

        watcher, loop_of, wake = self.watcher, ref(loop), self.finish
        descriptors = poll()
        descriptors.register(watcher.fileno(), 1)

        def follow() -> None:
            while True:
                descriptors.poll(_CLOSED_CHECK)
                running = loop_of()
                if running is None or running.is_closed():
                    return
                tokens = watcher.drain()
                if tokens:
                    try:
                        running.call_soon_threadsafe(wake, tokens)
                    except RuntimeError:  # closed meanwhile
                        return
                del running

        threading.Thread(target=follow, daemon=True, name="monarch-loop").start()

    def wait_for(self, loop: Any, cell: Any, index: int) -> Any:
        future = loop.create_future()
        self.next = token = self.next + 1
        self.waiting[token] = future
        cell.watch(index, self.watcher, token)
        return future

    def wake(self) -> None:
        self.finish(self.watcher.drain())

    def finish(self, tokens: Sequence[int]) -> None:
        waiting = self.waiting
        for token in tokens:
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
