"""A directory of this machine as a tree of digests. What has not changed since the last look is not read again.

The look is like git's: every file's inode, size, times and mode are compared with those remembered, in a file of the user's cache
directory; equal ones keep their digest. A file that was written just before it was read may change again within the same tick of the
file system's clock: such ones are read again the next time. The rest of the time is one `scandir` a directory and one `lstat` a file.

Left out: what `.gitignore` files say, also those above the directory up to the top of its git work tree; `.git`; `__pycache__`; sockets,
pipes and devices. Of a file's mode the executable bit is kept. Symbolic links are kept if they lead to somewhere in the tree; one that
leads to a file elsewhere becomes a copy of that file, any other is an error, because no host could follow it.
"""

from __future__ import annotations

import marshal
import os
import stat
from time import time_ns

from monarch._core.sync.gitignore import RuleChain, Rules, rules_above
from monarch._core.sync.node import (
    DIGEST,
    DIRECTORY,
    EXECUTABLE,
    FILE,
    LINK,
    Entry,
    digest_of,
    new_hash,
    pack_node,
    parse_node,
    stays_within,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Of the cache file.
_VERSION = 1
# File times come from a clock that ticks every 1 to 10 ms; some file systems keep whole seconds, or two.
_TICK_NS, _COARSE_TICK_NS = 50_000_000, 2_000_000_000
_PIECE = 1 << 20
# Reads of a file that changes meanwhile.
_TRIES = 3
_NEVER_SENT = (b".git", b"__pycache__")

# What is remembered of a name, besides the inode, size, mtime, ctime, mode and digest of a file, and kind, digest or target, and size of
# what a link stands for.
_LEFT_OUT, _LEFT_OUT_DIRECTORY, _DIRECTORY = 0, 1, 2


class SourceChanged(RuntimeError):
    """A file kept changing while it was read."""


class Tree:
    """What a directory held when it was looked at."""

    def __init__(self, top: bytes) -> None:
        self.top = top
        self.digest = b""
        # Digest of a directory to its bytes, and to a place where it is.
        self.nodes: dict[bytes, bytes] = {}
        self.places: dict[bytes, bytes] = {}
        self.files = 0

    def paths_of(self, files: list[bytes], directories: list[bytes]) -> dict[bytes, bytes]:
        """Where contents are, in the order of the tree; they are likely to be in these directories."""
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


class Scan:
    """One look at a tree."""

    def __init__(self, top: bytes, remembered: dict[bytes, tuple[Any, ...]], stopped: Callable[[], bool] = lambda: False) -> None:
        self.top = top
        self.tree = Tree(top)
        self.old = remembered
        self.new: dict[bytes, tuple[Any, ...]] = {}
        self.began = time_ns()
        self.changed = False
        self.stopped = stopped
        self.real_top = os.path.realpath(top)

    def run(self) -> Tree:
        self.tree.digest = self._directory(b"", self.top, rules_above(self.top))
        self.changed = self.changed or len(self.old) != len(self.new)
        return self.tree

    def _directory(self, rel: bytes, path: bytes, rules: RuleChain) -> bytes:
        if self.stopped():
            raise InterruptedError("the sync was cancelled")
        with os.scandir(path) as it:
            listed = {e.name: e for e in it}
        own = listed.get(b".gitignore")
        if own is not None and own.is_file(follow_symlinks=False):
            with open(own.path, "rb") as f:
                rules = RuleChain(Rules(f.read()), rel, rules)
        old = self.old.get(rel)
        known: dict[bytes, Any] = old[3] if old is not None and old[0] == rules.key else {}
        same = old is not None and old[0] == rules.key and len(known) == len(listed)
        found: dict[bytes, Any] = {}
        children: dict[bytes, bytes] = {}
        files = 0
        for name, e in listed.items():
            k: Any = known.get(name)
            if k.__class__ is tuple and len(k) == 6:
                st = e.stat(follow_symlinks=False)
                if (st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_mode) == k[:5]:
                    found[name] = k
                    files += 1
                    continue
            is_directory = e.is_dir(follow_symlinks=False)
            if type(k) is not int or (k != _LEFT_OUT) is not is_directory:
                before, k = k, self._look(e, rel, rules, is_directory)
                same = same and before == k
            found[name] = k
            if k == _DIRECTORY:
                children[name] = self._directory(rel + name + b"/", e.path, rules)
            elif type(k) is tuple:
                files += 1
        node = digest = b""
        if same and old is not None:
            digest, node = old[1], old[2]
            same = not children or _directories(node) == children
        if not same:
            node = _pack(found, children)
            digest = digest_of(node)
            self.changed = True
        self.new[rel] = (rules.key, digest, node, found)
        self.tree.files += files
        self.tree.nodes[digest] = node
        self.tree.places.setdefault(digest, rel)
        return digest

    def _look(self, e: os.DirEntry[bytes], rel: bytes, rules: RuleChain, is_directory: bool) -> Any:
        """What a name is that is new, or not what it was."""
        if e.name in _NEVER_SENT or rules.leaves_out(rel + e.name, e.name, is_directory):
            return _LEFT_OUT_DIRECTORY if is_directory else _LEFT_OUT
        if is_directory:
            return _DIRECTORY
        if e.is_symlink():
            return self._link(e, rel)
        return self._file(e.path) if e.is_file(follow_symlinks=False) else _LEFT_OUT

    def _file(self, path: bytes) -> tuple[Any, ...]:
        st, digest = _read_digest(path)
        newest = max(st.st_mtime_ns, st.st_ctime_ns)
        tick = _COARSE_TICK_NS if st.st_mtime_ns % 1_000_000_000 == 0 else _TICK_NS
        inode = st.st_ino if newest < self.began - tick else -1
        return (inode, st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_mode, digest)

    def _link(self, e: os.DirEntry[bytes], rel: bytes) -> tuple[Any, ...]:
        target = os.readlink(e.path)
        real = os.path.realpath(e.path)
        inside = real == self.real_top or real.startswith(self.real_top + b"/")
        directory = rel.rstrip(b"/")
        if not target.startswith(b"/") and stays_within(directory, target) and (inside or not os.path.exists(real)):
            return (LINK, target, 0)
        if inside and os.path.exists(real):
            here = os.path.join(self.real_top, directory)
            return (LINK, os.path.relpath(real, here), 0)
        if os.path.isfile(real):
            st, digest = _read_digest(real)
            return (EXECUTABLE if st.st_mode & stat.S_IXUSR else FILE, digest, st.st_size)
        what = "a directory outside" if os.path.isdir(real) else "what is not there"
        raise ValueError(
            f"symbolic link {os.fsdecode(e.path)} leads to {what} ({os.fsdecode(target)}): hosts could not follow it. "
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


def _read_digest(path: bytes) -> tuple[os.stat_result, bytes]:
    """Digest of a file's content, and what the file was like; read again if it changes meanwhile."""
    for _ in range(_TRIES):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            before = os.fstat(fd)
            data = os.read(fd, _PIECE)
            if len(data) < _PIECE:
                digest = digest_of(data)
            else:
                h = new_hash()
                while data:
                    h.update(data)
                    data = os.read(fd, _PIECE)
                digest = h.digest()
            after = os.fstat(fd)
        finally:
            os.close(fd)
        if (before.st_size, before.st_mtime_ns, before.st_ctime_ns) == (after.st_size, after.st_mtime_ns, after.st_ctime_ns):
            return after, digest
    raise SourceChanged(f"{os.fsdecode(path)} changes while it is read")


# ---- what is remembered


def cache_file(top: bytes) -> bytes:
    """Where the digests of a directory's files are kept, in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.fsencode(os.path.join(base, "monarch", "workspace", digest_of(top).hex()))


def scan(top: bytes, stopped: Callable[[], bool] = lambda: False) -> Tree:
    """Looks at a directory; `NotADirectoryError` or what else the system says if that cannot be done."""
    file = cache_file(top)
    remembered = _load(file, top)
    looked = Scan(top, remembered, stopped)
    for left in reversed(range(_TRIES)):
        try:
            looked.run()
            break
        except FileNotFoundError as e:  # between its name and the look at it
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
    """A cache that cannot be written costs time, nothing else."""
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
    """Copies a directory, as hosts would get it."""
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
