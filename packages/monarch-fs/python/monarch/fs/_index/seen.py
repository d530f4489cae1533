"""What a scan remembers of a directory: the listing that it was made of, and the folder that came of it."""

from __future__ import annotations

import marshal
from typing import Any

from monarch.fs._tree.folder import Folder

# The version of the encoding below.
_VERSION = 1


class Seen:
    """A directory at the time of a scan. An equal listing later means that the folder still holds."""

    __slots__ = ("children", "folder", "foreign", "has_rules", "key", "linked", "listing", "skipped", "unreadable", "xattrs", "young")

    def __init__(self, listing: bytes, key: bytes, folder: Folder) -> None:
        self.listing = listing
        # The key of the git rules that apply in it.
        self.key = key
        # Without the parts that depend on other directories: hard links, compiled modules, unreadable directories.
        self.folder = folder
        # Paths of its scanned directories, in order.
        self.children: list[bytes] = []
        # Place, device and inode of each file with several names.
        self.linked: list[tuple[int, int, int]] = []
        # Files whose content may change without a change of their time: the clock had not ticked since.
        self.young: frozenset[bytes] = frozenset()
        # Packed attributes of its directories, by path, if they have any.
        self.xattrs: dict[bytes, bytes] = {}
        self.skipped = 0
        self.unreadable: list[bytes] = []
        # Directories of other file systems.
        self.foreign: list[bytes] = []
        self.has_rules = False


def dump(seen: dict[bytes, Seen], extra: Any) -> bytes:
    """The directories and something that `marshal` can write."""
    rows = [
        (
            (path, s.listing, s.key, s.folder.records, s.folder.names, s.folder.tails),
            (s.children, s.linked, tuple(s.young), s.xattrs, s.skipped, s.unreadable, s.foreign, s.has_rules),
        )
        for path, s in seen.items()
    ]
    return marshal.dumps((_VERSION, rows, extra))


def restore(data: bytes) -> tuple[dict[bytes, Seen], Any] | None:
    """What `dump` wrote, of bytes that have been verified; None for another version."""
    try:
        version, rows, extra = marshal.loads(data)
    except (ValueError, EOFError, TypeError):
        return None
    if version != _VERSION:
        return None
    found: dict[bytes, Seen] = {}
    for (path, listing, key, records, names, tails), rest in rows:
        s = found[path] = Seen(listing, key, Folder(records, names, tails))
        s.children, s.linked, young, s.xattrs, s.skipped, s.unreadable, s.foreign, s.has_rules = rest
        s.young = frozenset(young)
    return found, extra
