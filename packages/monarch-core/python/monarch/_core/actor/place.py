"""The line of code in which an actor is, for the caller of an endpoint that has exceeded its deadline."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from monarch._core.actor.local_actor import LocalActor

# Modules whose frames are not the code of the actor.
_OWN = "monarch."
# Folders of installed packages.
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def place_of(actor: Any, number: int) -> str:
    """`train.py:31 in step`: the innermost line of the user's code; "" if there is none. Called on the housekeeping thread.

    `number`: that of the message in progress among those with a deadline.
    """
    if actor is None:
        return ""
    waiting = None if actor.loop_side is None else _awaited(actor, number)
    return _line(waiting or _frames(sys._current_frames().get(actor.thread)))  # pyright: ignore[reportPrivateUsage]


def _frames(frame: FrameType | None) -> list[FrameType]:
    """The frames of a thread, innermost first."""
    found: list[FrameType] = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _awaited(actor: LocalActor, number: int) -> list[FrameType]:
    """The frames of an async endpoint that waits, innermost first; empty for one that runs now."""
    side = actor.loop_side
    running = [*list(side.concurrent.items()), (side.main, side.current)]
    task = next((t for t, c in running if t is not None and c is not None and c.number == number), None)
    if task is None:
        return []
    return coroutine_frames(task)[::-1]


def coroutine_frames(task: Any) -> list[FrameType]:
    """The frames of a task that waits, outermost first; empty for the task that runs."""
    found: list[FrameType] = []
    coroutine: Any = task.get_coro()
    while coroutine is not None:
        if getattr(coroutine, "cr_running", False):
            return []
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            found.append(frame)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return found


def _line(frames: list[FrameType]) -> str:
    """The innermost line of the user's own modules, else of an installed package. Without any, the endpoint has ended or not begun."""
    library = os.path.dirname(os.__file__)
    found = [frame for frame in frames if not str(frame.f_globals.get("__name__", "")).startswith(_OWN)]
    found = [frame for frame in found if _is_installed(frame) or not frame.f_code.co_filename.startswith((library, "<frozen"))]
    frame = next((frame for frame in found if not _is_installed(frame)), next(iter(found), None))
    if frame is None:
        return ""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def _is_installed(frame: FrameType) -> bool:
    return any(folder in frame.f_code.co_filename for folder in _INSTALLED)
