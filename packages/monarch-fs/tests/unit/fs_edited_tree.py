"""A tree that a test edits, the chunks of its files, and a client that caches answers of a mounted tree as the kernel does."""

from __future__ import annotations

import errno
import stat
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any

from fs_table_builder import build_table

from monarch.extension.directory_tree import blake3
from monarch.fs._daemon.mounted_tree import MountedTree
from monarch.fs._tree.node import PIECE_BYTES, WHOLE_BYTES, ZERO_ID, Kind, Node
from monarch.fs._tree.operations import ROOT, Attr
from monarch.fs._tree.table import Table

INFINITE = float("inf")
NAMES = [b"a", b"b", b"c", b"d", b"\xff"]


class Chunks:
    """A `ChunkSource`: chunks in memory, of which some are elsewhere or cannot be had."""

    def __init__(self) -> None:
        self.contents: dict[bytes, bytes] = {}
        self.elsewhere: set[bytes] = set()
        self.failures: dict[bytes, OSError] = {}
        # Requests that were started and not yet awaited.
        self.started = self.most_started = 0

    def put(self, data: bytes) -> bytes:
        """The identities of the chunks of a file with this content."""
        size = len(data) if len(data) <= WHOLE_BYTES else PIECE_BYTES
        ids: list[bytes] = []
        for start in range(0, len(data), size or 1):
            piece = data[start : start + size]
            ids.append(blake3(piece) if any(piece) else ZERO_ID)
            self.contents[ids[-1]] = piece
        return b"".join(ids)

    def local(self, id: bytes, offset: int, size: int) -> bytes | None:
        if id in self.elsewhere or id in self.failures:
            return None
        return self.contents[id][offset : offset + size]

    def fetch(self, id: bytes, offset: int, size: int) -> Coroutine[Any, Any, bytes]:
        self.started += 1
        self.most_started = max(self.most_started, self.started)
        return self._fetched(id, offset, size)

    async def _fetched(self, id: bytes, offset: int, size: int) -> bytes:
        self.started -= 1
        if id in self.failures:
            raise self.failures[id]
        return self.contents[id][offset : offset + size]


def answer(coroutine: Coroutine[Any, Any, bytes | memoryview]) -> bytes:
    """The result of a read that does not wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return bytes(end.value)
    raise AssertionError("the read waits")


class EditedTree:
    """Nodes by a number of their own, and the paths of each."""

    def __init__(self, chunks: Chunks) -> None:
        self.chunks = chunks
        self.nodes: dict[int, Node] = {0: Node(Kind.DIRECTORY, 0o755, 7, 8, 0, 1)}
        self.paths: dict[bytes, int] = {b"": 0}
        self.clock = 1

    def table(self) -> Table:
        first: dict[int, bytes] = {}
        nodes: dict[bytes, Node | bytes] = {}
        for path in sorted(self.paths):
            number = self.paths[path]
            nodes[path] = first[number] if number in first else self.nodes[number]
            first.setdefault(number, path)
        return build_table(nodes)

    def add(self, path: bytes, node: Node) -> None:
        number = len(self.nodes)
        self.nodes[number], self.paths[path] = node, number

    def directory(self, path: bytes, mtime_ns: int = 1) -> None:
        self.add(path, Node(Kind.DIRECTORY, 0o755, 7, 8, 0, mtime_ns))

    def file(self, path: bytes, data: bytes, **fields: Any) -> None:
        fields = {"mode": 0o644, "uid": 7, "gid": 8, "mtime_ns": 1, **fields}
        self.add(path, Node(Kind.FILE, size=len(data), chunks=self.chunks.put(data), **fields))

    def link(self, path: bytes, target: bytes) -> None:
        self.add(path, Node(Kind.SYMLINK, 0o777, 7, 8, len(target), 1, target=target))

    def hard_link(self, path: bytes, of: bytes) -> None:
        self.paths[path] = self.paths[of]

    def remove(self, path: bytes) -> None:
        for one in [one for one in self.paths if one == path or one.startswith(path + b"/")]:
            del self.paths[one]

    def rename(self, path: bytes, to: bytes) -> None:
        moved = {to + one[len(path) :]: n for one, n in self.paths.items() if one == path or one.startswith(path + b"/")}
        self.remove(path)
        self.remove(to)
        self.paths.update(moved)

    def alter(self, path: bytes, **fields: Any) -> None:
        number = self.paths[path]
        self.nodes[number] = self.nodes[number]._replace(**fields)

    def edit(self, random: Random) -> None:
        """One random edit. Times of directories change in half of the cases, as if a tool restored the others."""
        self.clock += 1
        directories = [path for path, number in self.paths.items() if self.nodes[number].kind is Kind.DIRECTORY]
        parent = random.choice(directories)
        path = (parent + b"/" if parent else b"") + random.choice(NAMES)
        others = [one for one in self.paths if one]
        other = random.choice(others) if others else b""
        inside = other == path or path.startswith(other + b"/") or other.startswith(path + b"/")
        match random.randrange(8):
            case 0 | 1:
                self.remove(path)
                self.file(path, random.choice([b"", b"one", b"two", bytes(9), random.randbytes(20)]), mtime_ns=self.clock)
            case 2:
                self.remove(path)
                self.directory(path, self.clock)
            case 3:
                self.remove(path)
                self.link(path, random.choice(NAMES))
            case 4 if other:
                self.remove(other)
            case 5 if other:
                self.alter(other, mode=random.choice([0o600, 0o700, 0o755]), mtime_ns=self.clock)
            case 6 if other and not inside:
                self.rename(other, path)
            case 7 if other and not inside and self.nodes[self.paths[other]].kind is Kind.FILE:
                self.remove(path)
                self.hard_link(path, other)
            case _:
                return
        if parent in self.paths and self.nodes[self.paths[parent]].kind is Kind.DIRECTORY and random.random() < 0.5:
            self.alter(parent, mtime_ns=self.clock)


class Kernel:
    """Caches names, attributes and listings by the validity that they came with, and counts references."""

    def __init__(self, tree: MountedTree) -> None:
        self.tree = tree
        self.names: dict[tuple[int, bytes], int | None] = {}
        self.attrs: dict[int, Attr] = {}
        self.listings: dict[int, tuple[int, list[bytes]]] = {}
        self.references: dict[int, int] = {}

    def lookup(self, parent: int, name: bytes) -> int | None:
        if (parent, name) in self.names:
            return self.names[parent, name]
        entry = self.tree.lookup(parent, name)
        inode = None if entry.attr is None else self.taken(entry.attr)
        if entry.valid:
            assert entry.valid == INFINITE
            self.names[parent, name] = inode
        return inode

    def taken(self, attr: Attr) -> int:
        self.references[attr.inode] = self.references.get(attr.inode, 0) + 1
        if attr.valid:
            self.attrs[attr.inode] = attr
        else:
            self.attrs.pop(attr.inode, None)
        return attr.inode

    def stat(self, inode: int) -> Attr:
        if inode not in self.attrs:
            found = self.tree.attr(inode)
            if not found.valid:
                return found
            self.attrs[inode] = found
        return self.attrs[inode]

    def walk(self, path: bytes, start: int = ROOT) -> int | None:
        inode: int | None = start
        for name in path.split(b"/") if path else []:
            if inode is None or not stat.S_ISDIR(self.stat(inode).mode):
                return None
            inode = self.lookup(inode, name)
        return inode

    def listdir(self, inode: int) -> list[bytes]:
        mtime = self.stat(inode).mtime_ns
        if inode in self.listings and self.listings[inode][0] == mtime:
            return self.listings[inode][1]
        names: list[bytes] = []
        for entry in self.tree.readdir(inode, 0):
            assert entry.attr is not None
            names.append(entry.name)
            child = self.taken(entry.attr)
            if entry.valid:
                self.names[inode, entry.name] = child
            else:
                self.names.pop((inode, entry.name), None)
        self.listings[inode] = (mtime, sorted(names))
        return self.listings[inode][1]

    def invalidate(self, entries: Sequence[tuple[int, bytes]], inodes: Sequence[int]) -> None:
        for parent, name in entries:
            self.names.pop((parent, name), None)
            self.listings.pop(parent, None)
        for inode in inodes:
            self.attrs.pop(inode, None)
            self.listings.pop(inode, None)

    def evict(self, held: set[int], random: Random) -> None:
        """Drops caches at random, and forgets inodes that nothing refers to."""
        for key in [key for key in self.names if random.random() < 0.3]:
            del self.names[key]
        used = held | {ROOT} | {inode for inode in self.names.values() if inode is not None} | {parent for parent, _ in self.names}
        for inode in [inode for inode in self.references if inode not in used]:
            self.tree.forget(inode, self.references.pop(inode))
            self.attrs.pop(inode, None)
            self.listings.pop(inode, None)

    def read(self, inode: int, size: int = 1 << 20) -> bytes:
        return answer(self.tree.read(inode, 0, size))


def differences(kernel: Kernel, table: Table, chunks: Chunks) -> list[str]:
    """Where what a reader sees differs from a table."""
    found: list[str] = []
    inodes: dict[int, int] = {}
    for path, index in table.walk():
        node, inode = table.node(index), kernel.walk(path)
        if inode is None:
            found.append(f"{path!r} is not there")
            continue
        if inodes.setdefault(index, inode) != inode:
            found.append(f"{path!r} has another inode than its hard link")
        attr = kernel.stat(inode)
        # A directory is shown one nanosecond younger while its listing changes.
        younger = attr.mtime_ns - node.mtime_ns == 1 and not attr.valid and node.kind is Kind.DIRECTORY
        mtime = node.mtime_ns + younger
        if (stat.S_IMODE(attr.mode), attr.size, attr.nlink, attr.mtime_ns) != (node.mode, node.size, node.nlink, mtime):
            found.append(f"{path!r}: {attr} and {node}")
        elif node.kind is Kind.DIRECTORY:
            names = [name for name, _ in table.children(index)]
            if kernel.listdir(inode) != names:
                found.append(f"{path!r} lists {kernel.listdir(inode)}, has {names}")
            found += [f"{path!r} has {name!r}" for name in NAMES if name not in names and kernel.lookup(inode, name) is not None]
        elif node.kind is Kind.SYMLINK:
            if not stat.S_ISLNK(attr.mode) or kernel.tree.readlink(inode) != node.target:
                found.append(f"{path!r}: another target")
        elif not stat.S_ISREG(attr.mode) or kernel.read(inode) != b"".join(
            bytes(node.size) if id == ZERO_ID else chunks.contents[id] for id in (node.chunk(n) for n in range(node.chunk_count()))
        ):
            found.append(f"{path!r}: another content")
    return found


def error_of(call: Any, *arguments: Any) -> int | None:
    """The errno of a call, by its name where it is known; None for success."""
    try:
        found = call(*arguments)
        if hasattr(found, "send"):
            answer(found)
    except OSError as error:
        assert error.errno in errno.errorcode
        return error.errno
    return None
