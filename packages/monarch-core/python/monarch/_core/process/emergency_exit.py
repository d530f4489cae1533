"""The end of a process in which the handling of a failure has itself failed: one line on stderr, then exit code 1.

This happens when no descriptor, thread or memory is left, or when modules of the interpreter are broken. This module imports nothing and
takes no lock. Callers, owners and the agent learn of the end from the kernel, and no call waits for ever.
"""

from __future__ import annotations

import os

from monarch._core.process.forked_child import leave_if_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def end_process(what: str, error: BaseException) -> NoReturn:
    """Ends the process because `what` has failed with `error`, and the rest of the process depends on it."""
    leave_if_child(error)
    try:
        line = f"monarch: process {os.getpid()} ends: {what} failed: {type(error).__name__}: {_text(error)}{_place(error)}\n"
        os.write(2, line.encode(errors="backslashreplace"))
    finally:
        os._exit(1)


def _text(error: BaseException) -> str:
    try:
        return " ".join(str(error).split())[:500]
    except BaseException:  # the class of the exception is the user's
        return "<exception str() failed>"


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
