"""What can be asked, and what an answer is: what the HTTP application, the commands and the agents' interface need of an engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from monarch.telemetry._sql.coverage import Coverage
from monarch.telemetry._sql.limits import DEFAULT, Limits

# The stage of a `QueryTimeout` where the process that serves does not answer at all.
NO_SERVER = "HTTP"


class Answer(NamedTuple):
    """`table` is a `pyarrow.Table`, with the coverage in the metadata of its schema too."""

    table: Any
    coverage: Coverage


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


# Who asks, in this thread.
ASKER: ContextVar[Asker] = ContextVar("asker")


class Asking(Protocol):
    """Answers statements. Any thread."""

    def ask(self, sql: str, *, timeout: float | None = None, require_all: bool = False, limits: Limits = DEFAULT) -> Answer:
        """`QueryError` and its kinds; `PartialAnswer` with `require_all` where a host is missing. `timeout` is in seconds."""
        ...
