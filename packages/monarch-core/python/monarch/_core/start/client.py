"""The start of the client in a script."""

from __future__ import annotations

import os
import sys

from monarch._core._native import Process as NativeProcess
from monarch._core._native import block_if_exiting
from monarch._core.config import config
from monarch._core.process.current import has_exited
from monarch._core.process.environment import host_name, native_variables
from monarch._core.process.identity import new_uid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.process.process import LocalProcess


def start_client(uid: int = 0) -> LocalProcess:
    # `threading` treats the thread that imports it first as the main thread, and waits for it at exit. A runtime thread, which never ends,
    # must not be that thread.
    import threading as threading

    if has_exited():
        block_if_exiting()
        raise RuntimeError("the Monarch client of this process has been shut down and cannot be started again")
    _open_standard_descriptors()
    tail = config.value("tail_log_lines")
    native = NativeProcess.client(uid or new_uid(), host_name(), zygote_command(), list(native_variables().items()), tail, _consoles())
    native.warm_up()
    try:
        # The zygote starts during the other imports, which saves 10 ms.
        from monarch._core.start.client_runtime import begin

        return begin(native)
    except OSError as e:
        native.close_agent(0.0)
        raise OSError(e.errno, f"cannot start the runtime: {e.strerror}", e.filename) from None
    except ImportError as e:
        shortage = _descriptor_shortage()
        native.close_agent(0.0)
        if shortage is None:
            raise
        raise OSError(shortage.errno, f"cannot start the runtime: {shortage.strerror}", e.path) from None
    except BaseException:  # no thread can be started: a client without housekeeping would wait for ever
        native.close_agent(0.0)
        raise


def zygote_command() -> list[str]:
    """The command that runs the zygote, which finds Monarch's modules in the same places as this process."""
    from monarch._core.process.python_command import import_path

    code = f"import sys; sys.path[:] = {import_path()!r}; from monarch._core.start.zygote import main; main()"
    return [sys.executable, "-c", code]


def _descriptor_shortage() -> OSError | None:
    """The error of an open file now; None if descriptors are left. The loader of extension modules reports a shortage as a text only."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as e:
        return e
    return None


def _open_standard_descriptors() -> None:
    """Opens closed standard descriptors. Otherwise a socket could become descriptor 1, to which lines of procs are written."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _consoles() -> list[int]:
    """The descriptors for the lines of procs. A user's file that got the number of a closed standard stream is none of them."""
    return [-1 if stream is None else fd for fd, stream in ((1, sys.__stdout__), (2, sys.__stderr__))]
