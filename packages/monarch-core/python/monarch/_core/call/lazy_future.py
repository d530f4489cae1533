"""Futures of async functions. The first observer runs the body, once."""

from __future__ import annotations

from _thread import allocate_lock

from monarch._core.call.future import ERROR, PENDING, VALUE, Future, check_timeout, running_loop, warn_blocking
from monarch._core.process.current import current_process, simulated_process, simulated_world

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from _thread import LockType
    from collections.abc import Awaitable, Callable, Generator
    from typing import Any, ParamSpec, Self, TypeVar

    from monarch._core.process.thread_loop import ThreadLoop

    R = TypeVar("R")
    P = ParamSpec("P")
else:
    R = None

# Seconds between two checks for signals. A signal that comes between the interpreter's last check and the system call that waits for a lock
# interrupts nothing, and neither does a signal that another thread takes.
_LOOK_FOR_SIGNALS = 0.1


class WouldBlockRuntime(RuntimeError):
    """`get()` was called inside a coroutine that another `get()` runs: await there instead."""

    __module__ = "monarch.actor"


class _LazyFuture(Future[Any] if TYPE_CHECKING else Future):
    """The future of an async function whose body the first observer runs."""

    __slots__ = ("_body", "_event", "_lock", "_loop", "_task", "_waiters")
    _body: Callable[[], Awaitable[Any]] | None
    _event: Any
    _lock: LockType
    _loop: Any
    _task: asyncio.Task[None] | None
    _waiters: list[tuple[Any, Any]]

    def __init__(self, body: Callable[[], Awaitable[Any]]) -> None:
        self._cell = self._decode = self._result = None
        self._index = 0
        self._state = PENDING
        self._body = body
        self._lock = allocate_lock()
        self._event = None
        self._waiters = []
        # The loop and the task of the body if it was awaited first; the loop itself holds tasks only weakly.
        self._loop = self._task = None

    def _start(self) -> Callable[[], Awaitable[Any]] | None:
        """The body for the first observer, None for all others."""
        import threading

        with self._lock:
            body, self._body = self._body, None
            if body is not None:
                process, world = simulated_world()
                self._event = threading.Event() if world is None else world.new_event(process)
            return body

    def _set(self, result: Any, state: int) -> None:
        with self._lock:
            if self._state != PENDING:
                return
            if state == ERROR and isinstance(result, Exception):
                # The traceback begins again at each observer.
                result.__traceback__ = None
            self._result, self._state = result, state
            waiters, self._waiters = self._waiters, []
            self._loop = self._task = None
        if self._event is not None:
            self._event.set()
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(lambda f=future: f.done() or f.set_result(None))
            except RuntimeError:  # the loop is closed: no task waits there
                continue

    def _done(self) -> bool:
        return self._state != PENDING

    def _finish(self) -> None:
        return

    async def _run(self, body: Callable[[], Awaitable[Any]]) -> None:
        try:
            self._set(await body(), VALUE)
        except BaseException as e:
            # A Ctrl-C affects the thread that it interrupts, and no later reader of the Future.
            self._set(_cancelled() if isinstance(e, KeyboardInterrupt) else e, ERROR)
            if not isinstance(e, Exception):
                raise

    def get(self, timeout: float | None = None) -> Any:
        if timeout is not None:
            check_timeout(timeout)
        if self._state == PENDING:
            self._complete(timeout)
        try:
            return self._observe()
        finally:
            # The traceback of an error has this frame.
            del self

    result = get

    def start(self) -> Self:
        loop = running_loop()
        if loop is not None:
            if self._body is not None:
                self._arrival(loop)
            return self
        body = self._start()
        if body is not None:
            try:
                self._drive_on_thread(body)
            except BaseException as e:  # without a thread for the body, its readers would wait for ever
                self._set(e, ERROR)
        return self

    def _drive_on_thread(self, body: Callable[[], Awaitable[Any]]) -> None:
        process = simulated_process()
        if process is not None:
            process.execution.start_thread(self._drive, body, None)
            return
        import threading

        threading.Thread(target=self._drive, args=(body, None), daemon=True, name="monarch-future").start()

    def _complete(self, timeout: float | None) -> None:
        """Runs the body, or waits until another observer has run it."""
        running = running_loop()
        if running is not None:
            from monarch._core.process.thread_loop import DRIVEN

            if getattr(running, DRIVEN, False):
                raise WouldBlockRuntime("get() inside a coroutine that a get() is driving: await it")
        if running is not None and running is not self._loop:
            warn_blocking()
        body = self._start()
        if body is None:
            if running is not None and running is self._loop:
                raise WouldBlockRuntime("get() on the loop that runs the coroutine it would wait for: await it")
            if not self._wait(timeout):
                raise TimeoutError(f"no result after {timeout} s")
            return
        try:
            if running is None:
                self._drive(body, timeout)
            else:
                self._drive_beside(body, timeout)
        except KeyboardInterrupt:
            self._interrupt()
            raise

    def _drive_beside(self, body: Callable[[], Awaitable[Any]], timeout: float | None) -> None:
        """Runs the body on a thread of its own, because a loop runs in this thread."""
        process = simulated_process()
        if process is not None:
            process.execution.start_thread(self._drive, body, timeout)
            self._event.wait()  # pyright: ignore
            return
        import threading

        running = allocate_lock()
        running.acquire()

        def drive() -> None:
            try:
                self._drive(body, timeout)
            finally:
                running.release()

        threading.Thread(target=drive, daemon=True, name="monarch-future").start()
        # `join()` is not used: it treats a thread as ended when it is interrupted.
        while not running.acquire(timeout=_LOOK_FOR_SIGNALS):
            continue

    def _wait(self, timeout: float | None) -> bool:
        """Waits until another observer has run the body; False after `timeout`."""
        import threading
        from time import monotonic

        if simulated_process() is not None or threading.current_thread() is not threading.main_thread():
            return self._event.wait(timeout)  # pyright: ignore
        end = None if timeout is None else monotonic() + timeout
        while not self._event.wait(_LOOK_FOR_SIGNALS if end is None else min(_LOOK_FOR_SIGNALS, max(0.0, end - monotonic()))):
            if end is not None and monotonic() >= end:
                return False
        return True

    def _interrupt(self) -> None:
        """Interrupts the `get()` that runs the body. The body may not have begun, or may run on a thread of its own."""
        loop, task = self._loop, self._task
        self._set(_cancelled(), ERROR)
        if loop is not None and task is not None:
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:  # the body and its loop have ended
                return

    def _drive(self, body: Callable[[], Awaitable[Any]], timeout: float | None) -> None:
        import asyncio

        async def main() -> None:
            loop = asyncio.get_running_loop()
            task = asyncio.ensure_future(self._run(body))
            with self._lock:
                interrupted = self._state != PENDING
                if not interrupted:
                    self._loop, self._task = loop, task
            if interrupted:
                task.cancel()
            try:
                done, _ = await asyncio.wait((task,), timeout=timeout)
            except asyncio.CancelledError as e:  # Ctrl-C
                await self._cancel(task, e)
                raise
            if not done:
                await self._cancel(task, TimeoutError(f"no result after {timeout} s"))

        try:
            process, world = simulated_world()
            if world is None:
                from monarch._core.process.thread_loop import thread_loop

                self._run_on(thread_loop(), main())
            else:
                world.run_main(process, main())
        except BaseException as e:
            self._set(_cancelled() if isinstance(e, KeyboardInterrupt) else e, ERROR)
            if not isinstance(e, Exception):
                raise

    def _run_on(self, thread: ThreadLoop, main: Any) -> None:
        from contextvars import copy_context

        try:
            thread.runner.run(main, context=copy_context())
        except KeyboardInterrupt:
            # The result is set before the cancellation, so the outcome of the cancelled body is dropped.
            self._set(_cancelled(), ERROR)
            raise
        finally:
            thread.cancel_left()

    async def _cancel(self, task: asyncio.Task[None], outcome: BaseException) -> None:
        """Ends the body; the outcome of the cancelled body is dropped."""
        import asyncio

        self._set(outcome, ERROR)
        task.cancel()
        await asyncio.wait((task,))

    def _arrival(self, loop: Any) -> asyncio.Future[None]:
        body = self._start()
        future = loop.create_future()
        if body is not None:
            # The awaiting task may be cancelled; the body continues for the other observers.
            self._loop = loop
            self._task = loop.create_task(self._run(body))
        with self._lock:
            if self._state == PENDING:
                self._waiters.append((loop, future))
                return future
        future.set_result(None)
        return future


def _cancelled() -> BaseException:
    from asyncio import CancelledError

    return CancelledError()


def returns_future(function: Callable[P, Awaitable[R]]) -> Callable[P, Future[R]]:
    """Makes an async function return a `Future`: calling it only prepares, the first observer runs the body, once.

    `TypeError` for anything but an async function.
    """
    from functools import wraps

    from monarch._core.call.coroutine_function import is_coroutine_function

    if not callable(function) or not is_coroutine_function(function):
        raise TypeError("returns_future requires an async function")

    @wraps(function)
    def prepare(*args: P.args, **kwargs: P.kwargs) -> Future[R]:
        import contextvars

        current_process()
        variables = contextvars.copy_context()
        return _LazyFuture(lambda: _in_context(variables, function, args, kwargs))

    return prepare


def _in_context(variables: Any, function: Any, args: Any, kwargs: Any) -> Any:
    """Runs the body, with the caller's context variables in force at each of its steps."""
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
