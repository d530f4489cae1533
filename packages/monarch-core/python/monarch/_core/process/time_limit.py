"""Calls of other wheels' code with a time limit."""

from __future__ import annotations

from _thread import allocate_lock, get_ident, start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class TimeLimit(TimeoutError):
    """A function exceeded its time; `stack` is its position at that time, as a traceback."""

    stack: str = ""


def within(limit: float, function: Callable[[], object]) -> None:
    """Runs the function on a thread of its own and waits for it, `limit` seconds at most. Raises its exceptions, and `TimeLimit`.

    A function that exceeds the limit continues, and the caller does not wait for it.
    """
    done = allocate_lock()
    done.acquire()
    raised: list[BaseException] = []
    thread: list[int] = []

    def run() -> None:
        thread.append(get_ident())
        try:
            function()
        except BaseException as e:  # also `SystemExit`, because this thread must not end the process
            raised.append(e)
        finally:
            done.release()

    start_new_thread(run, ())
    if not done.acquire(timeout=limit):
        error = TimeLimit(f"not done within {limit:g} s")
        error.stack = _stack(thread)
        raise error
    if raised:
        raise raised[0]


def _stack(thread: list[int]) -> str:
    import sys
    from traceback import format_stack

    frame = sys._current_frames().get(thread[0]) if thread else None  # pyright: ignore[reportPrivateUsage]
    return "" if frame is None else "Stack at that time (most recent call last):\n" + "".join(format_stack(frame)).rstrip("\n")
