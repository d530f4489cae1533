"""A directory of this machine as a tree of digests. Files that have not changed since the last scan are not read again.

The scan works like git's: every file's inode, size, times and mode are compared with recorded ones, in a file of the user's cache
directory; files with equal attributes keep their digest. A file that was written just before it was read may change again within the same
tick of the file system's clock: it is read again the next time. A directory whose listing is the same, byte for byte, is not parsed.

Left out are: paths that `.gitignore` files exclude, including files above the directory up to the top of its git work tree; `.git`;
`__pycache__`; sockets, pipes and devices. Of a file's mode the executable bit is kept. Symbolic links are kept if their targets are in the
tree; a link to a file elsewhere becomes a copy of that file, any other is an error, because no host could follow it.
"""

from __future__ import annotations

import marshal
import os
import stat
from time import time_ns

from monarch._core._native.files import digest_files, list_directories
from monarch._core.sync.gitignore import RuleChain, Rules, rules_above
from monarch._core.sync.listing import parse_listing, parse_record
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from monarch._core._native.files import FileDigest
    from monarch._core.sync.listing import Attributes

# The version of the cache file's format.
_VERSION = 2
# File times come from a clock that ticks every 1 to 10 ms; some file systems keep whole seconds, or two.
_TICK_NS, _COARSE_TICK_NS = 50_000_000, 2_000_000_000
# The number of files between two checks for a cancellation.
_FILES_AT_ONCE = 256
# The number of scans of a tree that changes meanwhile.
_TRIES = 3
_NEVER_SENT = (b".git", b"__pycache__")

# The kinds of recorded names that are no files. A file has inode, size, mtime, ctime, mode and digest; a link the kind, digest or target,
# and size of the file that it replaces.
_LEFT_OUT, _LEFT_OUT_DIRECTORY, _DIRECTORY = 0, 1, 2


class SourceChanged(RuntimeError):
    """A file kept changing while it was read."""


class Tree:
    """The content of a directory when it was scanned."""

    def __init__(self, top: bytes) -> None:
        self.top = top
        self.digest = b""
        # For the digest of a directory its bytes, and one of its paths.
        self.nodes: dict[bytes, bytes] = {}
        self.places: dict[bytes, bytes] = {}
        self.files = 0

    def paths_of(self, files: list[bytes], directories: list[bytes]) -> dict[bytes, bytes]:
        """The paths of contents, in the order of the tree. `directories` are the likely places."""
        wanted = dict.fromkeys(files)
        found: dict[bytes, bytes] = {}
        for some in (directories, self.nodes):
            for digest in some:
                place = os.path.join(self.top, self.places[digest])
                for e in parse_node(self.nodes[digest]):
                    if e.digest in wanted and e.kind not in (DIRECTORY, LINK):
                        found.setdefault(e.digest, place + e.name)
            if len(found) == len(wanted):
                break
        return found


class _Directory:
    """A directory during the scan: its recorded state, and its present state."""

    __slots__ = ("children", "digest", "found", "has_rules", "known", "links", "listing", "node", "old", "rel", "rules", "same")

    def __init__(self, rel: bytes, rules: RuleChain, old: tuple[Any, ...] | None, listing: bytes) -> None:
        self.rel = rel
        self.rules = rules
        self.listing = listing
        self.has_rules = False
        self.old = old
        self.known: dict[bytes, Any] = {}
        self.found: dict[bytes, Any] = {}
        self.children: list[bytes] = []
        self.links: list[bytes] = []
        # True if the directory equals its record. The content of its subdirectories may still differ.
        self.same = False
        self.node = self.digest = b""


class Scan:
    """One scan of a tree: level by level, then the new contents, then the nodes from the lowest level up."""

    def __init__(self, top: bytes, remembered: dict[bytes, tuple[Any, ...]], stopped: Callable[[], bool] = lambda: False) -> None:
        self.top = top
        self.tree = Tree(top)
        self.old = remembered
        self.new: dict[bytes, tuple[Any, ...]] = {}
        self.began = time_ns()
        self.changed = False
        self.stopped = stopped
        self.real_top = os.path.realpath(top)
        # Files to read, and their directories.
        self.unread: list[tuple[_Directory, bytes]] = []

    def run(self) -> Tree:
        listed = self._list(list(self.old))
        levels: list[list[_Directory]] = []
        level = [(b"", rules_above(self.top))]
        while level:
            self._check()
            listed.update(self._list([rel for rel, _ in level if rel not in listed]))
            levels.append([self._look_at(rel, rules, listed[rel]) for rel, rules in level])
            level = [(d.rel + name + b"/", d.rules) for d in levels[-1] for name in d.children]
        self._read()
        digests: dict[bytes, bytes] = {}
        for directories in reversed(levels):
            for directory in directories:
                digests[directory.rel] = self._pack(directory, digests)
        # The top comes first: for equal directories, contents are read from the first one.
        for directories in levels:
            for d in directories:
                self.tree.nodes[d.digest] = d.node
                self.tree.places.setdefault(d.digest, d.rel)
        self.tree.digest = digests[b""]
        self.changed = self.changed or len(self.old) != len(self.new)
        return self.tree

    def _check(self) -> None:
        if self.stopped():
            raise InterruptedError("the sync was cancelled")

    def _list(self, rels: list[bytes]) -> dict[bytes, bytes | OSError]:
        # The top itself may be a link.
        return dict(zip(rels, list_directories([os.path.join(self.real_top, rel) if rel else self.real_top for rel in rels]), strict=True))

    def _look_at(self, rel: bytes, rules: RuleChain, listing: bytes | OSError) -> _Directory:
        """Finds the parts of a directory that have to be read."""
        if isinstance(listing, OSError):
            raise listing
        old = self.old.get(rel)
        d = _Directory(rel, rules, old, listing)
        unchanged = old is not None and old[3] == listing
        d.has_rules = old[7] if unchanged and old is not None else _has_rules(listing)
        if d.has_rules:
            with open(os.path.join(self.top, rel, b".gitignore"), "rb") as f:
                d.rules = rules = RuleChain(Rules(f.read()), rel, rules)
        if old is not None and old[0] == rules.key:
            d.known = old[4]
            if unchanged:
                d.found, d.children, d.links, d.same = d.known, old[5], old[6], True
                if d.links:
                    # The target of a link may have changed even if the link has not.
                    d.found = {**d.known, **{name: self._link(rel, name) for name in d.links}}
                    d.same = d.found == d.known
                return d
        for name, found in parse_listing(listing).items():
            self._look(d, name, found)
        d.same = old is not None and old[0] == rules.key and d.found == d.known
        return d

    def _look(self, d: _Directory, name: bytes, found: Attributes) -> None:
        """Handles one name of a directory that has changed."""
        kind = stat.S_IFMT(found.mode)
        is_directory = kind == stat.S_IFDIR
        k: Any = d.known.get(name)
        if k.__class__ is tuple and kind == stat.S_IFREG and k[:5] == _state(found):
            d.found[name] = k
        elif name in _NEVER_SENT or d.rules.leaves_out(d.rel + name, name, is_directory):
            d.found[name] = _LEFT_OUT_DIRECTORY if is_directory else _LEFT_OUT
        elif is_directory:
            d.found[name] = _DIRECTORY
            d.children.append(name)
        elif kind == stat.S_IFLNK:
            d.links.append(name)
            d.found[name] = self._link(d.rel, name)
        elif kind == stat.S_IFREG:
            d.found[name] = None
            self.unread.append((d, name))
        else:
            d.found[name] = _LEFT_OUT

    def _read(self) -> None:
        for at in range(0, len(self.unread), _FILES_AT_ONCE):
            self._check()
            some = self.unread[at : at + _FILES_AT_ONCE]
            paths = [os.path.join(self.real_top, d.rel, name) for d, name in some]
            for (d, name), path, read in zip(some, paths, digest_files(paths), strict=True):
                found, digest = _content(path, read)
                newest = max(found.mtime_ns, found.ctime_ns)
                tick = _COARSE_TICK_NS if found.mtime_ns % 1_000_000_000 == 0 else _TICK_NS
                state = _state(found)
                if newest >= self.began - tick:
                    # The file may change again within the same tick: this listing proves nothing.
                    state = (-1, *state[1:])
                    d.listing = b""
                d.found[name] = (*state, digest)
                d.same = False

    def _pack(self, d: _Directory, digests: dict[bytes, bytes]) -> bytes:
        """The digest of a directory, once the digests below it are known."""
        children = {name: digests[d.rel + name + b"/"] for name in d.children}
        if d.same and d.old is not None:
            d.digest, d.node = d.old[1], d.old[2]
            d.same = not children or _directories(d.node) == children
        if not d.same:
            d.node = _pack(d.found, children)
            d.digest = digest_of(d.node)
        if not d.same or (d.old is not None and d.old[3] != d.listing):
            self.changed = True
        self.new[d.rel] = (d.rules.key, d.digest, d.node, d.listing, d.found, d.children, d.links, d.has_rules)
        self.tree.files += sum(k.__class__ is tuple for k in d.found.values())
        return d.digest

    def _link(self, rel: bytes, name: bytes) -> tuple[Any, ...]:
        path = os.path.join(self.top, rel, name)
        target = os.readlink(path)
        real = os.path.realpath(path)
        inside = real == self.real_top or real.startswith(self.real_top + b"/")
        directory = rel.rstrip(b"/")
        if not target.startswith(b"/") and stays_within(directory, target) and (inside or not os.path.exists(real)):
            return (LINK, target, 0)
        if inside and os.path.exists(real):
            here = os.path.join(self.real_top, directory)
            return (LINK, os.path.relpath(real, here), 0)
        if os.path.isfile(real):
            found, digest = _content(real, digest_files([real])[0])
            return (EXECUTABLE if found.mode & stat.S_IXUSR else FILE, digest, found.size)
        what = "a directory outside" if os.path.isdir(real) else "what is not there"
        raise ValueError(
            f"symbolic link {os.fsdecode(path)} leads to {what} ({os.fsdecode(target)}): hosts could not follow it. "
            "Leave it out by .gitignore, or name its target as a directory of the workspace"
        )


def _pack(found: dict[bytes, Any], children: dict[bytes, bytes]) -> bytes:
    entries: list[Entry] = []
    for name, k in found.items():
        if k == _DIRECTORY:
            entries.append(Entry(DIRECTORY, name, 0, children[name]))
        elif type(k) is int:
            continue
        elif len(k) == 6:
            entries.append(Entry(EXECUTABLE if k[4] & stat.S_IXUSR else FILE, name, k[1], k[5]))
        else:
            entries.append(Entry(k[0], name, k[2], k[1]))
    return pack_node(entries)


def _directories(node: bytes) -> dict[bytes, bytes]:
    return {e.name: e.digest for e in parse_node(node) if e.kind == DIRECTORY}


def _has_rules(listing: bytes) -> bool:
    found = parse_listing(listing).get(b".gitignore")
    return found is not None and stat.S_ISREG(found.mode)


def _state(found: Attributes) -> tuple[int, int, int, int, int]:
    return found.inode, found.size, found.mtime_ns, found.ctime_ns, found.mode


def _content(path: bytes, read: FileDigest | OSError) -> tuple[Attributes, bytes]:
    """The attributes of a file when it was read, and the digest of its content."""
    if isinstance(read, OSError):
        raise read
    if not read.settled:
        raise SourceChanged(f"{os.fsdecode(path)} changes while it is read")
    return parse_record(read.record), read.digests[:DIGEST]


# ---- the cache


def cache_file(top: bytes) -> bytes:
    """The cache file for the digests of a directory's files, in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.fsencode(os.path.join(base, "monarch", "workspace", digest_of(top).hex()))


def scan(top: bytes, stopped: Callable[[], bool] = lambda: False) -> Tree:
    """Scans a directory; `NotADirectoryError` or another `OSError` if that is impossible."""
    file = cache_file(top)
    remembered = _load(file, top)
    looked = Scan(top, remembered, stopped)
    for left in reversed(range(_TRIES)):
        try:
            looked.run()
            break
        except FileNotFoundError as e:  # the file was removed after it was listed
            if not left or not os.path.isdir(top):
                raise SourceChanged(f"{os.fsdecode(e.filename)} went while it was looked at") from None
            looked = Scan(top, remembered, stopped)
    if looked.changed:
        _save(file, top, looked.new)
    return looked.tree


def _load(file: bytes, top: bytes) -> dict[bytes, tuple[Any, ...]]:
    try:
        with open(file, "rb") as f:
            if os.fstat(f.fileno()).st_uid != os.geteuid():
                return {}
            data = f.read()
        if len(data) < 16 or digest_of(data[DIGEST:]) != data[:DIGEST]:
            return {}
        version, whose, found = marshal.loads(data[DIGEST:])
    except (OSError, ValueError, EOFError, TypeError):
        return {}
    return found if version == _VERSION and whose == top else {}


def _save(file: bytes, top: bytes, found: dict[bytes, tuple[Any, ...]]) -> None:
    """Writes the cache. A failure only costs time."""
    body = marshal.dumps((_VERSION, top, found))
    temporary = b"%s.%d" % (file, os.getpid())
    try:
        os.makedirs(os.path.dirname(file), 0o700, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as f:
                f.write(digest_of(body) + body)
            os.rename(temporary, file)
        except OSError:
            os.unlink(temporary)
    except OSError:
        return


# ---- a copy on this machine


def copy_tree(top: bytes, out: bytes) -> None:
    """Copies a directory, with the content that hosts would get."""
    from shutil import copyfile

    tree = Scan(top, {}).run()

    def copy(digest: bytes, rel: bytes) -> None:
        os.makedirs(os.path.join(out, rel), exist_ok=True)
        for e in parse_node(tree.nodes[digest]):
            place = os.path.join(out, rel, e.name)
            if e.kind == DIRECTORY:
                copy(e.digest, os.path.join(rel, e.name))
                continue
            if os.path.lexists(place):
                os.unlink(place)
            if e.kind == LINK:
                os.symlink(e.digest, place)
            else:
                copyfile(os.path.join(top, rel, e.name), place)
                os.chmod(place, 0o755 if e.kind == EXECUTABLE else 0o644)

    copy(tree.digest, b"")
