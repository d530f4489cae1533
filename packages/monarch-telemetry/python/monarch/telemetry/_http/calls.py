"""One request as its handler sees it, and the threads in which handlers run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from typing import Any, Literal, NamedTuple, TypeVar

from monarch.extension.masking import Masking
from monarch.telemetry._asking import Answer
from monarch.telemetry._http.cursors import Cursors
from monarch.telemetry._http.parts import Parts
from monarch.telemetry._http.problems import Problem
from monarch.telemetry._http.routes import JSON
from monarch.telemetry._sql.limits import DEFAULT, Limits

_T = TypeVar("_T")
# The most concurrent statements of one request: an engine has twice as many turns.
_AT_ONCE = 4


class State(NamedTuple):
    """What requests of one application share."""

    cursors: Cursors
    masking: Masking


class Caller(NamedTuple):
    """Whose request it is. `source` is the address it came from."""

    scope: Literal["none", "read", "admin"]
    source: str

    @property
    def name(self) -> str:
        """The kind of the token: that is all that is known of a user."""
        return "no token" if self.scope == "none" else f"{self.scope} token"


class Call(NamedTuple):
    """A request whose parameters and body have been checked. `base_url` is the server's URL as the client has it."""

    parts: Parts
    state: State
    caller: Caller
    path: Mapping[str, str]
    parameters: Mapping[str, Any]
    body: Any
    accept: str
    base_url: str
    deadline: float

    @property
    def remaining(self) -> float:
        """Seconds until the request has to be answered."""
        return max(self.deadline - time.monotonic(), 0.001)

    def ask(self, sql: str, *, limits: Limits = DEFAULT) -> Answer:
        """An answer of the engine, within the time of the request."""
        return self.parts.engine.ask(sql, timeout=self.remaining, limits=limits)

    def table(self, sql: str) -> Any:
        """The rows of an answer as an Arrow table."""
        return self.ask(sql).table

    def at_once(self, *statements: str) -> list[Any]:
        """The answers to these statements as Arrow tables: no statement waits for the hosts' answers to another one."""
        found: list[Any] = [None] * len(statements)
        left, errors = deque(enumerate(statements)), list[BaseException]()

        def work() -> None:
            try:
                while not errors:
                    place, sql = left.popleft()
                    found[place] = self.table(sql)
            except IndexError:
                return
            except BaseException as error:  # any error is passed to the caller
                errors.append(error)

        name = "monarch telemetry http statement"
        others = min(len(statements), _AT_ONCE) - 1
        # Daemon threads, as the thread of the request is.
        threads = [threading.Thread(target=copy_context().run, args=(work,), name=name, daemon=True) for _ in range(others)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return found

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """The rows of an answer that has few, each a dictionary."""
        return self.ask(sql).table.to_pylist()

    def need_admin(self, what: str) -> None:
        if self.caller.scope != "admin":
            raise Problem.forbidden(f"{what} needs a token of the scope admin")


class Reply(NamedTuple):
    """An answer that is no JSON, or JSON that is encoded already. `content` may be in parts, which are sent as they come."""

    content: bytes | Iterable[bytes]
    media: str = JSON


Handler = Callable[[Call], Any]


class Threads:
    """Runs what blocks in threads, `most` at a time. Used by one event loop.

    The threads are daemons: one that waits for a frozen host does not keep the process from its end.
    """

    def __init__(self, most: int) -> None:
        self._room = asyncio.Semaphore(most)
        self._running: set[threading.Thread] = set()

    async def run(self, work: Callable[[], _T], seconds: float) -> _T:
        """The result of `work`. `Problem` 504 after `seconds`; the thread ends by itself then, and counts until it has."""
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await self._room.acquire()
                return await self._started(work)
        except TimeoutError:
            # The work itself may raise it.
            if not limit.expired():
                raise
            raise Problem.timeout(f"there was no answer within {seconds:g} s") from None

    def _started(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def body() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as raised:  # any error is passed to the caller
                error = raised
            try:
                loop.call_soon_threadsafe(self._finished, thread, future, result, error)
            except RuntimeError:
                pass  # the loop has ended: no caller waits

        thread = threading.Thread(target=body, name="monarch telemetry http call", daemon=True)
        self._running.add(thread)
        try:
            thread.start()
        except BaseException:
            self._running.discard(thread)
            self._room.release()
            raise
        return future

    def _finished(self, thread: threading.Thread, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._running.discard(thread)
        self._room.release()
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):
            future.set_exception(RuntimeError("a handler ended an iteration"))
        else:
            future.set_exception(error)

    @property
    def running(self) -> int:
        return len(self._running)
