"""Threads that wait for an item of this process itself: of a queue, a result or a pipe, and who has to supply it.

A thread that loads data has the queue in a frame or in an object of a frame, and a program that loads data has the pipe open. Both are
looked for when the stacks are taken: before that a process pays nothing. No code of an object is called.
"""

from __future__ import annotations

import os
import sys

from monarch._core.observe.kernel_places import children, program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

    Stacks = dict[int, list[FrameType]]

# The most frames of a thread that are looked at, the calls between a wait and its innermost frame, and the most suppliers of a wait.
_MOST_FRAMES, _MOST_DEPTH, _MOST_SUPPLIERS = 100, 8, 16


def supplies() -> list[dict[str, Any]]:
    """The waits: the thread, what it waits for, and the threads and programs that have to act first."""
    stacks: Stacks = {}
    for ident, innermost in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
        frames: list[FrameType] = []
        frame: FrameType | None = innermost
        while frame is not None and len(frames) < _MOST_FRAMES:
            frames.append(frame)
            frame = frame.f_back
        stacks[ident] = frames
    found: list[dict[str, Any]] = []
    codes = _codes()
    for ident, frames in stacks.items():
        for frame in frames[:_MOST_DEPTH]:
            if (kind := codes.get(frame.f_code)) is not None:
                if (wait := _wait(kind, frame, ident, stacks)) is not None:
                    found.append({"thread": ident, **wait})
                break
    return found


def _codes() -> dict[CodeType, str]:
    """The functions that wait, of the modules that are loaded."""
    queues, futures, connection = (sys.modules.get(name) for name in ("queue", "concurrent.futures._base", "multiprocessing.connection"))
    found: dict[CodeType, str] = {}
    if queues is not None:
        found[queues.Queue.get.__code__] = "queue"
    if futures is not None:
        found[futures.Future.result.__code__] = "result"
    if connection is not None:
        found |= {getattr(connection.Connection, name).__code__: "pipe" for name in ("_recv", "_poll")}
    return found


def _wait(kind: str, frame: FrameType, ident: int, stacks: Stacks) -> dict[str, Any] | None:
    one = frame.f_locals.get("self")
    if one is None:
        return None
    if kind == "pipe":
        return {"kind": kind, "threads": [], "programs": _programs_with(one)}
    threads = [other for other, frames in stacks.items() if other != ident and _has(frames, one, frame.f_code)]
    # The results of a pool of processes come from programs.
    programs = [program(pid) for pid in children()[:_MOST_SUPPLIERS]] if kind == "result" and not threads else []
    return {"kind": kind, "threads": threads[:_MOST_SUPPLIERS], "programs": programs}


def _has(frames: list[FrameType], one: Any, waiting: CodeType) -> bool:
    """Whether a thread knows the queue or future, and does not itself wait for it."""
    if any(frame.f_code is waiting and frame.f_locals.get("self") is one for frame in frames):
        return False
    return any(_refers(value, one) for frame in frames for value in list(frame.f_locals.values()))


def _refers(value: Any, one: Any) -> bool:
    """Whether a value of a frame is the object, or has it in a plain attribute, list, tuple or dictionary."""
    return value is one or any(item is one for item in _parts(value))


def _parts(value: Any) -> list[Any]:
    if type(value) in (list, tuple):
        return list(value[:_MOST_SUPPLIERS])
    if type(value) in (dict,):
        return list(value.values())
    try:
        own: Any = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return []
    return list(own.values()) if type(own) in (dict,) else []


def _programs_with(connection: Any) -> list[list[Any]]:
    """The programs below this process that have the pipe of a connection open; all of them where none has, as for a pair of sockets."""
    pids = children()
    try:
        target = os.readlink(f"/proc/self/fd/{connection._handle}")
    except (OSError, AttributeError):
        return []
    having = [pid for pid in pids if _has_open(pid, target)] if target.startswith("pipe:") else pids
    return [program(pid) for pid in having[:_MOST_SUPPLIERS]]


def _has_open(pid: int, target: str) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        return any(os.readlink(f"{folder}/{number}") == target for number in os.listdir(folder))
    except OSError:  # it has ended
        return False
