"""A host's copy of a directory, switched from one content to the next in one step.

`WORKSPACE_DIR/{place}` is a symbolic link to one of two trees below `WORKSPACE_DIR/.monarch/{place}`. A sync builds the new state of the
source in the other tree, from that tree's old content, from the tree in use (by hard links) and from received data, and then replaces the
link: a process that reads through the link sees the old tree or the new one. The previous tree stays as the base of the next sync. So an
edit costs its changes and not a link for each of thirty thousand files; the previous tree holds no other data than later changes.

Both trees are scanned before they are used, as a source is, with a record beside each: files that were changed on the host by hand are read
again, and then differ from the wanted content. The record is removed while a tree is being changed: the tree of a sync that was killed is
read as a whole, and what is right stays. Received content is kept in one file without a name, which the kernel removes with the process.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import contextmanager, suppress
from operator import itemgetter

from monarch._core._native.files import Blake3, FileDigest, list_directories
from monarch._core.process.identity import new_uid
from monarch._core.sync.node import DIGEST, DIRECTORY, EXECUTABLE, FILE, LINK, Entry, MalformedTree, digest_of, parse_node, stays_within
from monarch._core.sync.tree import CACHES, Directory, Tree, TreeScan, load, save
from monarch._core.trees.listing import parse_listing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from monarch._core.trees.listing import Attributes

HOME = b".monarch"
_NAMES = (b"a", b"b")
_COPY = 1 << 24
# The number of builds of a tree whose base is changed meanwhile.
_TRIES = 5
# The digest of what is no content of a source.
_FOREIGN = bytes(DIGEST)
# No file is arriving.
_NO_PART = (_FOREIGN, Blake3(), 0)


# Mode, inode, size and mtime of `Attributes`: hard links change the number of links and the ctime.
_identity = itemgetter(0, 5, 6, 8)


class BaseChanged(RuntimeError):
    """A file of a tree was changed by hand during a sync."""


class MirrorScan(TreeScan):
    """A scan of a tree of a mirror. Its listings are made after its files are written, so no file is young."""

    def cannot_list(self, path: bytes, error: OSError) -> None:
        if path:
            self.seen[path] = Directory(b"", b"")
            self.seen[path].below, self.seen[path].digest = b"", _FOREIGN

    def is_same_file(self, before: Attributes, found: Attributes) -> bool:
        return _identity(before) == _identity(found)

    def add_file(self, directory: Directory, path: bytes, name: bytes, listed: Attributes, content: FileDigest | OSError) -> bool:
        if isinstance(content, OSError) or not content.settled:
            directory.entries[name] = Entry(FILE, name, 0, _FOREIGN)
            return False
        return _identity(self.add_content(directory, name, content)) == _identity(listed)

    def add_other(self, directory: Directory, path: bytes, name: bytes, found: Attributes) -> None:
        is_link = stat.S_ISLNK(found.mode)
        directory.entries[name] = Entry(LINK, name, 0, os.readlink(self.place(path))) if is_link else Entry(FILE, name, 0, _FOREIGN)


class Base:
    """A tree of a mirror as it is on the disk."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        scan = MirrorScan(path, load(path + b".tree", b""))
        self.tree = scan.tree()
        # The attributes of the directory that was asked for last.
        self._parsed: tuple[bytes | None, dict[bytes, Attributes]] = None, {}
        if scan.changed and scan.seen:
            self.save()

    def save(self) -> None:
        save(self.path + b".tree", b"", self.tree.directories, b".new")

    def attributes(self, path: bytes) -> dict[bytes, Attributes]:
        """Those of the names in a directory."""
        if self._parsed[0] != path:
            found = self.tree.directories.get(path)
            self._parsed = path, {} if found is None or not found.listing else parse_listing(found.listing)
        return self._parsed[1]

    def entries(self, path: bytes) -> dict[bytes, Entry]:
        found = self.tree.directories.get(path)
        return {} if found is None else found.entries

    def has(self, path: bytes, digest: bytes) -> bool:
        """Whether a directory at this place has this content."""
        found = self.tree.directories.get(path)
        return found is not None and found.digest == digest


class Mirror:
    """The copy of one directory on this host, for the time of one sync."""

    def __init__(self, workspace: str, place: str) -> None:
        self.workspace = os.fsencode(workspace)
        self.link = os.path.join(self.workspace, os.fsencode(place))
        self.home = os.path.join(self.workspace, HOME, os.fsencode(place).replace(b"%", b"%25").replace(b"/", b"%2F"))
        # The received data: directories by digest; for contents their position in the pack, and their size.
        self.nodes: dict[bytes, bytes] = {}
        self.contents: dict[bytes, tuple[int, int]] = {}
        # The file of which parts are arriving: its digest, the digest so far, and its position in the pack.
        self.part = _NO_PART
        self.pack_end = 0
        os.makedirs(self.workspace, 0o700, exist_ok=True)
        os.makedirs(self.home, 0o755, exist_ok=True)
        self.pack = _unnamed_file(self.home)
        # The paths of contents that the tree in use has at other places than the wanted tree.
        self.elsewhere: dict[bytes, bytes] = {}
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
        used = self._used()
        other = _NAMES[1] if used == _NAMES[0] else _NAMES[0]
        # Without a link, one of the trees has no path.
        self.used, self.spare = Base(os.path.join(self.home, used or b"none")), Base(os.path.join(self.home, other))
        self.loaded = self._stamp()

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

    def receive(self, digest: bytes, offset: int, data: bytes, is_last: bool) -> None:
        """Receives a part of a file. The parts of a file come in order, and no other file between them."""
        if offset == 0:
            self.part = (digest, Blake3(), self.pack_end)
        expected, h, start = self.part
        if digest != expected or start + offset != self.pack_end:
            raise MalformedTree(f"a part at {offset} does not follow the one before")
        h.update(data)
        self._append(data)
        if is_last:
            self.part = _NO_PART
            if h.digest()[:DIGEST] != digest:
                raise MalformedTree("a file is not what its digest says")
            self.contents[digest] = (start, self.pack_end - start)

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                n = os.pwrite(self.pack, view, self.pack_end)
                self.pack_end += n
                view = view[n:]
        except OSError as e:
            e.filename = os.fsdecode(self.home)
            raise

    # ---- what is missing

    def missing(self, top: bytes) -> tuple[list[bytes], list[bytes]]:
        """The digests that the tree needs and this host lacks: of directories, and if all of those are here, of files."""
        nodes: dict[bytes, None] = {}
        files: dict[bytes, None] = {}
        self.elsewhere = {}

        def look(digest: bytes, path: bytes) -> None:
            if self.spare.has(path, digest) or self.used.has(path, digest):
                return
            node = self.node(digest)
            if node is None:
                nodes[digest] = None
                return
            spare, used = self.spare.entries(path), self.used.entries(path)
            for e in parse_node(node):
                if e.kind == DIRECTORY:
                    look(e.digest, os.path.join(path, e.name))
                elif e.kind == LINK:
                    if not stays_within(path, e.digest):
                        raise MalformedTree(f"symbolic link {os.fsdecode(os.path.join(path, e.name))} leads out of the tree")
                elif e.digest not in self.contents and e not in (spare.get(e.name), used.get(e.name)):
                    files[e.digest] = None

        look(top, b"")
        if nodes or not files:
            return list(nodes), []
        self.elsewhere = self.used.tree.paths_of(files)
        return [], [digest for digest in files if digest not in self.elsewhere]

    def node(self, digest: bytes) -> bytes | None:
        return next((nodes[digest] for nodes in (self.nodes, self.spare.tree.nodes, self.used.tree.nodes) if digest in nodes), None)

    # ---- the switch

    def commit(self, top: bytes) -> tuple[list[bytes], list[bytes]]:
        """Builds the tree and switches to it. If content is missing, it returns the missing digests and changes nothing."""
        with self._locked():
            for left in reversed(range(_TRIES)):
                if self._stamp() != self.loaded:
                    self._load()  # another process has synced meanwhile
                nodes, files = self.missing(top)
                if nodes or files:
                    return nodes, files
                if self.used.tree.digest == top:
                    return [], []
                try:
                    _Build(self, top).run()
                    self.spare.save()
                    self._switch(self.spare.path)
                    self.loaded = ()
                    return [], []
                except BaseChanged:
                    self.loaded = ()
                    if not left:
                        raise
                except BaseException:
                    # The disk may be full: the unused tree is removed after any error.
                    _remove(self.spare.path)
                    with suppress(OSError):
                        os.unlink(self.spare.path + b".tree")
                    self.loaded = ()
                    raise
            raise AssertionError("the last try returns or raises")

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
        self.made: dict[bytes, Directory] = {}
        # Of directories that are built: the expected files.
        self.built: dict[bytes, dict[bytes, tuple[int, ...]]] = {}

    def run(self) -> None:
        # A file may get the inode, the size and, where times are coarse, the time of one that the record has.
        with suppress(FileNotFoundError):
            os.unlink(self.spare.path + b".tree")
        os.makedirs(self.spare.path, 0o755, exist_ok=True)
        self._directory(self.top, b"")
        paths = list(self.built)
        for path, listing in zip(paths, list_directories([os.path.join(self.spare.path, path) for path in paths]), strict=True):
            if isinstance(listing, OSError):
                raise listing
            found = parse_listing(listing)
            for name, expected in self.built[path].items():
                if name not in found or _identity(found[name]) != expected:
                    raise _changed(os.path.join(self.spare.path, path, name))
            self.made[path].listing = listing
        self.spare.tree = Tree(self.spare.path, self.made)

    def _directory(self, digest: bytes, rel: bytes) -> None:
        if self.spare.has(rel, digest):
            self._keep(rel)
            return
        node = self.mirror.node(digest)
        assert node is not None
        made = self.made[rel] = Directory(b"", b"")
        made.node, made.digest = node, digest
        expected = self.built[rel] = {}
        path = os.path.join(self.spare.path, rel, b"")
        with os.scandir(path) as it:
            there = {e.name: e.is_dir(follow_symlinks=False) for e in it}
        kept = self.spare.entries(rel)
        wanted = made.entries.values()
        for name, is_directory in there.items():
            if name not in made.entries and name != CACHES:
                _remove(path + name) if is_directory else os.unlink(path + name)
        below: list[bytes] = []
        for e in wanted:
            place = path + e.name
            is_directory = there.get(e.name)
            if e.kind == DIRECTORY:
                if is_directory is False:
                    os.unlink(place)
                if is_directory is not True:
                    os.mkdir(place, 0o755)
                made.children.append(os.path.join(rel, e.name))
                below.append(e.digest)
                self._directory(e.digest, made.children[-1])
                continue
            if is_directory is False and kept.get(e.name) == e:
                if e.kind != LINK:
                    expected[e.name] = _identity(self.spare.attributes(rel)[e.name])
                continue
            if is_directory:
                _remove(place)
            elif is_directory is False:
                os.unlink(place)
            if e.kind == LINK:
                os.symlink(e.digest, place)
            else:
                expected[e.name] = self._file(rel, e, place)
                if CACHES in there and e.name.endswith(b".py"):
                    _forget_compiled(path, e.name)
        made.below = b"".join(below)

    def _keep(self, path: bytes) -> None:
        """Keeps a correct directory, with all its content."""
        found = self.made[path] = self.spare.tree.directories[path]
        for child in found.children:
            self._keep(child)

    def _file(self, rel: bytes, e: Entry, place: bytes) -> tuple[int, ...]:
        """Makes a file, as a hard link if the tree in use has it; its attributes."""
        source: bytes | None = None
        before = self.used.attributes(rel).get(e.name)
        if e.digest not in self.mirror.contents:
            known = self.used.entries(rel).get(e.name)
            source = os.path.join(rel, e.name) if known is not None and known.digest == e.digest else self.mirror.elsewhere.get(e.digest)
            if source is None:
                raise _changed(place)
            found = self.used.attributes(os.path.dirname(source))[os.path.basename(source)]
            source = os.path.join(self.used.path, source)
            if bool(found.mode & stat.S_IXUSR) == (e.kind == EXECUTABLE):
                try:
                    os.link(source, place)
                    return _identity(found)
                except FileNotFoundError:
                    raise _changed(source) from None
                except OSError as error:  # the file system has no hard links, or this file has too many
                    del error
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755 if e.kind == EXECUTABLE else 0o644)
        try:
            if source is None:
                self._copy(self.mirror.pack, *self.mirror.contents[e.digest], fd)
            else:
                try:
                    other = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
                except FileNotFoundError:
                    raise _changed(source) from None
                try:
                    self._copy(other, 0, os.fstat(other).st_size, fd)
                finally:
                    os.close(other)
            st = os.fstat(fd)
            if before is not None and before.mtime_ns // 1_000_000_000 == st.st_mtime_ns // 1_000_000_000:
                # Python treats compiled code as current if size and whole seconds agree.
                os.utime(fd, ns=(st.st_atime_ns, st.st_mtime_ns + 1_000_000_000))
                st = os.fstat(fd)
        except OSError as error:
            error.filename = error.filename or os.fsdecode(place)
            raise
        finally:
            os.close(fd)
        return st.st_mode, st.st_ino, st.st_size, st.st_mtime_ns

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


def _changed(path: bytes) -> BaseChanged:
    return BaseChanged(f"{os.fsdecode(path)} was changed by another program during the sync")


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
    caches = directory + CACHES
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
