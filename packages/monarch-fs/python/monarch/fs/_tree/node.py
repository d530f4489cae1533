"""One inode of a tree: what the table of a tree has for each file, directory and symbolic link."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

# Bytes of the identity of a chunk: BLAKE3-256 of its content.
ID_SIZE = 32
# The identity of a chunk of zeros, which is not in any store and is never sent.
ZERO_ID = bytes(ID_SIZE)
# A file of at most this many bytes is one chunk; a larger one is cut into pieces of `PIECE_BYTES`.
WHOLE_BYTES = 256 << 10
PIECE_BYTES = 1 << 20


class Kind(IntEnum):
    """What a node is. Sockets, pipes and devices are in no tree."""

    DIRECTORY = 1
    FILE = 2
    SYMLINK = 3


class Node(NamedTuple):
    """One inode; immutable. Hard links of a file are entries of the same node."""

    kind: Kind
    # Permission bits, 0 to 0o7777.
    mode: int
    uid: int
    gid: int
    # Bytes of the content of a file, or of the text of a symbolic link; 0 for a directory.
    size: int
    mtime_ns: int
    # The number of names of a file in the tree.
    nlink: int = 1
    # Units of 512 bytes on the disk of the client: fewer than `size` needs if the file has holes.
    blocks: int = 0
    # The text of a symbolic link.
    target: bytes = b""
    # The identities of the chunks of a file in order, `ID_SIZE` bytes each: none of an empty file, one up to `WHOLE_BYTES`.
    chunks: bytes = b""
    # False: the client could not read the file; reading it fails with EACCES.
    readable: bool = True
    # Extended attributes of the class `user.`, sorted by name.
    xattrs: tuple[tuple[bytes, bytes], ...] = ()

    def piece(self) -> int:
        """The bytes of a chunk of this file, of which the last one may have fewer."""
        return self.size if self.size <= WHOLE_BYTES else PIECE_BYTES

    def chunk_count(self) -> int:
        return len(self.chunks) // ID_SIZE

    def chunk(self, number: int) -> bytes:
        """The identity of a chunk by its number; `IndexError` where there is none."""
        found = self.chunks[number * ID_SIZE : (number + 1) * ID_SIZE]
        if number < 0 or len(found) != ID_SIZE:
            raise IndexError(f"chunk {number} of {self.chunk_count()}")
        return found
