"""Contents of files of hosts, in blocks, with a bound on their bytes; and how far to read ahead.

A block belongs to a version of its file: when the file changes, its blocks are not found any more and give way to others. The window of a
file that is read in order doubles from one block to `LARGEST_WINDOW`; a read elsewhere starts it anew, so one byte moves one block.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

# Bytes of a block; the last block of a file may have fewer.
BLOCK = 128 << 10
# The most bytes that are read ahead.
LARGEST_WINDOW = 4 << 20

Version: TypeAlias = tuple[int, int, int]


class BlockCache:
    """Blocks by inode and number, the least recently used ones out first; at least one block is kept."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._blocks: OrderedDict[tuple[int, int], tuple[Version, bytes]] = OrderedDict()

    def get(self, inode: int, number: int, version: Version) -> bytes | None:
        found = self._blocks.get((inode, number))
        if found is None or found[0] != version:
            return None
        self._blocks.move_to_end((inode, number))
        return found[1]

    def put(self, inode: int, number: int, version: Version, data: bytes) -> None:
        self._remove((inode, number))
        self._blocks[inode, number] = (version, data)
        self.used += len(data)
        while self.used > self.limit and len(self._blocks) > 1:
            self._remove(next(iter(self._blocks)))

    def _remove(self, key: tuple[int, int]) -> None:
        found = self._blocks.pop(key, None)
        if found is not None:
            self.used -= len(found[1])


class Window:
    """How many bytes after a read are worth having."""

    def __init__(self) -> None:
        self._bytes = 0
        # The first block after the last read.
        self._next = -1

    def after(self, first: int, last: int) -> int:
        """Blocks to read ahead after a read of the blocks `first` to `last`."""
        # A read that starts in the block where the last one ended is sequential as well.
        goes_on = self._next >= 0 and first in (self._next - 1, self._next)
        moved = last + 1 != self._next
        if not goes_on:
            self._bytes = 0
        elif moved:
            self._bytes = min(max(2 * self._bytes, BLOCK), LARGEST_WINDOW)
        self._next = last + 1
        return self._bytes // BLOCK
