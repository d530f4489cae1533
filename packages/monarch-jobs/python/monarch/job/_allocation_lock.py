"""One process at a time changes an allocation: heals it, ends it, or writes its state file.

Each of these reads the state file first, under the lock. Otherwise two processes would start the worker of one host, and only one of the
two workers would be known to `kill`. The lock is on the secret of the allocation, which every process that may change it has.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from monarch.job._files import credentials

if TYPE_CHECKING:
    from collections.abc import Generator

    from monarch.job._trait import JobTrait

# A holder runs commands of the scheduler, which end within 30 s each; a frozen holder must not keep others from `kill`.
TIMEOUT_S = 60.0
_PAUSE_S = 0.05


@contextlib.contextmanager
def held(job: JobTrait, timeout: float = TIMEOUT_S) -> Generator[bool]:
    """Holds the lock of the job's allocation. Its value is False where another process has held it for `timeout` seconds."""
    descriptor = _opened(job._life.apply_id)
    if descriptor is None:
        yield True
        return
    try:
        yield _locked(descriptor, timeout)
    finally:
        os.close(descriptor)


def _opened(apply_id: str | None) -> int | None:
    """None without credentials on this machine: then no other process here can change the allocation."""
    if apply_id is None:
        return None
    try:
        # For writing: NFS locks nothing else.
        return os.open(credentials.secret_path(apply_id), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None


def _locked(descriptor: int, timeout: float) -> bool:
    end = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(_PAUSE_S)
        except OSError:
            return True  # a file system without locks
