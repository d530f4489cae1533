"""The record of a directory: its listing, and the folder that was made of it."""

from __future__ import annotations

from typing import Any

from monarch.extension.directory_tree import ScannedDirectory
from monarch.fs._tree.folder import EMPTY, Folder, Item, folder_of

# The version of the encoding below.
_VERSION = 2


class Seen(ScannedDirectory):
    """A directory at the time of a scan."""

    __slots__ = ("folder", "foreign", "items", "linked", "links", "skipped", "unreadable", "xattrs")

    def __init__(self, listing: bytes, key: bytes, folder: Folder = EMPTY) -> None:
        super().__init__(listing, key)
        # Without the parts that depend on other directories: hard links, compiled modules, unreadable directories.
        self.folder = folder
        # Place, device and inode of each file with several names.
        self.linked: list[tuple[int, int, int]] = []
        # Packed attributes of its directories, by path, if they have any.
        self.xattrs: dict[bytes, bytes] = {}
        self.skipped = 0
        self.unreadable: list[bytes] = []
        # Directories of other file systems.
        self.foreign: list[bytes] = []
        # The entries, and device and inode of those with several names, until `finish` makes the folder.
        self.items: dict[bytes, Item] = {}
        self.links: dict[bytes, tuple[int, int]] = {}

    def finish(self) -> None:
        names = sorted(self.items)
        self.folder = folder_of(self.items[name] for name in names)
        self.linked = [(place, *self.links[name]) for place, name in enumerate(names) if name in self.links] if self.links else []
        self.items, self.links = {}, {}


def dump(seen: dict[bytes, Seen], key: Any) -> Any:
    """The directories as a value for `save_cached`; `key` identifies what they were scanned for."""
    rows = [
        (
            (path, s.listing, s.key, s.folder.records, s.folder.names, s.folder.tails),
            (s.children, s.linked, tuple(s.young), s.xattrs, s.skipped, s.unreadable, s.foreign, s.has_rules),
        )
        for path, s in seen.items()
    ]
    return _VERSION, key, rows


def restore(value: Any, key: Any) -> dict[bytes, Seen]:
    """The directories that `dump` was given with this key; none of another key or version."""
    found: dict[bytes, Seen] = {}
    rows = value[2] if value is not None and value[:2] == (_VERSION, key) else ()
    for (path, listing, rules, records, names, tails), rest in rows:
        s = found[path] = Seen(listing, rules, Folder(records, names, tails))
        s.children, s.linked, s.young, s.xattrs, s.skipped, s.unreadable, s.foreign, s.has_rules = rest
    return found
