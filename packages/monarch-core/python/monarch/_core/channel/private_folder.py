"""Sockets in a folder that only this user can enter: where helper processes listen for their clients.

The path of a socket has at most 107 bytes, and that of the folder may be longer: a socket is reached through a descriptor of its folder.
The mode of the folder keeps other users out; each end compares the other's uid with its own as well (`Channel.check_peer`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    Folder = str | os.PathLike[str] | int


def make_private(folder: str | os.PathLike[str], hint: str = "") -> None:
    """Makes the folder for this user alone, and takes away the rights of others.

    Args:
        folder: the path; missing parents are made too.
        hint: what the user can do where the folder is another user's.

    Raises:
        PermissionError: the folder belongs to another user, or is no folder.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        text = f"{os.fspath(folder)}: not a directory of the user {os.geteuid()}"
        raise PermissionError(f"{text}\nhint: {hint}" if hint else text)
    if found.st_mode & 0o077:
        os.chmod(folder, 0o700)


def open_private(folder: str | os.PathLike[str]) -> int:
    """A descriptor of the folder; `PermissionError` unless it is this user's alone, `FileNotFoundError` where there is none."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(descriptor)
        raise PermissionError(f"is open to others (uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o})")
    return descriptor


def listen(folder: Folder, name: str) -> socket.socket:
    """A listening socket in the folder, a path or a descriptor, in the place of one whose process has ended; not blocking."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with _short(folder, name) as path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listener.bind(path)
            os.chmod(path, 0o600)
        listener.listen(128)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(folder: Folder, name: str, timeout: float = 2.0) -> socket.socket:
    """A connection to the socket in the folder, a path or a descriptor.

    `OSError` where no process listens, and after `timeout` seconds: its queue may be full.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # A nonblocking connect fails at once if the queue of the listener is full.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(timeout), int(timeout % 1 * 1e6)))
        with _short(folder, name) as path:
            connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _short(folder: Folder, name: str) -> Generator[str]:
    """A short path of the entry."""
    descriptor = folder if isinstance(folder, int) else os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        if descriptor is not folder:
            os.close(descriptor)
