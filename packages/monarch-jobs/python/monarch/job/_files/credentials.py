"""A job's secret: `MONARCH_HOME/jobs/<apply_id>/secret`, outside the project tree, for this user alone; and the lock of its allocation.

The client makes it when it submits; a launcher carries it to the hosts, which prove it when they are attached. The certificates of the job
are made by core, in memory.

One process at a time changes an allocation: heals it, ends it, or writes its state file. Each of these reads the state file first, under
the lock. Otherwise two processes would start the worker of one host, and `kill` would know only one of the two workers. The lock is on the
secret, which every process that may change the allocation has.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import time
from typing import TYPE_CHECKING
from uuid import UUID

from monarch.job.errors import CredentialsError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

SECRET_BYTES = 32
_SECRET = "secret"
# A holder runs commands of the scheduler, which end within 30 s each; a frozen holder must not keep others from `kill`.
LOCK_TIMEOUT_S = 60.0
_LOCK_PAUSE_S = 0.05


def home() -> str:
    """`MONARCH_HOME`, else `~/.monarch`."""
    return os.path.abspath(os.path.expanduser(os.environ.get("MONARCH_HOME") or "~/.monarch"))


def directory(apply_id: str) -> str:
    """The private directory of an allocation, which may not exist."""
    return os.path.join(home(), "jobs", str(UUID(apply_id)))


def secret_path(apply_id: str) -> str:
    """The file with the secret of an allocation, which may not exist."""
    return os.path.join(directory(apply_id), _SECRET)


def make(apply_id: str) -> bytes:
    """Makes directory and secret, and gives the secret."""
    secret = os.urandom(SECRET_BYTES)
    restore(apply_id, {_SECRET: secret})
    return secret


def restore(apply_id: str, files: Mapping[str, bytes]) -> None:
    """Makes the directory with these files; `CredentialsError` if one is there already."""
    path = directory(apply_id)
    try:
        for folder in (home(), os.path.dirname(path), path):
            os.makedirs(folder, 0o700, exist_ok=True)
            _check(folder, os.lstat(folder), stat.S_ISDIR, "a directory", 0o022 if folder == home() else 0o077)
        for name, data in files.items():
            if name != os.path.basename(name) or name.startswith("."):
                raise CredentialsError(f"'{name}' is no name of a file in it", path=path)
            put(os.path.join(path, name), data)
    except OSError as e:
        raise CredentialsError(
            "cannot be written",
            path=e.filename or path,
            cause=e.strerror or str(e),
            hint=f"set MONARCH_HOME (now {home()}) to a directory that can be written",
        ) from None


def contents(apply_id: str) -> dict[str, bytes]:
    """The files of the directory, if there is one. Directories in it belong to processes of this machine, such as the keeper."""
    try:
        with os.scandir(directory(apply_id)) as entries:
            files = sorted((entry.name, entry.path) for entry in entries if not entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return {}
    return {name: read_private(path) for name, path in files}


def put(path: str, data: bytes) -> None:
    """Writes a new private file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as f:
        f.write(data)


def secret(apply_id: str) -> bytes:
    """The secret of an allocation; `CredentialsError` names the fault of its file."""
    path = secret_path(apply_id)
    found = read_private(path)
    if len(found) != SECRET_BYTES:
        raise CredentialsError(f"has {len(found)} bytes, not {SECRET_BYTES}", path=path)
    return found


def read_private(path: str) -> bytes:
    """A file with a secret: this user's, for this user alone, no symlink."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise CredentialsError(
            "is missing", path=path, hint="on the machine that submitted the job: `monarch context export`; here: `monarch context import`"
        ) from None
    except OSError as e:
        raise CredentialsError("cannot be read", path=path, cause=e.strerror or str(e)) from None
    try:
        _check(path, os.fstat(fd), stat.S_ISREG, "a file", 0o077)
        return os.read(fd, 1 << 20)
    finally:
        os.close(fd)


def _check(path: str, found: os.stat_result, is_kind: object, kind: str, forbidden: int) -> None:
    if not callable(is_kind) or not is_kind(found.st_mode):
        raise CredentialsError(f"is not {kind}", path=path)
    if found.st_uid != os.geteuid():
        raise CredentialsError(f"belongs to another user (uid {found.st_uid})", path=path)
    mode = stat.S_IMODE(found.st_mode)
    if mode & forbidden:
        raise CredentialsError(f"is open to others (mode {mode:o})", path=path, hint=f"chmod go-rwx {path}")


def remove(apply_id: str) -> None:
    """Removes the directory with all in it; one that is gone is fine."""
    path = directory(apply_id)
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as e:
        raise CredentialsError("cannot be removed", path=path, cause=e.strerror or str(e)) from None


@contextlib.contextmanager
def lock(apply_id: str | None, timeout: float = LOCK_TIMEOUT_S) -> Generator[bool]:
    """Holds the lock of an allocation. Its value is False where another process has held it for `timeout` seconds."""
    descriptor = _opened(apply_id)
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
        # The file is opened for writing, because NFS locks no other files.
        return os.open(secret_path(apply_id), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
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
            time.sleep(_LOCK_PAUSE_S)
        except OSError:
            return True  # a file system without locks
