"""Deadlines: points in time at which the calls of a block end, with everything that they have caused."""

from __future__ import annotations

from time import monotonic

from monarch._core._native import current_deadline, enter_deadline, leave_deadline
from monarch._core.process.current import simulated_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Self


def _now() -> float:
    """The clock of the process, which native code reads too."""
    process = simulated_process()
    return monotonic() if process is None else process.execution.now()


def check_seconds(name: str, seconds: object) -> float:
    """A time limit as a float; an error that names the argument for anything but a finite number that is not negative."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name}={seconds!r}: expected seconds as a number, or None, not {type(seconds).__name__}")
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{name}={seconds!r}: expected finite seconds that are not negative")
    return float(seconds)


class deadline:
    """Ends the calls that begin in a `with` block after some seconds, and what their endpoints do on their behalf.

    The deadline holds for each call, stream, spawn and stop that begins in the block, on any mesh, and travels with them through any number
    of processes. Tasks and coroutines that the block starts inherit it. Of nested deadlines the earlier one holds. At the deadline the
    Futures raise `DeadlineExceeded`. Messages that have not begun are dropped, async endpoints are cancelled at their next `await`, and
    sync endpoints run on. The actors live.

    Args:
        seconds: the time from the begin of the block. None shields the block from outer deadlines.

    Raises:
        TypeError: `seconds` is no number.
        ValueError: `seconds` is negative, infinite or NaN.

    ```python
    from monarch.actor import Actor, DeadlineExceeded, deadline, endpoint, this_host

    class Worker(Actor):
        @endpoint
        async def work(self, seconds: float) -> str:
            import asyncio

            await asyncio.sleep(seconds)
            return "done"

    with this_host().spawn_procs({"gpus": 2}) as procs:
        workers = procs.spawn("workers", Worker)
        with deadline(30):
            assert workers.work.call(0).get().values() == ["done", "done"]
        with deadline(0.2):
            error = workers.work.call(60).exception()
        assert isinstance(error, DeadlineExceeded) and error.missing == [0, 1]
        assert workers.work.call(0).get().values() == ["done", "done"]  # the actors live
    ```
    """

    __slots__ = ("_seconds", "_tokens")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = None if seconds is None else check_seconds("deadline", seconds)
        # A block may be entered again inside itself.
        self._tokens: list[Any] = []

    def __enter__(self) -> Self:
        at = None
        if self._seconds is not None:
            at, outer = _now() + self._seconds, current_deadline()
            at = at if outer is None else min(at, outer)
        self._tokens.append(enter_deadline(at))
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        leave_deadline(self._tokens.pop())


def deadline_left() -> float | None:
    """The time until the deadline of this code.

    Returns:
        Seconds, 0 after the deadline; None without one.

    ```python
    from monarch.actor import deadline, deadline_left

    assert deadline_left() is None
    with deadline(5):
        left = deadline_left()
        assert left is not None and 0 < left <= 5
        with deadline(None):
            assert deadline_left() is None
    ```
    """
    at = current_deadline()
    return None if at is None else max(0.0, at - _now())
