"""One look at a directory of this machine, for `index.py`.

All directories of the last look are listed at once by native threads. One whose listing is the same, byte for byte, is kept as it was;
the others are taken apart, level by level. A file keeps its chunks if device, inode, size, mtime and ctime are the same, and is read
otherwise. A directory that was renamed is found by its listing. A file that was written within a tick of the file system's clock before
the look may change again without another time: it is read again by the next look.

Nothing that happens in the tree meanwhile makes a look fail: what disappears is left out, and the next look sees the rest.
"""

from __future__ import annotations

import errno
import os
import stat
from time import time_ns

from monarch.extension.directory_tree import Attributes, list_directories, parse_listing
from monarch.fs._index.content import Content, read_contents
from monarch.fs._index.ignore import Ignored, rules_below, rules_of_source
from monarch.fs._index.pattern import Exclusion
from monarch.fs._index.seen import Seen
from monarch.fs._tree.folder import EMPTY, Item, folder_of, pack_file, pack_node, pack_xattrs
from monarch.fs._tree.node import Kind, Node

# File times are from a clock that ticks every 1 to 10 ms; some file systems store only full seconds, or multiples of two.
_TICK_NS, _COARSE_TICK_NS = 50_000_000, 2_000_000_000
_GONE_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Look:
    """The directories of a source: `seen` by their paths, after `run`."""

    # Errors of a name that no longer exists.
    GONE = _GONE_ERRORS

    def __init__(self, top: bytes, exclusion: Exclusion, gitignore: bool, before: dict[bytes, Seen]) -> None:
        self.top = top
        self.exclusion = exclusion
        self.gitignore = gitignore
        self.before = before
        self.seen: dict[bytes, Seen] = {}
        self.changed = False
        # Directories that could not be listed.
        self.closed: dict[bytes, OSError] = {}
        self.began = time_ns()
        self.device = os.stat(os.fsdecode(top)).st_dev
        self._takes_xattrs = _takes_xattrs(top)
        self._by_listing: dict[bytes, Seen] | None = None
        # Directories that were parsed.
        self._unread: list[_Parsed] = []

    def path(self, rel: bytes) -> bytes:
        return self.top + b"/" + rel if rel else self.top

    def run(self) -> None:
        known = list(self.before)
        listed = dict(zip(known, list_directories([self.path(rel) for rel in known]), strict=True))
        level: list[tuple[bytes, Ignored | None]] = [(b"", rules_of_source(self.top) if self.gitignore else None)]
        while level:
            missing = [rel for rel, _ in level if rel not in listed]
            listed.update(zip(missing, list_directories([self.path(rel) for rel in missing]), strict=True))
            below: list[tuple[bytes, Ignored | None]] = []
            for rel, rules in level:
                listing = listed[rel]
                if isinstance(listing, OSError):
                    self._close(rel, listing)
                    continue
                children, rules = self._look_at(rel, listing, rules)
                below.extend((child, rules) for child in children)
            level = below
        self._read()
        self.changed = self.changed or len(self.seen) != len(self.before)

    def _close(self, rel: bytes, error: OSError) -> None:
        if not rel:
            raise type(error)(error.errno, error.strerror, os.fsdecode(self.top))
        self.closed[rel] = error
        self.changed = self.changed or rel in self.before

    def _look_at(self, rel: bytes, listing: bytes, rules: Ignored | None) -> tuple[list[bytes], Ignored | None]:
        old = self.before.get(rel)
        same = old is not None and old.listing == listing and not old.young
        if rules is not None:
            if old.has_rules if same and old is not None else b".gitignore\0" in listing:
                rules = self._rules(rel, rules)
            same = same and old is not None and old.key == rules.key
        if same and old is not None and self._same_xattrs(old):
            self.seen[rel] = old
            return old.children, rules
        self.changed = True
        if old is None and rules is None:
            moved = self._moved(listing)
            if moved is not None:
                kept = self.seen[rel] = Seen(listing, b"", moved.folder)
                kept.linked, kept.skipped = moved.linked, moved.skipped
                return [], rules
        parsed = _Parsed(rel, listing, rules.key if rules is not None else b"", old)
        self._unread.append(parsed)
        self._sort(parsed, rules)
        self.seen[rel] = parsed.seen
        return parsed.seen.children, rules

    def _rules(self, rel: bytes, above: Ignored) -> Ignored:
        path = self.path(rel) + b"/.gitignore"
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                return above
            with open(path, "rb") as file:
                return rules_below(file.read(), rel + b"/" if rel else b"", above)
        except OSError:
            return above

    def _moved(self, listing: bytes) -> Seen | None:
        """A directory without directories in it that had the same entries elsewhere: the same files, by device and inode."""
        if self._by_listing is None:
            plain = (s for s in self.before.values() if s.folder.count and not (s.young or s.folder.subfolders or s.key or s.unreadable))
            self._by_listing = {s.listing: s for s in plain} if not self.exclusion.has_paths else {}
        return self._by_listing.get(listing)

    def _same_xattrs(self, old: Seen) -> bool:
        if not self._takes_xattrs or not old.children:
            return True
        return {child: found for child in old.children if (found := read_xattrs(self.path(child)))} == old.xattrs

    def _sort(self, parsed: _Parsed, rules: Ignored | None) -> None:
        """What of a directory is shown, and what has to be read."""
        rel, seen, old = parsed.seen_path, parsed.seen, parsed.old
        prefix = rel + b"/" if rel else b""
        before = parse_listing(old.listing) if old is not None and old.listing else {}
        for name, found in parse_listing(parsed.seen.listing).items():
            kind = stat.S_IFMT(found.mode)
            is_directory = kind == stat.S_IFDIR
            path = prefix + name
            if self.exclusion.matches(path, name, is_directory):
                continue
            if rules is not None and (name == b".git" or rules.leaves_out(path, name, is_directory)):
                continue
            if name == b".gitignore" and kind == stat.S_IFREG:
                seen.has_rules = True
            if is_directory:
                packed = read_xattrs(self.path(path)) if self._takes_xattrs else b""
                parsed.items[name] = _item(name, Kind.DIRECTORY, found, packed)
                if found.device != self.device:
                    seen.foreign.append(path)
                else:
                    seen.children.append(path)
                    if packed:
                        seen.xattrs[path] = packed
            elif kind == stat.S_IFLNK:
                self._add_link(parsed, name, path, found)
            elif kind == stat.S_IFREG:
                kept = old.folder.find(name) if old is not None and name not in old.young and name in before else None
                if kept is not None and old is not None and _state(before[name]) == _state(found):
                    item = old.folder.item(kept)
                    if not item.attributes[1] & 1:
                        parsed.items[name] = item
                        if found.links > 1:
                            parsed.links[name] = (found.device, found.inode)
                        continue
                parsed.files[name] = found
            else:
                seen.skipped += 1
        if not parsed.files:
            parsed.finish()

    def _add_link(self, parsed: _Parsed, name: bytes, path: bytes, found: Attributes) -> None:
        try:
            target = os.readlink(self.path(path))
        except OSError:
            parsed.seen.listing = b""
            return
        node = Node(Kind.SYMLINK, stat.S_IMODE(found.mode), found.uid, found.gid, len(target), found.mtime_ns, target=target)
        parsed.items[name] = Item(name, *pack_node(node._replace(blocks=found.blocks)))
        if found.links > 1:
            parsed.links[name] = (found.device, found.inode)

    def _read(self) -> None:
        waiting = [(parsed, name, found) for parsed in self._unread for name, found in parsed.files.items()]
        paths = [self.path(parsed.seen_path) + b"/" + name for parsed, name, _ in waiting]
        contents = read_contents(paths, [(found.size, found.blocks) for _, _, found in waiting])
        for (parsed, name, listed), path, content in zip(waiting, paths, contents, strict=True):
            self._add_file(parsed, name, path, listed, content)
        for parsed in self._unread:
            if parsed.files:
                parsed.finish()

    def _add_file(self, parsed: _Parsed, name: bytes, path: bytes, listed: Attributes, content: Content | OSError) -> None:
        if isinstance(content, OSError):
            parsed.young.add(name)
            if content.errno in _GONE_ERRORS or content.errno == errno.EINVAL:
                # Removed, or replaced by something else: the next scan finds the new state.
                return
            parsed.seen.unreadable.append(path[len(self.top) + 1 :])
            parsed.items[name] = _item(name, Kind.FILE, listed, b"", readable=False)
            return
        found = content.attributes
        newest = max(found.mtime_ns, found.ctime_ns)
        tick = _COARSE_TICK_NS if found.mtime_ns % 1_000_000_000 == 0 and found.ctime_ns % 1_000_000_000 == 0 else _TICK_NS
        if not content.settled or newest >= self.began - tick or found != listed:
            parsed.young.add(name)
        xattrs = read_xattrs(path) if content.has_xattrs and self._takes_xattrs else b""
        parsed.items[name] = _item(name, Kind.FILE, found, xattrs, content.chunks)
        if found.links > 1:
            parsed.links[name] = (found.device, found.inode)


class _Parsed:
    """A directory while it is taken apart."""

    def __init__(self, path: bytes, listing: bytes, key: bytes, old: Seen | None) -> None:
        self.seen_path = path
        self.seen = Seen(listing, key, EMPTY)
        self.old = old
        self.items: dict[bytes, Item] = {}
        self.files: dict[bytes, Attributes] = {}
        self.links: dict[bytes, tuple[int, int]] = {}
        self.young: set[bytes] = set()

    def finish(self) -> None:
        names = sorted(self.items)
        self.seen.folder = folder_of(self.items[name] for name in names)
        if self.links:
            self.seen.linked = [(place, *self.links[name]) for place, name in enumerate(names) if name in self.links]
        self.seen.young = frozenset(self.young)


def _state(found: Attributes) -> tuple[int, int, int, int, int, int, int, int]:
    return found.device, found.inode, found.size, found.mtime_ns, found.ctime_ns, found.mode, found.blocks, found.uid


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
