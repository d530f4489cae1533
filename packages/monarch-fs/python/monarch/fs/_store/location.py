"""Where the store of this machine and user is, and how large it may be."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from monarch.extension import setting
from monarch.fs._home import NO_HOME, SET_HOME, existing_part, home
from monarch.fs._store.store import Store
from monarch.fs.errors import FsError

# The most bytes of a store, unless the setting has another number.
_MOST = 100 << 30
_IN_MEMORY = ("tmpfs", "ramfs")


def store_folder(configured: str = "") -> Path:
    """The configured folder, or the one below `MONARCH_HOME` (`~/.monarch`), which hosts may share: each has its own there.

    `ValueError` for a configured path that is not absolute: the services of hosts have no working directory of the user's; and where none
    is configured, for a user without a home directory.
    """
    if configured:
        path = os.path.expanduser(configured)
        if not os.path.isabs(path) or "\0" in path:
            raise ValueError("the path is not absolute")
        return Path(os.path.normpath(path))
    place = home()
    if place is None:
        raise ValueError(NO_HOME)
    machine = "".join(c if c.isalnum() or c in "-." else "_" for c in socket.gethostname()) or "host"
    return Path(place, "fs", f"store-{machine}-{os.geteuid()}")


def store_limit(folder: Path, configured: int = 0) -> int:
    """The configured bytes, or the smallest of 100 GiB, half of what is free, and in memory a quarter of the memory that is available.

    The bytes in the store count as free. `ValueError` for a negative number.
    """
    if configured < 0:
        raise ValueError(f"fs_store_bytes: {configured} is negative")
    if configured:
        return configured
    held = held_bytes(folder)
    half = (free_bytes(folder) + held) // 2
    return min(_MOST, half, (_available_memory() + held) // 4) if in_memory(folder) else min(_MOST, half)


def held_bytes(folder: Path) -> int:
    """What a store has on the disk; 0 where there is none."""
    try:
        return sum(entry.stat().st_size for entry in os.scandir(folder / "segments"))
    except OSError:
        return 0


def free_bytes(folder: Path) -> int:
    """What is free on the file system of a folder, which may not exist yet."""
    space = os.statvfs(existing_part(folder))
    return space.f_bavail * space.f_frsize


def in_memory(folder: Path) -> bool:
    """Whether the folder is on a file system of which the files are in memory, such as /dev/shm."""
    device = os.stat(existing_part(folder)).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        rows = [line.split() for line in file]
    return any(row[2] == wanted and row[row.index("-") + 1] in _IN_MEMORY for row in rows)


def _available_memory() -> int:
    """Bytes that can be had without swapping."""
    with open("/proc/meminfo", encoding="ascii") as file:
        rows = dict(line.split(":") for line in file)
    return int(rows["MemAvailable"].split()[0]) << 10


class StorePlace(NamedTuple):
    """Where the store is or will be: bytes that it has, that it may have, and that are free there."""

    folder: Path
    held: int
    limit: int
    free: int
    in_memory: bool


def store_place() -> StorePlace:
    """By the settings; nothing is made. `FsError` as of `open_store`, also where the user may not write there."""
    with _named() as folder:
        if not os.access(existing_part(folder), os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        limit = store_limit(folder, int(setting("fs_store_bytes") or 0))
        return StorePlace(folder, held_bytes(folder), limit, free_bytes(folder), in_memory(folder))


def open_store() -> Store:
    """The store of this machine and user, by the settings `fs_store_dir` and `fs_store_bytes`.

    `FsError` names the setting, the path and this host where it cannot be used.
    """
    with _named() as folder:
        return Store(folder, store_limit(folder, int(setting("fs_store_bytes") or 0)))


@contextmanager
def _named() -> Generator[Path]:
    """The folder by the settings; an error within names it."""
    configured = str(setting("fs_store_dir") or "")
    path = configured
    try:
        folder = store_folder(configured)
        path = str(folder)
        if not existing_part(folder).is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        yield folder
    except (OSError, ValueError) as e:
        reason = (e.strerror if isinstance(e, OSError) else None) or str(e) or type(e).__name__
        what = "the store of the setting fs_store_dir" if configured else "the store below MONARCH_HOME"
        hint = "fs_store_dir is an absolute path of a directory that this user may write, or empty" if configured else SET_HOME
        number = (e.errno if isinstance(e, OSError) else None) or errno.EINVAL
        raise FsError(f"{what} cannot be used: {reason}", path=path, host=socket.gethostname(), hint=hint, errno=number) from None
