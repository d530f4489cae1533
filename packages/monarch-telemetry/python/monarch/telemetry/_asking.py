"""The interface of an engine: queries and answers, as the HTTP application, the commands and the agents' interface use them."""

from __future__ import annotations

import numbers
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from monarch.telemetry._sql.coverage import Coverage
from monarch.telemetry._sql.limits import DEFAULT, Limits

# The stage of a `QueryTimeout` if the server process does not answer at all.
NO_SERVER = "HTTP"
# The most seconds of a query; a query without a limit has that of `DEFAULT`.
MOST_SECONDS = 600.0


class Answer(NamedTuple):
    """`table` is a `pyarrow.Table`, with the coverage in the metadata of its schema too."""

    table: Any
    coverage: Coverage


def checked_timeout(timeout: object, call: str) -> float:
    """The seconds that were given to `call`. `TypeError` for what is no number, `ValueError` for one that is no time of a query."""
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real):
        raise TypeError(f"{call}(timeout={timeout!r}): expected seconds, a number, not {type(timeout).__name__}")
    seconds = float(timeout)
    if not 0 < seconds <= MOST_SECONDS:
        raise ValueError(f"{call}(timeout={timeout!r}): expected seconds greater than 0, and at most {MOST_SECONDS:g}")
    return seconds


def in_words(seconds: float) -> str:
    """A time in an error, with the digits that a reader needs: `2.4 s`, `600 s`, `0.034 s`."""
    return f"{round(seconds, 1 if seconds >= 10 else 2):g} s" if seconds >= 0.1 else f"{seconds:.2g} s"


class Asker:
    """Who waits for answers, and may leave. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[object, Callable[[], object]] = {}
        self.has_left = False

    def leave(self) -> None:
        """No client waits any more: what is being answered is cancelled, and what is asked after this, at once."""
        with self._lock:
            self.has_left = True
            cancels, self._asked = list(self._asked.values()), {}
        for cancel in cancels:
            cancel()

    @contextmanager
    def asks(self, cancel: Callable[[], object]) -> Generator[None]:
        """`cancel` is called where the asker leaves meanwhile, or has left."""
        mine = object()
        with self._lock:
            if not self.has_left:
                self._asked[mine] = cancel
        if self.has_left:
            cancel()
        try:
            yield
        finally:
            with self._lock:
                self._asked.pop(mine, None)


# The client of the question, per thread.
ASKER: ContextVar[Asker] = ContextVar("asker")


class Asking(Protocol):
    """Answers statements. Any thread."""

    def ask(self, sql: str, *, timeout: float | None = None, require_all: bool = False, limits: Limits = DEFAULT) -> Answer:
        """`QueryError` and its kinds; `PartialAnswer` with `require_all` where a host is missing. `timeout` is in seconds."""
        ...
