"""Where the daemon of a user keeps its socket, lock, log and the state of its mounts.

One daemon serves one boot of a machine, one user, one mount namespace and one installation of this wheel: the name of the folder is a
digest of these. `MONARCH_HOME` may be shared by machines and by checkouts. A path of a socket has at most 107 bytes; sockets are reached
through a descriptor of their folder therefore, at any length of `MONARCH_HOME`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import stat
import struct
import sys
from collections.abc import Generator
from pathlib import Path

# The name of the daemon's socket in its folder.
SOCKET = "s"


def home() -> Path:
    """`MONARCH_HOME`, else `~/.monarch`."""
    return Path(os.path.abspath(os.path.expanduser(os.environ.get("MONARCH_HOME") or "~/.monarch")))


def daemon_folder() -> Path:
    """The folder of the daemon of this process; it may not exist."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = os.uname().nodename
    parts = [boot, str(os.getuid()), os.readlink("/proc/self/ns/mnt"), _release(), sys.prefix, os.path.dirname(__file__)]
    return home() / "fs" / f"daemon-{hashlib.sha256(chr(0).join(parts).encode(errors='surrogateescape')).hexdigest()[:16]}"


def _release() -> str:
    """The version of this wheel, by the folder of its metadata: `importlib.metadata` takes 15 ms to load, in each process of a mount."""
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(folder or ".")):
                if name.startswith("monarch_fs-") and name.endswith(".dist-info"):
                    return name
    return "unknown"


def make_private(folder: Path) -> None:
    """Makes the folder for this user alone; `PermissionError` when it belongs to another user."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder}: not a directory of the user {os.getuid()}\nhint: set MONARCH_HOME to a directory of this user")
    if found.st_mode & 0o077:
        folder.chmod(0o700)


@contextlib.contextmanager
def _short_path(folder: Path, name: str) -> Generator[str]:
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def listen(folder: Path, name: str) -> socket.socket:
    """A listening socket in the folder, in the place of an earlier one; not blocking."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short_path(folder, name) as path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            sock.bind(path)
        sock.listen(128)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def connect(folder: Path, name: str, timeout: float = 2.0) -> socket.socket:
    """A connection to the socket in the folder; `OSError` where no process listens, and after `timeout` seconds: its queue may be full."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A nonblocking connect fails at once if the queue of the listener is full.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(timeout), int(timeout % 1 * 1e6)))
        with _short_path(folder, name) as path:
            sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock
