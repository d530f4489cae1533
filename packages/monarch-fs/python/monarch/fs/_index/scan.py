"""One look at a directory of this machine, for `index.py`: a scan of core that makes folders.

A directory that was renamed is found by its listing. Nothing that happens in the tree meanwhile makes a look fail: what disappears is left
out, and the next look sees the rest.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from monarch.extension.directory_tree import Attributes, DirectoryScan
from monarch.extension.gitignore import rules_above
from monarch.fs._index.content import Content, read_contents
from monarch.fs._index.pattern import Exclusion
from monarch.fs._index.seen import Seen
from monarch.fs._tree.folder import Item, pack_file, pack_node, pack_xattrs
from monarch.fs._tree.node import Kind, Node

_GONE_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Look(DirectoryScan[Seen]):
    """The directories of a source: `seen` by their paths, after `run`."""

    # Errors of a name that no longer exists.
    GONE = _GONE_ERRORS

    def __init__(self, top: bytes, exclusion: Exclusion, gitignore: bool, before: dict[bytes, Seen]) -> None:
        super().__init__(top, before, rules_above(top) if gitignore else None)
        self.exclusion = exclusion
        # Directories that could not be listed.
        self.closed: dict[bytes, OSError] = {}
        self.device = os.stat(os.fsdecode(top)).st_dev
        self._takes_xattrs = _takes_xattrs(top)
        self._by_listing: dict[bytes, Seen] | None = None

    def run(self) -> None:
        super().run()
        for seen in self.parsed:
            seen.finish()

    def make(self, path: bytes, listing: bytes, key: bytes) -> Seen:
        return Seen(listing, key)

    def cannot_list(self, path: bytes, error: OSError) -> None:
        if not path:
            raise type(error)(error.errno, error.strerror, os.fsdecode(self.top))
        self.closed[path] = error
        self.changed = self.changed or path in self.before

    def moved(self, listing: bytes) -> Seen | None:
        """A directory without directories in it that had the same entries elsewhere: the same files, by device and inode."""
        if self._by_listing is None:
            plain = (s for s in self.before.values() if s.folder.count and not (s.young or s.folder.subfolders or s.key or s.unreadable))
            self._by_listing = {s.listing: s for s in plain} if not self.exclusion.has_paths else {}
        found = self._by_listing.get(listing)
        if found is None:
            return None
        kept = Seen(listing, b"", found.folder)
        kept.linked, kept.skipped = found.linked, found.skipped
        return kept

    def stays(self, path: bytes, old: Seen) -> bool:
        if not self._takes_xattrs or not old.children:
            return True
        return {child: found for child in old.children if (found := read_xattrs(self.place(child)))} == old.xattrs

    def is_in_tree(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        return not self.exclusion.matches(path, name, is_directory)

    def add_directory(self, directory: Seen, path: bytes, name: bytes, found: Attributes) -> None:
        packed = read_xattrs(self.place(path)) if self._takes_xattrs else b""
        directory.items[name] = _item(name, Kind.DIRECTORY, found, packed)
        if found.device != self.device:
            directory.foreign.append(path)
            return
        directory.children.append(path)
        if packed:
            directory.xattrs[path] = packed

    def add_other(self, directory: Seen, path: bytes, name: bytes, found: Attributes) -> None:
        if not stat.S_ISLNK(found.mode):
            directory.skipped += 1
            return
        try:
            target = os.readlink(self.place(path))
        except OSError:
            directory.listing = b""
            return
        node = Node(Kind.SYMLINK, stat.S_IMODE(found.mode), found.uid, found.gid, len(target), found.mtime_ns, target=target)
        _add(directory, Item(name, *pack_node(node._replace(blocks=found.blocks))), found)

    def keep_file(self, directory: Seen, old: Seen, name: bytes, found: Attributes) -> bool:
        place = old.folder.find(name)
        item = old.folder.item(place) if place is not None else None
        if item is None or item.attributes[1] & 1:
            return False
        _add(directory, item, found)
        return True

    def read_files(self, paths: list[bytes], listed: list[Attributes]) -> Iterator[Content | OSError]:
        return read_contents(paths, [(found.size, found.blocks) for found in listed])

    def add_file(self, directory: Seen, path: bytes, name: bytes, listed: Attributes, content: Content | OSError) -> bool:
        if isinstance(content, OSError):
            # Others were removed, or replaced by something else: the next scan finds the new state.
            if content.errno not in _GONE_ERRORS and content.errno != errno.EINVAL:
                directory.unreadable.append(path)
                directory.items[name] = _item(name, Kind.FILE, listed, b"", readable=False)
            return False
        found = content.attributes
        xattrs = read_xattrs(self.place(path)) if content.has_xattrs and self._takes_xattrs else b""
        _add(directory, _item(name, Kind.FILE, found, xattrs, content.chunks), found)
        return content.settled and self.is_settled(listed, found)


def _add(directory: Seen, item: Item, found: Attributes) -> None:
    directory.items[item.name] = item
    if found.links > 1:
        directory.links[item.name] = found.device, found.inode


def _nearest(time_ns: int) -> int:
    """As native attributes have it."""
    return min(max(time_ns, -(1 << 63)), (1 << 63) - 1)


def _item(name: bytes, kind: Kind, found: Attributes, xattrs: bytes, chunks: bytes = b"", *, readable: bool = True) -> Item:
    """An entry of what `lstat` gave; `xattrs` are packed."""
    if chunks and not xattrs:
        return Item(name, pack_file(found.mode & 0o7777, found.uid, found.gid, found.size, found.mtime_ns, found.blocks), chunks)
    size = found.size if kind == Kind.FILE else 0
    numbers = (kind, stat.S_IMODE(found.mode), found.uid, found.gid, size, found.mtime_ns)
    attributes, tail = pack_node(Node(*numbers, blocks=found.blocks, chunks=chunks, readable=readable))
    if xattrs:
        attributes = attributes[:1] + bytes([attributes[1] | 2]) + attributes[2:]
    return Item(name, attributes, tail + xattrs)


def root_item(top: bytes) -> Item:
    """The root as an entry."""
    found = os.stat(os.fsdecode(top))
    numbers = (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, 0, _nearest(found.st_mtime_ns))
    attributes, _ = pack_node(Node(Kind.DIRECTORY, *numbers))
    xattrs = read_xattrs(top)
    return Item(b"", attributes[:1] + bytes([attributes[1] | 2]) + attributes[2:] if xattrs else attributes, xattrs)


def _takes_xattrs(top: bytes) -> bool:
    try:
        os.listxattr(top)
    except OSError as e:
        return e.errno not in (errno.ENOTSUP, errno.ENOSYS)
    return True


def read_xattrs(path: bytes) -> bytes:
    """The packed attributes of the class `user.`; those that cannot be read are none."""
    try:
        names = [os.fsencode(name) for name in os.listxattr(path, follow_symlinks=False) if name.startswith("user.")]
        return pack_xattrs((name, os.getxattr(path, name, follow_symlinks=False)) for name in sorted(names)) if names else b""
    except OSError:
        return b""
