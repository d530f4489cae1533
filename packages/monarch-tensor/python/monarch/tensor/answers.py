"""Answers of workers that the program gets as futures, which nothing may ever read."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from monarch.extension import when_done

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.actor import Future


class Answers:
    """Of one controller. Thread-safe."""

    def __init__(self) -> None:
        self._open: dict[int, _Answer] = {}

    def take(self, answer: Future[Any], then: Callable[[Future[Any]], object]) -> None:
        """Runs `then(answer)` once when the answer is there: on the extension thread, or in a `settle` that comes before that."""
        taken = _Answer(answer, then)
        self._open[id(taken)] = taken

        def run(_: object) -> None:
            self._open.pop(id(taken), None)
            taken.run()

        when_done(answer, run)

    def settle(self) -> None:
        """Takes those that are there: the failures that they bring are known to their futures."""
        for taken in list(self._open.values()):
            if taken.is_there():
                taken.run()


class _Answer:
    def __init__(self, answer: Future[Any], then: Callable[[Future[Any]], object]) -> None:
        self._answer = answer
        self._then: Callable[[Future[Any]], object] | None = then
        # A `then` may come to a `settle` itself.
        self._lock = threading.RLock()

    def is_there(self) -> bool:
        try:
            self._answer.exception(0)
        except TimeoutError:
            return False
        return True

    def run(self) -> None:
        """Returns when it has run, also on another thread."""
        with self._lock:
            if self._then is not None:
                then, self._then = self._then, None
                then(self._answer)
