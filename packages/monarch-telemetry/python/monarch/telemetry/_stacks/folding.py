"""Which frames are the framework's, which threads wait for work, and what of a stack is shown.

The calls of the framework that lead to user code are left out. Where user code calls the framework, the first call is shown and those
inside it are left out. A stack without user code is shown whole: then the framework is what is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from monarch.telemetry._stacks.frames import Frame, Thread

# Files of the wheels of the namespace, in any folder of installation.
_WHEELS = r"/monarch/(?:_[a-z_]+|actor|config|extension|job|rdma|fs|remotemount|gather_mount|telemetry|distributed_telemetry)/"
# Calls of the standard library between the start of a thread and its target, and around coroutines.
_STANDARD = r"/(?:asyncio/\w+|concurrent/futures/\w+|threading|selectors|runpy)\.py$|^<frozen [\w.]+>$"
_FRAMEWORK = re.compile(f"{_WHEELS}|{_STANDARD}")
# `python -c` and the interpreters of procs start in a string. Functions of user code may be in one too.
_STARTS = frozenset({("<string>", "<module>")})

# Innermost functions of threads that wait for work: threads of actors and the runtime, of event loops, of pools.
_WAITS = frozenset({"_run_sync", "_first_message", "next_event", "wait_pop", "run", "select", "sleep", "take", "threads", "_worker"})


def is_framework(frame: Frame) -> bool:
    """Whether the call is of this framework, or of the standard library's threads and event loops."""
    return _FRAMEWORK.search(frame.filename) is not None or (frame.filename, frame.name) in _STARTS


def is_native(frame: Frame) -> bool:
    """Whether the call is of compiled code, which py-spy has found in a library."""
    return frame.line == 0 and frame.module is not None


def simple_name(name: str) -> str:
    """The last part of a qualified name. `faulthandler` has only that, so stacks are compared by it."""
    return name.rpartition(".")[2] or name


def waits_for_work(thread: Thread) -> bool:
    """Whether the thread runs no user code and is where the framework waits for something to do."""
    python = [frame for frame in thread.frames if not is_native(frame)]
    if not all(map(is_framework, python)):
        return False
    return not python or simple_name(python[0].name) in _WAITS


def folded(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames that are shown, innermost first."""
    outward = list(reversed(frames))
    ours = [is_framework(frame) for frame in outward]
    if all(one or is_native(frame) for one, frame in zip(ours, outward, strict=True)):
        return tuple(frames)
    # Native frames before the first call of the user belong to the interpreter and the C library.
    first = next(index for index, frame in enumerate(outward) if not ours[index] and not is_native(frame))
    shown = [frame for index, frame in enumerate(outward) if index >= first and not (ours[index] and ours[index - 1])]
    return tuple(reversed(shown))
