"""A scan of a directory of this machine that begins with the record of an earlier scan.

All directories of the record are listed at once by native threads. A directory whose listing is the same, byte for byte, keeps its record;
other listings are parsed, level by level. A file keeps its content if its attributes are the same, and is read otherwise. A file that was
written within a tick of the file system's clock before the scan may change again without another time: it is *young*, and the next scan
reads it again.

Subclasses decide which names belong to the tree, what a file's content is, and which errors end the scan. Paths are relative to the top.
"""

from __future__ import annotations

import os
import stat
from time import time_ns

from monarch._core._native.files import list_directories
from monarch._core.shape.generic import Generic
from monarch._core.trees.gitignore import RuleChain, Rules
from monarch._core.trees.listing import parse_listing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Any, TypeVar

    from monarch._core.trees.listing import Attributes

    D = TypeVar("D", bound="ScannedDirectory")
else:
    D = None


class ScannedDirectory:
    """A directory at the time of a scan. An equal listing later means that the rest is still true."""

    __slots__ = ("children", "has_rules", "key", "listing", "young")

    def __init__(self, listing: bytes, key: bytes) -> None:
        self.listing = listing
        # The key of the git rules that apply in the directory.
        self.key = key
        self.has_rules = False
        # Paths of its directories that are scanned too.
        self.children: list[bytes] = []
        # Names of files that the next scan reads again.
        self.young: Collection[bytes] = ()


class DirectoryScan(Generic[D]):
    """One scan. `seen` has the directories by their paths, after `run`; `changed` is true if the record has to be saved again.

    Records of `before` may be those of `seen`. Without `rules`, files named .gitignore have no effect.
    """

    # File times are from a clock that ticks every 1 to 10 ms; some file systems store only full seconds, or multiples of two.
    TICK_NS, COARSE_TICK_NS = 50_000_000, 2_000_000_000

    def __init__(self, top: bytes, before: dict[bytes, D], rules: RuleChain | None) -> None:
        self.top = top
        self.before = before
        self.seen: dict[bytes, D] = {}
        self.changed: bool = False
        # Directories that had to be parsed.
        self.parsed: list[D] = []
        self._rules = rules
        self._unread: list[tuple[D, bytes, bytes, Attributes]] = []
        self._began = time_ns()

    # ---- for subclasses

    def make(self, path: bytes, listing: bytes, key: bytes) -> D:
        """A record for a directory that has changed."""
        raise NotImplementedError

    def cannot_list(self, path: bytes, error: OSError) -> None:
        """Handles a directory that cannot be listed. It has no record unless this method makes one."""
        raise error

    def stays(self, path: bytes, old: D) -> bool:
        """Whether a directory with an equal listing has not changed in another respect."""
        return True

    def moved(self, listing: bytes) -> D | None:
        """The record of a directory without a record of its own, if this listing shows that it is the same as another one."""
        return None

    def is_in_tree(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        """Whether a name belongs to the tree, before any rule of git."""
        return True

    def is_same_file(self, before: Attributes, found: Attributes) -> bool:
        """Whether a file with these attributes still has its content."""
        return before == found

    def add_directory(self, directory: D, path: bytes, name: bytes, found: Attributes) -> None:
        directory.children.append(path)

    def add_other(self, directory: D, path: bytes, name: bytes, found: Attributes) -> None:
        """Adds a symbolic link, or a socket, pipe or device."""
        raise NotImplementedError

    def keep_file(self, directory: D, old: D, name: bytes, found: Attributes) -> bool:
        """Keeps the content of a file that is the same; False if it has to be read."""
        raise NotImplementedError

    def read_files(self, paths: list[bytes], listed: list[Attributes]) -> Iterable[Any]:
        """The contents of files, in their order."""
        raise NotImplementedError

    def add_file(self, directory: D, path: bytes, name: bytes, listed: Attributes, content: Any) -> bool:
        """Adds a file that was read; False if it is young."""
        raise NotImplementedError

    # ---- the scan

    def run(self) -> None:
        listed = self._list(self.before)
        level: list[tuple[bytes, RuleChain | None]] = [(b"", self._rules)]
        while level:
            listed.update(self._list([path for path, _ in level if path not in listed]))
            below: list[tuple[bytes, RuleChain | None]] = []
            for path, rules in level:
                listing = listed[path]
                if isinstance(listing, OSError):
                    self.cannot_list(path, listing)
                    continue
                children, rules = self._look_at(path, listing, rules)
                below += [(child, rules) for child in children]
            level = below
        self._read()
        self.changed = self.changed or len(self.seen) != len(self.before)

    def place(self, path: bytes) -> bytes:
        """The absolute path."""
        return self.top + b"/" + path if path else self.top

    def is_settled(self, listed: Attributes, found: Attributes) -> bool:
        """Whether a later change of a file shows in its attributes; `found` are those after the read."""
        newest = max(found.mtime_ns, found.ctime_ns)
        is_coarse = found.mtime_ns % 1_000_000_000 == 0 and found.ctime_ns % 1_000_000_000 == 0
        return found == listed and newest < self._began - (self.COARSE_TICK_NS if is_coarse else self.TICK_NS)

    def _list(self, paths: Collection[bytes]) -> dict[bytes, bytes | OSError]:
        return dict(zip(paths, list_directories([self.place(path) for path in paths]), strict=True))

    def _look_at(self, path: bytes, listing: bytes, rules: RuleChain | None) -> tuple[list[bytes], RuleChain | None]:
        old = self.before.get(path)
        is_same = old is not None and old.listing == listing and not old.young
        above = rules
        if rules is not None:
            if old.has_rules if is_same and old is not None else b".gitignore\0" in listing:
                rules = self._rules_in(path, rules)
            is_same = is_same and old is not None and old.key == rules.key
        if is_same and old is not None and self.stays(path, old):
            self.seen[path] = old
            return old.children, rules
        self.changed = True
        other = self.moved(listing) if old is None and rules is None else None
        if other is not None:
            self.seen[path] = other
            return other.children, rules
        directory = self.seen[path] = self.make(path, listing, rules.key if rules is not None else b"")
        directory.has_rules = rules is not above
        self.parsed.append(directory)
        self._parse(path, directory, old, rules)
        return directory.children, rules

    def _rules_in(self, path: bytes, above: RuleChain) -> RuleChain:
        file = self.place(path) + b"/.gitignore"
        try:
            if not stat.S_ISREG(os.lstat(file).st_mode):
                return above
            with open(file, "rb") as f:
                return RuleChain(Rules(f.read()), path + b"/" if path else b"", above)
        except OSError:
            return above

    def _parse(self, above: bytes, directory: D, old: D | None, rules: RuleChain | None) -> None:
        prefix = above + b"/" if above else b""
        before = parse_listing(old.listing) if old is not None and old.listing else {}
        for name, found in parse_listing(directory.listing).items():
            kind, path = stat.S_IFMT(found.mode), prefix + name
            is_directory = kind == stat.S_IFDIR
            if not self.is_in_tree(path, name, is_directory):
                continue
            if rules is not None and (name == b".git" or rules.leaves_out(path, name, is_directory)):
                continue
            if is_directory:
                self.add_directory(directory, path, name, found)
            elif kind == stat.S_IFREG:
                was = before.get(name)
                if was is not None and old is not None and name not in old.young and self.is_same_file(was, found):
                    if self.keep_file(directory, old, name, found):
                        continue
                self._unread.append((directory, path, name, found))
            else:
                self.add_other(directory, path, name, found)

    def _read(self) -> None:
        young: dict[int, set[bytes]] = {}
        contents = self.read_files([self.place(path) for _, path, _, _ in self._unread], [listed for *_, listed in self._unread])
        for (directory, path, name, listed), content in zip(self._unread, contents, strict=True):
            if not self.add_file(directory, path, name, listed, content):
                young.setdefault(id(directory), set()).add(name)
        for directory in self.parsed:
            directory.young = frozenset(young.get(id(directory), ()))
