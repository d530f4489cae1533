"""A directory of this machine as a tree of digests. Files that have not changed since the last scan are not read again.

The scan is that of `monarch._core.trees.directory_scan`; the record of the last one is in a file of the user's cache directory.

Left out are: paths that `.gitignore` files exclude, including files above the directory up to the top of its git work tree; `.git`;
`__pycache__`; sockets, pipes and devices. The executable bit of a file is kept. Symbolic links are kept if their targets are in the
tree; a link to a file elsewhere becomes a copy of that file, any other is an error, because no host could follow it.
"""

from __future__ import annotations

import os
import stat

from monarch._core._native.files import FileDigest, digest_files
from monarch._core.sync.node import (
    DIGEST,
    DIRECTORY,
    EXECUTABLE,
    FILE,
    LINK,
    Entry,
    digest_of,
    pack_node,
    parse_node,
    stays_within,
)
from monarch._core.trees.cached_file import load_cached, save_cached
from monarch._core.trees.directory_scan import DirectoryScan, ScannedDirectory
from monarch._core.trees.gitignore import rules_above
from monarch._core.trees.listing import parse_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from monarch._core.trees.gitignore import RuleChain
    from monarch._core.trees.listing import Attributes

# The version of the format of a record.
_VERSION = 3
# The number of files between two checks for a cancellation.
_FILES_AT_ONCE = 256
# The number of scans of a tree that changes meanwhile.
_TRIES = 3
# The number of contents up to which each is searched in the bytes of all directories: a search takes a millisecond, to parse them fifty.
_FEW = 32
CACHES = b"__pycache__"


class SourceChanged(RuntimeError):
    """A file kept changing while it was read."""


class Directory(ScannedDirectory):
    """A directory with its node."""

    __slots__ = ("_entries", "below", "digest", "links", "node")

    def __init__(self, listing: bytes, key: bytes) -> None:
        super().__init__(listing, key)
        self.node = self.digest = b""
        # The digests of the directories in it, one after another.
        self.below: bytes | None = None
        # Names of links whose targets may change without a change of the link.
        self.links: list[bytes] = []
        self._entries: dict[bytes, Entry] | None = None

    @property
    def entries(self) -> dict[bytes, Entry]:
        if self._entries is None:
            self._entries = {e.name: e for e in parse_node(self.node)}
        return self._entries

    def pack(self, directories: dict[bytes, Directory]) -> bool:
        """Makes the node, once those of its directories are made; False if it is made already."""
        below = b"".join([directories[child].digest for child in self.children])
        if below == self.below:
            return False
        for child in self.children:
            name = child.rpartition(b"/")[2]
            self.entries[name] = Entry(DIRECTORY, name, 0, directories[child].digest)
        self.node, self.below = pack_node(list(self.entries.values())), below
        self.digest = digest_of(self.node)
        return True


class Tree:
    """The content of a directory when it was scanned."""

    def __init__(self, top: bytes, directories: dict[bytes, Directory]) -> None:
        self.top = top
        self.directories = directories
        self.digest = directories[b""].digest if directories else b""
        # For the digest of a directory its bytes.
        self.nodes = {d.digest: d.node for d in directories.values()}

    def paths_of(self, files: Collection[bytes]) -> dict[bytes, bytes]:
        """The paths of contents relative to the top, in the order of the tree."""
        wanted, found = set(files), dict[bytes, bytes]()
        for path, directory in self.directories.items():
            if len(found) == len(wanted):
                break
            if len(wanted) <= _FEW and not any(digest in directory.node for digest in wanted):
                continue
            for e in parse_node(directory.node):
                if e.digest in wanted and e.kind in (FILE, EXECUTABLE):
                    found.setdefault(e.digest, os.path.join(path, e.name))
        return found


class TreeScan(DirectoryScan[Directory]):
    """A scan that makes nodes."""

    def __init__(self, top: bytes, before: dict[bytes, Directory], rules: RuleChain | None = None) -> None:
        super().__init__(top, before, rules)

    def tree(self) -> Tree:
        self.run()
        # Directories come level by level.
        for directory in reversed(self.seen.values()):
            self.changed |= directory.pack(self.seen)
        return Tree(self.top, self.seen)

    def make(self, path: bytes, listing: bytes, key: bytes) -> Directory:
        return Directory(listing, key)

    def is_in_tree(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        return name != CACHES

    def keep_file(self, directory: Directory, old: Directory, name: bytes, found: Attributes) -> bool:
        entry = old.entries.get(name)
        if entry is not None:
            directory.entries[name] = entry
        return entry is not None

    def read_files(self, paths: list[bytes], listed: list[Attributes]) -> Iterator[FileDigest | OSError]:
        for at in range(0, len(paths), _FILES_AT_ONCE):
            yield from digest_files(paths[at : at + _FILES_AT_ONCE])

    def add_content(self, directory: Directory, name: bytes, content: FileDigest) -> Attributes:
        """Adds a file; its attributes after it was read."""
        found = parse_record(content.record)
        kind = EXECUTABLE if found.mode & stat.S_IXUSR else FILE
        directory.entries[name] = Entry(kind, name, found.size, content.digests[:DIGEST])
        return found


class SourceScan(TreeScan):
    """A scan of a directory that is mirrored to hosts."""

    def __init__(self, top: bytes, before: dict[bytes, Directory], stopped: Callable[[], bool] = lambda: False) -> None:
        # The top itself may be a link.
        super().__init__(os.path.realpath(top), before, rules_above(top))
        self.stopped = stopped

    def make(self, path: bytes, listing: bytes, key: bytes) -> Directory:
        self._check()
        return super().make(path, listing, key)

    def _check(self) -> None:
        if self.stopped():
            raise InterruptedError("the sync was cancelled")

    def stays(self, path: bytes, old: Directory) -> bool:
        return all(self._link(os.path.join(path, name), name) == old.entries.get(name) for name in old.links)

    def read_files(self, paths: list[bytes], listed: list[Attributes]) -> Iterator[FileDigest | OSError]:
        for number, content in enumerate(super().read_files(paths, listed)):
            if number % _FILES_AT_ONCE == 0:
                self._check()
            yield content

    def add_file(self, directory: Directory, path: bytes, name: bytes, listed: Attributes, content: FileDigest | OSError) -> bool:
        return self.is_settled(listed, self.add_content(directory, name, _settled(self.place(path), content)))

    def add_other(self, directory: Directory, path: bytes, name: bytes, found: Attributes) -> None:
        if stat.S_ISLNK(found.mode):
            directory.links.append(name)
            directory.entries[name] = self._link(path, name)

    def _link(self, rel: bytes, name: bytes) -> Entry:
        path = self.place(rel)
        target = os.readlink(path)
        real = os.path.realpath(path)
        inside = real == self.top or real.startswith(self.top + b"/")
        directory = os.path.dirname(rel)
        if not target.startswith(b"/") and stays_within(directory, target) and (inside or not os.path.exists(real)):
            return Entry(LINK, name, 0, target)
        if inside and os.path.exists(real):
            return Entry(LINK, name, 0, os.path.relpath(real, os.path.join(self.top, directory)))
        if os.path.isfile(real):
            content = _settled(real, digest_files([real])[0])
            found = parse_record(content.record)
            return Entry(EXECUTABLE if found.mode & stat.S_IXUSR else FILE, name, found.size, content.digests[:DIGEST])
        what = "a directory outside" if os.path.isdir(real) else "what is not there"
        raise ValueError(
            f"symbolic link {os.fsdecode(path)} leads to {what} ({os.fsdecode(target)}): hosts could not follow it. "
            "Leave it out by .gitignore, or name its target as a directory of the workspace"
        )


def _settled(path: bytes, content: FileDigest | OSError) -> FileDigest:
    if isinstance(content, OSError):
        raise content
    if not content.settled:
        raise SourceChanged(f"{os.fsdecode(path)} changes while it is read")
    return content


# ---- records


def load(file: bytes, top: bytes) -> dict[bytes, Directory]:
    """The directories that `save` has written for this top, if there is such a file."""
    directories: dict[bytes, Directory] = {}
    found = load_cached(file)
    for path, listing, key, *rest in found[2] if found is not None and found[:2] == (_VERSION, top) else ():
        d = directories[path] = Directory(listing, key)
        d.has_rules, d.children, d.young, d.links, d.node, d.digest, d.below = rest
    return directories


def save(file: bytes, top: bytes, directories: dict[bytes, Directory], suffix: bytes | None = None) -> None:
    """Records directories for the next scan. A failure only costs time."""
    rows = [
        (path, d.listing, d.key, d.has_rules, d.children, tuple(d.young), d.links, d.node, d.digest, d.below)
        for path, d in directories.items()
    ]
    save_cached(file, (_VERSION, top, rows), suffix)


def cache_file(top: bytes) -> bytes:
    """The cache file for the digests of a directory's files, in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.fsencode(os.path.join(base, "monarch", "workspace", digest_of(top).hex()))


def scan(top: bytes, stopped: Callable[[], bool] = lambda: False) -> Tree:
    """Scans a directory; `NotADirectoryError` or another `OSError` if that is impossible."""
    file = cache_file(top)
    for left in reversed(range(_TRIES)):
        looked = SourceScan(top, load(file, top), stopped)
        try:
            tree = looked.tree()
        except FileNotFoundError as e:  # the file was removed after it was listed
            if not left or not os.path.isdir(top):
                raise SourceChanged(f"{os.fsdecode(e.filename)} went while it was looked at") from None
            continue
        if looked.changed:
            save(file, top, looked.seen)
        return tree
    raise AssertionError("the last try returns")


def copy_tree(top: bytes, out: bytes) -> None:
    """Copies a directory, with the content that hosts would get."""
    from shutil import copyfile

    for path, directory in SourceScan(top, {}).tree().directories.items():
        os.makedirs(os.path.join(out, path), exist_ok=True)
        for e in directory.entries.values():
            place = os.path.join(out, path, e.name)
            if e.kind == DIRECTORY:
                continue
            if os.path.lexists(place):
                os.unlink(place)
            if e.kind == LINK:
                os.symlink(e.digest, place)
            else:
                copyfile(os.path.join(top, path, e.name), place)
                os.chmod(place, 0o755 if e.kind == EXECUTABLE else 0o644)
