"""The folder of one `monarch exec` with several ranks, in a host's folder for temporary files: the newest ones stay, older ones go.

A command holds a shared lock on its folder, which the kernel gives back when the proc ends in whatever way. A folder is removed by a later
command that gets the lock for itself, so output that is still being written is never removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil

PREFIX = "monarch_exec_"
# Of this user on this machine, beside the ones in use.
KEPT = 20


def hold(path: str) -> int:
    """Makes the folder and removes what is too old beside it; a descriptor that holds the folder until it is closed."""
    os.makedirs(path, 0o700, exist_ok=True)
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # a file system without locks
        pass
    _prune(os.path.dirname(path))
    return held


def _prune(parent: str) -> None:
    found: list[tuple[float, str]] = []
    for entry in os.scandir(parent):
        if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
            try:
                at = entry.stat(follow_symlinks=False)
            except OSError:  # removed meanwhile
                continue
            if at.st_uid == os.geteuid():
                found.append((at.st_mtime, entry.path))
    for _, path in sorted(found)[:-KEPT]:
        _remove_unused(path)


def _remove_unused(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # removed meanwhile
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:  # in use, or a file system without locks
        return
    finally:
        os.close(fd)
