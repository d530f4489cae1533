"""A Python program in a fork of a preloaded interpreter: it finds the process as a fresh interpreter would give it."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time

from monarch._core.process.title import set_title

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from monarch._core.start.import_check import ImportCheck

# The signals that the guard handles, and with which the interpreter starts.
_OF_GUARD = {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGCHLD: signal.SIG_DFL,
    signal.SIGCONT: signal.SIG_DFL,
}


def _no_hook(*_: object) -> None:
    """An exception hook that prints nothing."""


def run(spec: dict[str, Any], own_path: list[str], check: ImportCheck) -> NoReturn:
    """Runs `python -u FILE arguments...` of the specification as `__main__`, and ends the interpreter with it."""
    command: list[str] = spec["argv"]
    argv = command[2:] if command[1] == "-u" else command[1:]
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in check.descriptors:
            try:
                os.close(int(name))
            except OSError:  # the descriptor of this listing
                continue
    for number, handler in {**_OF_GUARD, **check.handlers}.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.environ.clear()
    os.environ.update(spec["env"])
    time.tzset()
    set_title(*command)
    sys.orig_argv[:] = command
    sys.argv[:] = argv
    sys.path[:] = own_path if sys.flags.safe_path else [os.path.dirname(os.path.realpath(argv[0])), *own_path]
    check.apply_changes()
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    sys.modules.pop("monarch._core._bootstrap_main", None)
    check.begin_process()
    gc.enable()
    with open(argv[0], "rb") as file:
        code = compile(file.read(), argv[0], "exec")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __file__=argv[0], __cached__=None)
    try:
        exec(code, main.__dict__)
    except KeyboardInterrupt as error:
        # The interpreter ends by SIGINT. It prints no frames of this file.
        hook, sys.excepthook = sys.excepthook, _no_hook
        own = error.__traceback__
        traceback = None if own is None else own.tb_next
        hook(type(error), error.with_traceback(traceback), traceback)
        raise
    sys.exit()
