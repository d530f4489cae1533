"""One inode of a gather mount, and what is known of it."""

from __future__ import annotations

import os
import stat
import time
from bisect import bisect_left

from monarch.fs._gather.block_cache import Window
from monarch.fs._gather.remote_attr import RemoteAttr
from monarch.fs._tree.operations import Attr

# Seconds for which attributes and names are valid without a report of the host.
VALID = 1.0


class LiveNode:
    """A directory of the view itself (`host` is -1), or a file, link or directory of a host."""

    def __init__(self, inode: int, host: int, path: bytes) -> None:
        self.inode, self.host = inode, host
        # The path below the root of its host under which it was last seen.
        self.path = path
        self.attr: RemoteAttr | None = None
        # The monotonic time at which the attributes expire.
        self.until = 0.0
        # References of the kernel.
        self.references = 0
        # The times of the request for `attr`, and of the last reported change: an answer to an earlier request may be older than the
        # change.
        self.asked = self.expired = 0.0
        self.window = Window()
        # The last listing of a directory with the time of the request, and the position of each name, which a name keeps.
        self.listing: list[tuple[bytes, RemoteAttr]] = []
        self.listed = 0.0
        self.positions: dict[bytes, int] = {}
        self._last_position = 0
        # The position in the listing of the last lookup, and attributes of the names after it with the time of the request.
        self.looked = -1
        self.ahead: dict[bytes, tuple[RemoteAttr, float]] = {}
        # The time of the last report of a name of the directory.
        self.reported = 0.0
        # Directories of the view: names and nodes.
        self.children: dict[bytes, LiveNode] = {}

    def take(self, attr: RemoteAttr, asked: float) -> None:
        """Keeps attributes that the host was asked for at this time, unless there are later ones."""
        if asked >= self.asked:
            self.attr, self.asked = attr, asked
            self.until = asked + VALID if asked > self.expired else 0.0

    def expire(self) -> None:
        self.until, self.expired = 0.0, time.monotonic()

    def list(self, found: list[tuple[bytes, RemoteAttr]], asked: float) -> None:
        """Keeps a listing; a name that was in the last one has the same position, so a listing that goes on repeats and omits nothing."""
        positions: dict[bytes, int] = {}
        for name, _ in found:
            position = self.positions.get(name)
            if position is None:
                self._last_position = position = self._last_position + 1
            positions[name] = position
        found.sort(key=lambda entry: positions[entry[0]])
        self.listing, self.positions, self.listed = found, positions, asked

    def place(self, name: bytes) -> int:
        """The index of a name in the listing; -1 for a name that it does not have."""
        position = self.positions.get(name)
        return -1 if position is None else bisect_left(self.listing, position, key=lambda entry: self.positions[entry[0]])

    @property
    def is_fresh(self) -> bool:
        return self.attr is not None and time.monotonic() < self.until

    def shown(self) -> Attr:
        """As the kernel gets it: read-only, of the local user, with one link."""
        found = self.attr
        if found is None:
            return Attr(self.inode, stat.S_IFDIR | 0o555, 1, os.getuid(), os.getgid(), 0, 0, 0, valid=0.0)
        # The permission bits of a link have no effect.
        mode = found.mode if stat.S_ISLNK(found.mode) else stat.S_IFMT(found.mode) | (found.mode & 0o555)
        left = max(0.0, self.until - time.monotonic())
        return Attr(
            self.inode, mode, 1, os.getuid(), os.getgid(), found.size, found.blocks, found.mtime_ns, valid=left, ctime_ns=found.ctime_ns
        )
