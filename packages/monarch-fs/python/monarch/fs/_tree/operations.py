"""What a mounted tree answers, and what a back end does with it. Nothing here knows FUSE.

A tree numbers its inodes itself, from `ROOT`. A number belongs to one file for the life of a mount: its bytes never change. An operation
that fails raises an `OSError` with its errno.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

# The inode of the root of each tree, as in FUSE.
ROOT = 1
# The names of the back ends; AUTO is the choice of the process that serves.
DEVICE, PYFUSE3, AUTO = "device", "pyfuse3", "auto"


class Attr(NamedTuple):
    """The attributes of an inode; `mode` has the type bits of `stat`."""

    inode: int
    mode: int
    nlink: int
    uid: int
    gid: int
    size: int
    # Units of 512 bytes.
    blocks: int
    mtime_ns: int
    # Seconds for which the kernel may keep the attributes; infinity if changes are announced.
    valid: float = float("inf")
    ctime_ns: int = 0


class Entry(NamedTuple):
    """A name of a directory. A look-up of a name that is not there gives an entry without attributes: the kernel keeps that too."""

    name: bytes
    # None: there is no such name.
    attr: Attr | None
    # Seconds for which the kernel may keep the name.
    valid: float = float("inf")
    # The position at which a listing continues after this entry.
    cookie: int = 0


class StatFs(NamedTuple):
    """The size of a tree: bytes and inodes; nothing of it is free."""

    size: int
    inodes: int


class MountOptions(NamedTuple):
    """How a tree is mounted. Mounts are read-only, without devices and set-user-id programs."""

    # Shown as the source in /proc/mounts.
    name: str = "monarch"
    allow_other: bool = False
    # The most seconds that a read may wait for its bytes.
    read_timeout: float = 60.0
    # Bytes that the kernel reads ahead.
    read_ahead: int = 1 << 20
    # False for a live view: its pages are not kept between opens, and opens are requests.
    immutable: bool = True
    backend: str = AUTO


class TreeOperations(Protocol):
    """A tree that can be mounted. All but `read` answer at once, from memory, on the thread of the back end."""

    def lookup(self, parent: int, name: bytes) -> Entry: ...

    def attr(self, inode: int) -> Attr: ...

    def readlink(self, inode: int) -> bytes: ...

    def readdir(self, inode: int, after: int) -> Iterator[Entry]:
        """The entries after this cookie, 0 for all; without "." and ".."."""
        ...

    async def read(self, inode: int, offset: int, size: int) -> bytes | memoryview:
        """At most `size` bytes; fewer only at the end of the file. Waits by futures of `asyncio`-like awaitables of the back end's loop."""
        ...

    def listxattr(self, inode: int) -> list[bytes]: ...

    def getxattr(self, inode: int, name: bytes) -> bytes: ...

    def statfs(self) -> StatFs: ...

    def forget(self, inode: int, n: int) -> None:
        """The kernel drops `n` references to the inode: one for each entry that a look-up or a listing gave it."""
        ...


class MountBackend(Protocol):
    """Connects one tree with the kernel at one mount point."""

    async def run(self, ops: TreeOperations, target: str, options: MountOptions) -> None:
        """Serves until the mount point is unmounted."""
        ...

    def unmount(self, *, lazy: bool) -> None: ...

    def invalidate(self, entries: Sequence[tuple[int, bytes]], attrs: Sequence[int]) -> None:
        """The kernel forgets these names (of a parent) and the attributes and pages of these inodes."""
        ...

    def store(self, inode: int, offset: int, data: memoryview) -> None:
        """Puts bytes of an inode that the kernel knows into its page cache."""
        ...
