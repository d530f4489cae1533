"""Whether two paths, seen by two processes, are one directory or lie in each other.

Processes of one running kernel see the same device and inode for a directory, whatever its path is. On another machine, which has another
boot identity, nothing is compared.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class DirectoryIdentity(NamedTuple):
    """A directory and its parents, from the directory up, as (device, inode); plain data."""

    boot: str
    chain: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, path: str) -> DirectoryIdentity:
        """Of a path that need not exist: what does is identified."""
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        place: str = os.path.realpath(path)
        chain: list[tuple[int, int]] = []
        while True:
            try:
                found = os.stat(place)
                chain.append((found.st_dev, found.st_ino))
            except OSError:
                chain.append((-1, -1))
            if place == "/":
                return cls(boot, tuple(chain))
            place = str(os.path.dirname(place))

    def overlaps(self, other: DirectoryIdentity) -> bool:
        """Whether one of the two is the other, or lies in it."""
        if self.boot != other.boot:
            return False
        own, others = self.chain[0], other.chain[0]
        return (own[1] >= 0 and own in other.chain) or (others[1] >= 0 and others in self.chain)
