"""A directory of this machine, below which alone files are written and removed.

Every access goes through a descriptor: a directory below is opened component by component, each with `O_NOFOLLOW`, and a name is used
only relative to the descriptor of its directory. So a symbolic link that another process plants is met as a link, at any moment, and
never followed; `..` is in no path. That costs one `openat` a component, about a microsecond, and no kernel is too old for it, in
contrast to `openat2`. The target itself may be a link: the user named it.

Directories without rights for their owner are made accessible as they are opened; the push sets their mode at its end.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from secrets import token_hex

# The prefix of names of incomplete files. A push removes those of a killed push.
TEMPORARY = b".monarch-push-"
# A directory of this name belongs to Monarch, and is neither written nor removed.
RESERVED = b".monarch"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def temporary_name() -> bytes:
    return TEMPORARY + token_hex(8).encode()


class Folder:
    """The target of a push: made if it is not there, with its parents, and locked against other pushes of this machine.

    `OSError` if it cannot be made or opened; a path through something that is no directory is `NotADirectoryError`. `is_locked` is
    false on a file system that has no locks.
    """

    def __init__(self, target: str) -> None:
        os.makedirs(target, exist_ok=True)
        self.path = target
        self.fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX)
            self.is_locked = True
        except OSError:
            self.is_locked = False

    def close(self) -> None:
        """Ends the lock; more than once is fine."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def open(self, parts: Sequence[bytes]) -> int:
        """A descriptor of the directory below, which the caller closes; `OSError` where a component is no directory."""
        fd = os.dup(self.fd)
        try:
            for part in parts:
                inner = open_folder(fd, part)
                os.close(fd)
                fd = inner
        except BaseException:
            os.close(fd)
            raise
        return fd

    @contextmanager
    def opened(self, parts: Sequence[bytes]) -> Generator[int]:
        fd = self.open(parts)
        try:
            yield fd
        finally:
            os.close(fd)

    def remove(self, parts: Sequence[bytes], name: bytes) -> int:
        """Removes a file, a link, or a directory with all below it, of the directory `parts`; returns how many.

        Nothing that is mounted is entered: `OSError` with `EBUSY` names it, and what comes after it stays.
        """
        count = 0
        # Each directory is here twice: to be listed, and to be removed after its contents.
        rest: list[tuple[tuple[bytes, ...], bytes, bool]] = [(tuple(parts), name, False)]
        while rest:
            above, name, is_empty = rest.pop()
            with self.opened(above) as fd:
                if is_empty:
                    os.rmdir(name, dir_fd=fd)
                    count += 1
                    continue
                try:
                    os.unlink(name, dir_fd=fd)
                    count += 1
                    continue
                except FileNotFoundError:
                    continue
                except OSError as e:
                    # Linux: EISDIR; other file systems EPERM.
                    if e.errno not in (errno.EISDIR, errno.EPERM) or not is_folder(fd, name):
                        raise
                inner = open_folder(fd, name)
                try:
                    if _mount_id(inner) != _mount_id(fd):
                        raise OSError(errno.EBUSY, "another file system is mounted there", os.fsdecode(b"/".join((*above, name))))
                    names = [os.fsencode(found) for found in os.listdir(inner)]
                finally:
                    os.close(inner)
            rest.append((above, name, True))
            rest += [((*above, name), below, False) for below in names]
        return count


def open_folder(fd: int, name: bytes) -> int:
    """The directory of this name, not through a link; made readable for its owner if it is not."""
    if name in (b"", b".", b"..") or b"/" in name:
        raise ValueError(f"not the name of a directory entry: {name!r}")
    try:
        inner = os.open(name, _OPEN, dir_fd=fd)
    except PermissionError:
        make_accessible(fd, name)
        inner = os.open(name, _OPEN, dir_fd=fd)
    return inner


def make_accessible(fd: int, name: bytes) -> None:
    """Gives the owner of a directory all rights; `PermissionError` for another user's."""
    # A descriptor that needs no permission for the file; its path below /proc changes the mode of this inode, even after a rename.
    inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    try:
        os.chmod(f"/proc/self/fd/{inner}", stat.S_IMODE(os.fstat(inner).st_mode) | 0o700)
    finally:
        os.close(inner)


def is_folder(fd: int, name: bytes) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)


def _mount_id(fd: int) -> bytes:
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        for line in file:
            if line.startswith(b"mnt_id:"):
                return line
    return b""
