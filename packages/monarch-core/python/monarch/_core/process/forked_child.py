"""A child that was forked from a process that uses Monarch: it is inert, and ends when it returns to the runtime's code.

The child has the forking thread only. As long as that thread is in the user's code it may do anything except use Monarch. When it
returns to the runtime's code, or raises into it, the thread is in a loop that belongs to the parent: the process ends there, without exit
handlers and destructors, which would act on the parent's resources.
"""

from __future__ import annotations

import os
import sys
from _io import TextIOWrapper
from _thread import LockType, allocate_lock, get_ident, start_new_thread

from monarch._core._native import after_fork_in_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

    from monarch._core._native import Process as NativeProcess
    from monarch._core.process.parts import ForkedProcess

# The exit code that a shell shows for a process that ended by Ctrl-C.
_INTERRUPTED = 130

# Seconds: a thread that the child does not have may hold the lock of a stream for ever. Output is written within this time, or lost.
_WRITE_TIMEOUT = 3.0

_is_child = False
# The parent's processes, kept so that no destructor of them runs here.
_kept: list[ForkedProcess] = []


def watch() -> None:
    """Registers the fork handlers, in a process that begins to use Monarch."""
    os.register_at_fork(before=_flush_streams)


def become_child(parent: int, processes: Iterable[ForkedProcess], native: NativeProcess | None = None) -> None:
    """Makes this process, a fork of `parent`, inert. `processes` lived in the parent; `native` was its runtime."""
    global _is_child
    _is_child = True
    after_fork_in_child(parent, leave, native)
    me = get_ident()
    for process in processes:
        _kept.append(process)
        for actor in process.actors.values():
            if actor.thread == me and actor.loop_side is not None:
                actor.loop_side.forbid()


def is_child() -> bool:
    return _is_child


def leave_if_child(error: BaseException | None = None) -> None:
    """Ends a child after user code, which has returned or raised `error`."""
    if _is_child:
        leave(error)


def leave(error: BaseException | None = None) -> NoReturn:
    """Ends this child as Python would end a script with the same outcome."""
    code = 1
    try:
        code = _exit_code(error)
        written = allocate_lock()
        written.acquire()
        start_new_thread(_write, (error, written))
        written.acquire(timeout=_WRITE_TIMEOUT)
    finally:
        os._exit(code)


def _exit_code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        return 1
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def _write(error: BaseException | None, written: LockType) -> None:
    """Writes the last output of the child."""
    try:
        if isinstance(error, SystemExit):
            if error.code is not None and not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
        elif error is not None:
            sys.excepthook(type(error), error, error.__traceback__)
        _flush_streams()
    finally:
        written.release()


def _flush_streams() -> None:
    """Flushes before a fork, so that parent and child do not both hold the same text; and at the end of the child, which runs no exit
    handlers.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            try:
                stream.flush()
            except Exception:  # the stream is closed, or this thread is writing to it just now
                continue
