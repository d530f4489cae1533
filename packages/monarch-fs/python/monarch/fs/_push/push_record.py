"""What a push has written, so that the next one does not read it again: for each file its attributes then, and the content it got.

A file whose inode, size, mtime and ctime are those of the record has the content of the record: the kernel changes the ctime with each
write and with each change of the attributes. Without a record, or after such a change, contents are compared. The record is a file on
the host, beside the store and not in the target. The records that were written longest ago are removed where there are many: targets of a
job's workspace have a path that never comes again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from monarch.extension.directory_tree import blake3, load_cached, save_cached
from monarch.fs._index.cache_folder import trim
from monarch.fs._push.relocation import Relocation

_VERSION = 2
_NAME_BYTES = 16
# The most bytes of one record, of which a million files need about 150 MB, and of all; the most records.
_MOST_BYTES, _ALL_BYTES, _MOST_FILES = 512 << 20, 1 << 30, 256


class Written(NamedTuple):
    """A file of the target, as a push left it."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    # The content: a digest of the chunks and attributes of the node.
    content: bytes
    # Whether the prefix of an environment was replaced in it, and whether it contains one that could not be replaced.
    relocated: bool = False
    left: bool = False

    @classmethod
    def of(cls, found: os.stat_result, content: bytes, relocated: bool = False, left: bool = False) -> Written:
        return cls(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, content, relocated, left)

    def holds(self, found: os.stat_result) -> bool:
        """Whether the file has not been touched since."""
        return self[:4] == (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class PushRecord:
    """The files of one target that have been written for one relocation."""

    def __init__(self, path: Path | None, target: str, relocation: Relocation | None) -> None:
        self._path = path
        # A record of another place or another prefix has nothing to compare with.
        moved = None if relocation is None else (relocation.old, relocation.new, sorted(relocation.rooms.items()))
        self._header = blake3(repr((_VERSION, target, moved)).encode())
        self.files: dict[bytes, Written] = {}

    @staticmethod
    def place(state: Path, target: str) -> Path:
        """The file of the record of a target, below the state folder of pushes."""
        return state / blake3(os.fsencode(target))[:_NAME_BYTES].hex()

    def load(self) -> None:
        """Reads what the last push has left, if it was one like this."""
        found = None if self._path is None else load_cached(self._path, _MOST_BYTES)
        if found is not None and found[0] == self._header:
            self.files = {path: Written(*values) for path, values in found[1]}

    def save(self) -> None:
        """Replaces the file. A failure is none of the push: without a record the next one compares contents."""
        if self._path is not None:
            save_cached(self._path, (self._header, [(path, tuple(written)) for path, written in self.files.items()]))
            trim(self._path.parent, _ALL_BYTES, _MOST_FILES)
