"""One process at a time looks for the job of a state file, and submits it where there is none; the next one finds that job."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
from typing import TYPE_CHECKING

from monarch.job._files.credentials import home

if TYPE_CHECKING:
    from collections.abc import Generator


@contextlib.contextmanager
def submission_lock(path: str) -> Generator[None]:
    """Holds the lock of the state file's path; one line on stderr where another process holds it. Without a home nothing is locked."""
    descriptor = _opened(path)
    if descriptor is None:
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"monarch: another process submits the job of {path}, waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _opened(path: str) -> int | None:
    # The lock is not beside the state file, whose directory may not exist yet.
    folder = os.path.join(home(), "locks")
    name = hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()[:32]
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        return os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
