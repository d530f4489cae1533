"""A host's copy of a directory, switched from one content to the next in one step.

`WORKSPACE_DIR/{place}` is a symbolic link to one of two trees below `WORKSPACE_DIR/.monarch/{place}`. A sync builds the new state of the
source in the other tree, from that tree's old content, from the tree in use (by hard links) and from received data, and then replaces the
link: a process that reads through the link sees the old tree or the new one. The previous tree stays as the base of the next sync. So an
edit costs its changes and not a link for each of thirty thousand files; the previous tree holds no other data than later changes.

Each tree has a description beside it: the bytes of its directories, and inode, mtime and size of each file. A tree is compared with its
description before it is used as a base, so changes made on the host by hand are reverted. The description is removed while a tree is being
changed, and a tree without one is built from nothing. Received content is kept in one file without a name, which the kernel removes with
the process.
"""

from __future__ import annotations

import fcntl
import marshal
import os
from contextlib import contextmanager

from monarch._core._native.files import Blake3
from monarch._core.process.identity import new_uid
from monarch._core.sync.node import DIGEST, DIRECTORY, EXECUTABLE, FILE, LINK, MalformedTree, digest_of, parse_node, stays_within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from monarch._core.sync.node import Entry

    # The seen state of a name: for a file inode, mtime and size; for a link its target; for a directory None.
    _Seen = dict[bytes, tuple[int, int, int] | bytes | None]

HOME = b".monarch"
_NAMES = (b"a", b"b")
_VERSION = 1
_COPY = 1 << 24
_CACHES = b"__pycache__"
# The number of contents up to which each is searched for separately.
_FEW = 32


class Lost(Exception):
    """A content that was here is missing."""


class Described:
    """A tree on the disk with its description. Keys of `directories` are paths relative to the top, with a slash at their end.

    The entry of a directory is its digest, its bytes, the seen state of its names, and its own mtime.
    """

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.digest = b""
        self.directories: dict[bytes, tuple[bytes, bytes, _Seen, int]] = {}
        # Directories that differ from the description, and those above them.
        self.astray: set[bytes] = set()
        self.by_digest: dict[bytes, bytes] = {}
        self._entries: dict[bytes, dict[bytes, Entry]] = {}
        self._searches = 0
        self._contents: dict[tuple[bytes, bytes], tuple[bytes, bytes]] | None = None

    @staticmethod
    def load(path: bytes) -> Described:
        """Loads the description of a tree. A tree without one has an empty description."""
        found = Described(path)
        try:
            with open(path + b".tree", "rb") as f:
                version, digest, directories = marshal.loads(f.read())
        except (OSError, ValueError, EOFError, TypeError):
            return found
        if version == _VERSION:
            found.digest, found.directories = digest, directories
            found.by_digest = {d[0]: rel for rel, d in directories.items()}
        return found

    def save(self) -> None:
        temporary = self.path + b".tree.new"
        try:
            with open(temporary, "wb") as f:
                f.write(marshal.dumps((_VERSION, self.digest, self.directories)))
        except OSError as e:
            e.filename = os.fsdecode(temporary)
            os.unlink(temporary)
            raise
        os.rename(temporary, self.path + b".tree")

    def verify(self, other: Described | None = None) -> None:
        """Compares every name, link, and file's inode, mtime and size with the description.

        A file that shares its inode with a verified file of `other` is not checked again.
        """
        for rel, (_, _, seen, mtime) in self.directories.items():
            if other is None:
                good = self._is_as_described(rel, seen)
            else:
                good = rel not in other.astray and self._is_like(rel, seen, mtime, other)
            if not good:
                self._stray(rel)

    def _stray(self, rel: bytes) -> None:
        while rel not in self.astray:
            self.astray.add(rel)
            rel = rel[: rel.rstrip(b"/").rfind(b"/") + 1]

    def _is_like(self, rel: bytes, seen: _Seen, mtime: int, other: Described) -> bool:
        try:
            same_names = os.lstat(os.path.join(self.path, rel)).st_mtime_ns == mtime
        except OSError:
            return False
        theirs = other.directories.get(rel)
        if not same_names or theirs is None:
            return self._is_as_described(rel, seen)
        if theirs[2] == seen:
            return True
        return all(type(k) is not tuple or theirs[2].get(name) == k or self.holds(rel, name) for name, k in seen.items())

    def _is_as_described(self, rel: bytes, seen: _Seen) -> bool:
        count = 0
        try:
            with os.scandir(os.path.join(self.path, rel)) as it:
                for e in it:
                    name = e.name
                    known = seen.get(name, 0)
                    if type(known) is tuple:
                        st = e.stat(follow_symlinks=False)
                        if (st.st_ino, st.st_mtime_ns, st.st_size) != known:
                            return False
                    elif known is None:
                        if not e.is_dir(follow_symlinks=False):
                            return False
                    elif known == 0:
                        if name == _CACHES:
                            continue
                        return False
                    elif not e.is_symlink() or os.readlink(e.path) != known:
                        return False
                    count += 1
        except OSError:
            return False
        return count == len(seen)

    def holds(self, rel: bytes, name: bytes) -> bool:
        """Whether a file matches its description."""
        directory = self.directories.get(rel)
        known = None if directory is None else directory[2].get(name)
        if type(known) is not tuple:
            return False
        try:
            st = os.lstat(os.path.join(self.path, rel, name))
        except OSError:
            return False
        return (st.st_ino, st.st_mtime_ns, st.st_size) == known

    def entries(self, rel: bytes) -> dict[bytes, Entry]:
        found = self._entries.get(rel)
        if found is None:
            directory = self.directories.get(rel)
            found = self._entries[rel] = {} if directory is None else {e.name: e for e in parse_node(directory[1])}
        return found

    def keeps(self, rel: bytes, entry: Entry) -> bool:
        """Whether exactly this file is at its place."""
        return self.entries(rel).get(entry.name) == entry and self.holds(rel, entry.name)

    def place_of(self, rel: bytes, entry: Entry) -> bytes | None:
        """The path of a content in this tree; its own place is checked first."""
        if self.keeps(rel, entry):
            return rel + entry.name
        for kind in (FILE, EXECUTABLE) if entry.kind == FILE else (EXECUTABLE, FILE):
            found = self._place_of_content(kind, entry.digest)
            if found is not None and self.holds(*found):
                return found[0] + found[1]
        return None

    def _place_of_content(self, kind: bytes, digest: bytes) -> tuple[bytes, bytes] | None:
        contents = self._contents
        if contents is None:
            self._searches += 1
            if self._searches <= _FEW:
                # A search through all bytes takes a millisecond; parsing them for an index takes fifty.
                for rel, directory in self.directories.items():
                    if digest in directory[1]:
                        for e in self.entries(rel).values():
                            if e.kind == kind and e.digest == digest:
                                return rel, e.name
                return None
            contents = self._contents = {}
            for rel in self.directories:
                for e in self.entries(rel).values():
                    if e.kind in (FILE, EXECUTABLE):
                        contents.setdefault((e.kind, e.digest), (rel, e.name))
        return contents.get((kind, digest))


class Mirror:
    """The copy of one directory on this host, for the time of one sync."""

    def __init__(self, workspace: str, place: str) -> None:
        self.workspace = os.fsencode(workspace)
        self.link = os.path.join(self.workspace, os.fsencode(place))
        self.home = os.path.join(self.workspace, HOME, os.fsencode(place).replace(b"%", b"%25").replace(b"/", b"%2F"))
        # The received data: directories by digest; for contents their position in the pack, and their size.
        self.nodes: dict[bytes, bytes] = {}
        self.contents: dict[bytes, tuple[int, int]] = {}
        self.pieces: dict[bytes, tuple[Any, int, int]] = {}
        self.pack_end = 0
        os.makedirs(self.workspace, 0o700, exist_ok=True)
        os.makedirs(self.home, 0o755, exist_ok=True)
        self.pack = _unnamed_file(self.home)
        self.distrusted: set[bytes] = set()
        with self._locked():
            self._load()

    def close(self) -> None:
        if self.pack >= 0:
            os.close(self.pack)
            self.pack = -1

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Lets one sync at a time read or change the trees. The kernel releases the lock if the process ends."""
        fd = os.open(os.path.join(self.home, b"lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _load(self) -> None:
        self.used_name = self._used()
        self.used = Described(b"") if self.used_name is None else Described.load(os.path.join(self.home, self.used_name))
        self.spare = Described.load(os.path.join(self.home, _NAMES[1] if self.used_name == _NAMES[0] else _NAMES[0]))
        self.loaded = self._stamp()
        self.used.verify()
        self.spare.verify(self.used)

    def _stamp(self) -> tuple[Any, ...]:
        """A stamp of the mirror that changes with every sync."""
        found: list[Any] = [self._used()]
        for name in _NAMES:
            try:
                st = os.stat(os.path.join(self.home, name + b".tree"))
            except OSError:
                found.append(None)
            else:
                found.append((st.st_ino, st.st_mtime_ns, st.st_size))
        return tuple(found)

    def _used(self) -> bytes | None:
        """The tree that the link leads to; None if there is no link yet."""
        try:
            target = os.readlink(self.link)
        except FileNotFoundError:
            return None
        except OSError:
            raise FileExistsError(f"{os.fsdecode(self.link)} is there and was not made by sync_workspace: move it away") from None
        home, name = os.path.split(os.path.normpath(os.path.join(os.path.dirname(self.link), target)))
        if home != os.path.normpath(self.home) or name not in _NAMES:
            raise FileExistsError(f"{os.fsdecode(self.link)} is a link that was not made by sync_workspace: move it away")
        return name if os.path.isdir(os.path.join(home, name)) else None

    # ---- receiving

    def receive_nodes(self, nodes: list[bytes]) -> None:
        for node in nodes:
            parse_node(node)  # malformed nodes are refused here
            self.nodes[digest_of(node)] = node

    def receive(self, contents: list[bytes]) -> None:
        """Receives whole files."""
        for data in contents:
            digest = digest_of(data)
            if digest not in self.contents:
                self.contents[digest] = (self._append(data), len(data))

    def receive_piece(self, digest: bytes, offset: int, data: bytes, is_last: bool) -> None:
        """Receives a piece of a file. Pieces come in order."""
        if offset == 0:
            self.pieces[digest] = (Blake3(), self.pack_end, 0)
        h, start, size = self.pieces[digest]
        if offset != size:
            raise MalformedTree(f"a piece at {offset} of a file of which {size} bytes are there")
        # Pieces of several files may arrive in turn, but each file has to be contiguous in the pack.
        if start + size != self.pack_end:
            raise MalformedTree("pieces of two files are mixed")
        h.update(data)
        self._append(data)
        self.pieces[digest] = (h, start, size + len(data))
        if is_last:
            del self.pieces[digest]
            if h.digest()[:DIGEST] != digest:
                raise MalformedTree("a file is not what its digest says")
            self.contents[digest] = (start, size + len(data))

    def _append(self, data: bytes) -> int:
        at = self.pack_end
        view = memoryview(data)
        try:
            while view:
                n = os.pwrite(self.pack, view, self.pack_end)
                self.pack_end += n
                view = view[n:]
        except OSError as e:
            e.filename = os.fsdecode(self.home)
            raise
        return at

    # ---- what is missing

    def missing(self, top: bytes) -> tuple[list[bytes], list[bytes]]:
        """The digests that the tree needs and this host lacks: of directories, and if all of those are here, of files."""
        nodes: list[bytes] = []
        files: dict[bytes, None] = {}
        asked: set[bytes] = set()

        def look(digest: bytes, rel: bytes) -> None:
            for tree in (self.spare, self.used):
                described = tree.directories.get(rel)
                if described is not None and described[0] == digest and rel not in tree.astray and not self.distrusted:
                    return  # all of the content is here, at this very place
            node = self._node(digest)
            if node is None:
                if digest not in asked:
                    asked.add(digest)
                    nodes.append(digest)
                return
            for e in parse_node(node):
                if e.kind == DIRECTORY:
                    look(e.digest, rel + e.name + b"/")
                elif e.kind == LINK:
                    if not stays_within(rel, e.digest):
                        raise MalformedTree(f"symbolic link {os.fsdecode(rel + e.name)} leads out of the tree")
                elif e.digest not in self.contents and e.digest not in files and not self._has(rel, e):
                    files[e.digest] = None

        look(top, b"")
        return nodes, [] if nodes else list(files)

    def _node(self, digest: bytes) -> bytes | None:
        node = self.nodes.get(digest)
        if node is not None:
            return node
        for tree in (self.spare, self.used):
            rel = tree.by_digest.get(digest)
            if rel is not None:
                return tree.directories[rel][1]
        return None

    def _has(self, rel: bytes, e: Entry) -> bool:
        return e.digest not in self.distrusted and (self.spare.keeps(rel, e) or self.used.place_of(rel, e) is not None)

    # ---- the switch

    def commit(self, top: bytes) -> tuple[list[bytes], list[bytes]]:
        """Builds the tree and switches to it. If content is missing, it returns the missing digests and changes nothing."""
        with self._locked():
            if self._stamp() != self.loaded:
                self._load()  # another process has synced meanwhile
            nodes, files = self.missing(top)
            if nodes or files:
                return nodes, files
            if self.used.digest == top and not self.used.astray:
                return [], []
            try:
                made = _Build(self, top).run()
                made.save()
                self._switch(made.path)
            except BaseException as e:
                # The disk may be full: the unused tree is removed after any error.
                _remove(self.spare.path)
                self.spare = Described(self.spare.path)
                self.loaded = self._stamp()
                if isinstance(e, Lost):
                    self.distrusted.add(e.args[0])
                    return self.missing(top)
                raise
            self.loaded = ()
            return [], []

    def _switch(self, path: bytes) -> None:
        parent = os.path.dirname(self.link)
        os.makedirs(parent, 0o755, exist_ok=True)
        new = os.path.join(self.home, b"link")
        if os.path.lexists(new):
            os.unlink(new)
        os.symlink(os.path.relpath(path, parent), new)
        os.rename(new, self.link)


class _Build:
    """Builds the wanted content in the spare tree."""

    def __init__(self, mirror: Mirror, top: bytes) -> None:
        self.mirror = mirror
        self.spare = mirror.spare
        self.used = mirror.used
        self.top = top
        self.made = Described(mirror.spare.path)

    def run(self) -> Described:
        path = self.spare.path
        description = path + b".tree"
        if os.path.lexists(description):
            os.unlink(description)
        if not self.spare.directories:
            _remove(path)
        os.makedirs(path, 0o755, exist_ok=True)
        self._directory(self.top, b"")
        self.made.digest = self.top
        return self.made

    def _directory(self, digest: bytes, rel: bytes) -> None:
        was = self.spare.directories.get(rel)
        if was is not None and was[0] == digest and rel not in self.spare.astray:
            self._keep(rel)
            return
        node = self.mirror._node(digest)
        assert node is not None
        path = os.path.join(self.spare.path, rel)
        seen_before: _Seen = was[2] if was is not None else {}
        with os.scandir(path) as it:
            there = {e.name: e.is_dir(follow_symlinks=False) for e in it}
        wanted = parse_node(node)
        names = {e.name for e in wanted}
        for name, is_directory in there.items():
            if name not in names and name != _CACHES:
                _remove(path + name) if is_directory else os.unlink(path + name)
        seen: _Seen = {}
        for e in wanted:
            place = path + e.name
            is_directory = there.get(e.name)
            if e.kind == DIRECTORY:
                if is_directory is False:
                    os.unlink(place)
                if is_directory is not True:
                    os.mkdir(place, 0o755)
                seen[e.name] = None
                self._directory(e.digest, rel + e.name + b"/")
                continue
            if e.kind != LINK and is_directory is False and self.spare.keeps(rel, e):
                seen[e.name] = seen_before[e.name]
                continue
            if is_directory:
                _remove(place)
            elif is_directory is False:
                os.unlink(place)
            if e.kind == LINK:
                os.symlink(e.digest, place)
                seen[e.name] = e.digest
            else:
                seen[e.name] = self._file(rel, e, place)
                if e.name.endswith(b".py"):
                    _forget_compiled(path, e.name)
        self.made.directories[rel] = (digest, node, seen, os.lstat(path).st_mtime_ns)

    def _keep(self, top: bytes) -> None:
        """Keeps a correct directory, with all its content."""
        directories = self.spare.directories
        found = directories[top]
        self.made.directories[top] = found
        for name, seen in found[2].items():
            if seen is None:
                self._keep(top + name + b"/")

    def _file(self, rel: bytes, e: Entry, place: bytes) -> tuple[int, int, int]:
        source = None if e.digest in self.mirror.contents else self.used.place_of(rel, e)
        if source is not None:
            source = os.path.join(self.used.path, source)
            st = os.lstat(source)
            if bool(st.st_mode & 0o100) == (e.kind == EXECUTABLE):
                try:
                    os.link(source, place)
                    return (st.st_ino, st.st_mtime_ns, st.st_size)
                except OSError as error:  # the file system has no hard links, or this file has too many
                    del error
        if source is None and e.digest not in self.mirror.contents:
            raise Lost(e.digest)
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755 if e.kind == EXECUTABLE else 0o644)
        try:
            if source is None:
                self._copy(self.mirror.pack, *self.mirror.contents[e.digest], fd)
            else:
                other = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    self._copy(other, 0, os.fstat(other).st_size, fd)
                finally:
                    os.close(other)
            st = os.fstat(fd)
            old = self.used.directories.get(rel)
            known = None if old is None else old[2].get(e.name)
            if type(known) is tuple and known[1] // 1_000_000_000 == st.st_mtime_ns // 1_000_000_000:
                # Python treats compiled code as current if size and whole seconds agree.
                os.utime(fd, ns=(st.st_atime_ns, st.st_mtime_ns + 1_000_000_000))
                st = os.fstat(fd)
        except OSError as error:
            error.filename = error.filename or os.fsdecode(place)
            raise
        finally:
            os.close(fd)
        return (st.st_ino, st.st_mtime_ns, st.st_size)

    def _copy(self, source: int, at: int, size: int, target: int) -> None:
        end = at + size
        while at < end:
            data = os.pread(source, min(_COPY, end - at), at)
            if not data:
                raise OSError("a file has become shorter while it was copied")
            at += len(data)
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]


def _unnamed_file(directory: bytes) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # the file system does not support unnamed files
        path = os.path.join(directory, b"received-%x" % new_uid())
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)
        return fd


def _forget_compiled(directory: bytes, name: bytes) -> None:
    """Removes the files that Python compiled from an older content."""
    caches = directory + _CACHES
    start = name[:-3] + b"."
    try:
        for found in os.listdir(caches):
            if found.startswith(start):
                os.unlink(os.path.join(caches, found))
    except OSError:
        return


def _remove(path: bytes) -> None:
    """Removes a directory with all its content, if it exists."""
    from shutil import rmtree

    rmtree(path, ignore_errors=True)
