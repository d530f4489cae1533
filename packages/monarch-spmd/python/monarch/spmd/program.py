"""A Python program in this process, as the interpreter would run it."""

from __future__ import annotations

import os
import runpy
import sys
import threading
import traceback
from collections.abc import Sequence

from monarch.spmd.errors import SPMDError

# The functions that install handlers of signals, by module and name. Their `ValueError` and `RuntimeError` have no type of their own.
_HANDLER_SETTERS = {("signal", "signal"), ("asyncio.unix_events", "add_signal_handler")}
_REMEDY = (
    "SPMDActor.main runs the program on an actor's thread; monarch.spmd.run gives each rank a process of its own, with its main thread"
)


def run_program(words: Sequence[str]) -> None:
    """Runs `[script.py, arguments...]` or `["-m", module, arguments...]` as `__main__`, with `sys.argv` and `sys.path` as it expects them.

    Returns where the program ends or exits with 0; `SPMDError` for any other exit, `ValueError` where no program is named. The program's
    exceptions go on.
    """
    is_module = bool(words) and words[0] == "-m"
    named = list(words[1:] if is_module else words)
    if not named or not named[0]:
        raise ValueError("a launch names a program: a script, or -m and a module")
    argv, path = sys.argv, sys.path[:]
    try:
        sys.argv = named
        if is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(named[0], run_name="__main__", alter_sys=True)
        else:
            if os.path.isfile(named[0]):
                sys.path.insert(0, os.path.dirname(os.path.realpath(named[0])))
            elif not os.path.exists(named[0]):
                raise SPMDError(f"program {named[0]!r} is not on this host; the directory is {os.getcwd()}")
            runpy.run_path(named[0], run_name="__main__")
    except SystemExit as exit:
        _check_exit(exit, named[0])
    except (ValueError, RuntimeError) as error:
        if threading.current_thread() is not threading.main_thread() and _is_of_handler_setter(error):
            error.add_note(f"hint: {_REMEDY}")
        raise
    finally:
        sys.argv, sys.path = argv, path


def _is_of_handler_setter(error: Exception) -> bool:
    """Whether a function that installs a handler of a signal has raised the error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) in _HANDLER_SETTERS


def _check_exit(exit: SystemExit, program: str) -> None:
    code = exit.code
    if code is None:
        return
    if not isinstance(code, int):
        # The interpreter does the same: no other type is a number, not even 0.0. The value is printed, and the code is 1.
        print(code, file=sys.stderr)
        code = 1
    elif not -(1 << 63) <= code < 1 << 63:
        # The number does not fit into a C `long`.
        code = -1
    if code & 0xFF:
        raise ProgramExit(program, code & 0xFF) from None


class ProgramExit(SPMDError):
    """A program has left with an exit code that is not 0."""

    __module__ = "monarch.spmd"

    def __init__(self, program: str, exitcode: int) -> None:
        self.program, self.exitcode = program, exitcode
        super().__init__(f"{program} has exited with code {exitcode}")

    def __reduce__(self) -> tuple[type[ProgramExit], tuple[str, int]]:
        return ProgramExit, (self.program, self.exitcode)
