"""A context manager that spans two commands: `up` enters it in a process of its own, `down` ends that process.

That process holds the daemons' pipes (tools/enclosure.py), so they end with it however it ends. Its pid is in `DIR/owner`, locked while
it lives: a pid that another process got meanwhile is never signalled.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType

END_TIMEOUT_S = 10.0


def up(directory: Path, service: AbstractContextManager[object], ready: str) -> int:
    """Enters `service` in a new process and prints `ready`; the exit code of the command."""
    directory.mkdir(parents=True, exist_ok=True)
    if owner(directory) is not None:
        print(f"{directory}: is up", file=sys.stderr)
        return 1
    told, tell = os.pipe()
    if os.fork() == 0:
        os.close(told)
        _stand(directory, service, tell)
    os.close(tell)
    with os.fdopen(told) as pipe:
        trouble = pipe.read()
    print(trouble or ready, file=sys.stderr if trouble else sys.stdout)
    return 1 if trouble else 0


def down(directory: Path, timeout_s: float = END_TIMEOUT_S) -> int:
    """Ends the process of `up`, by SIGKILL after `timeout_s` seconds, and waits for it; the exit code of the command."""
    pid = owner(directory)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + timeout_s
        while owner(directory) is not None:
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
    return 0


def owner(directory: Path) -> int | None:
    """The process that holds the service of this folder."""
    try:
        with (directory / "owner").open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read())
    except FileNotFoundError:
        pass
    return None


def _stand(directory: Path, service: AbstractContextManager[object], tell: int) -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, _end)
    file = (directory / "owner").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(str(os.getpid()))
    file.flush()
    code = 0
    # This comes before any start: a child that inherits the caller's output would keep `up DIR | tail` from ending.
    with (directory / "owner.log").open("w") as log, open(os.devnull) as nothing:
        for descriptor, target in ((0, nothing), (1, log), (2, log)):
            os.dup2(target.fileno(), descriptor)
    try:
        with service:
            os.close(tell)
            # A signal that comes just before a pause ends none. The interpreter writes into the pipe at once.
            signalled, wake = os.pipe()
            os.set_blocking(wake, False)
            signal.set_wakeup_fd(wake)
            while True:
                os.read(signalled, 64)
    except SystemExit:
        pass
    except BaseException as error:
        os.write(tell, f"{type(error).__name__}: {error}\n".encode())
        code = 1
    os._exit(code)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit
