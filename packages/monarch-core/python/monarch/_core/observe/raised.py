"""The exceptions of this process that no code has seen: of its threads, which the hook of `threading` keeps, and of its tasks."""

from __future__ import annotations

import sys
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Any

# The most exceptions that are kept, and the most characters and calls of one.
_MOST = 8
_MOST_TEXT = 200
_MOST_FRAMES = 16

_Frame = tuple[str, int, str]
of_threads: deque[tuple[str, str, list[_Frame], float]] = deque(maxlen=_MOST)


def install() -> None:
    """Keeps the exceptions that end threads, unless the program has a hook of its own; they are printed as before."""
    import threading

    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _hook


def _hook(args: Any) -> None:
    import threading

    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = "" if args.thread is None else args.thread.name
        # The exception itself would keep the objects of its frames.
        of_threads.append((name, described(args.exc_value), _frames(args.exc_traceback), time.monotonic()))
    threading.__excepthook__(args)


def raised(loops: Iterable[Any]) -> list[dict[str, Any]]:
    """The exceptions of threads, and those of tasks of these event loops that no code has retrieved."""
    found: list[dict[str, Any]] = [
        {"kind": "thread", "name": name, "error": error, "frames": frames, "age": time.monotonic() - at}
        for name, error, frames, at in list(of_threads)
    ]
    tasks = sys.modules.get("asyncio.tasks")
    # The set of all tasks, also of ended ones that the program still has.
    known: Any = getattr(tasks, "_scheduled_tasks", None) or getattr(tasks, "_all_tasks", None)
    of_actors = set(loops)
    for task in list(known or ()):
        if task.get_loop() in of_actors and task.done() and not task.cancelled() and getattr(task, "_log_traceback", False):
            error = task._exception
            found.append({"kind": "task", "name": task.get_name(), "error": described(error), "frames": _frames(error.__traceback__)})
    return found[-_MOST:]


def described(error: BaseException) -> str:
    """The first line of an exception of any class."""
    try:
        return f"{type(error).__name__}: {error}".partition("\n")[0][:_MOST_TEXT]
    except Exception:  # a class of the program
        return type(error).__name__


def _frames(traceback: TracebackType | None) -> list[_Frame]:
    """The calls, innermost first."""
    found: deque[_Frame] = deque(maxlen=_MOST_FRAMES)
    while traceback is not None:
        code = traceback.tb_frame.f_code
        found.appendleft((code.co_filename, traceback.tb_lineno or 0, code.co_qualname))
        # The outermost calls are dropped from the other end.
        traceback = traceback.tb_next
    return list(found)
