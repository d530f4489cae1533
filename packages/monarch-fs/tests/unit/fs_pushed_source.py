"""A source for pushes without a network: the table of a directory, and its contents in memory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from fs_table_builder import build_table

from monarch.extension.directory_tree import blake3
from monarch.fs._push.push_counts import PushCounts
from monarch.fs._push.pushed_tree import Contents, Failed, PushedTree
from monarch.fs._push.relocation import Relocation
from monarch.fs._tree.node import PIECE_BYTES, WHOLE_BYTES, ZERO_ID, Kind, Node
from monarch.fs._tree.table import Table


class PushedSource:
    """`fetched` counts the chunks that were asked for; chunks in `broken` fail with that."""

    def __init__(self, source: Path) -> None:
        self.chunks: dict[bytes, bytes] = {}
        self.broken: dict[bytes, Failed] = {}
        self.fetched = 0
        self.before_fetch: Callable[[], None] = lambda: None
        self.table = self._table(os.fsencode(source))

    def push(
        self,
        target: str | Path,
        *,
        delete: bool = False,
        set_id: bool = False,
        relocation: Relocation | None = None,
        state: Path | None = None,
    ) -> PushCounts:
        self.fetched = 0
        return PushedTree(self.table, str(target), self._fetch, delete=delete, set_id=set_id, relocation=relocation, state=state).apply()

    def _fetch(self, ids: Sequence[bytes]) -> Callable[[], Contents]:
        self.fetched += len(ids)
        self.before_fetch()
        return lambda: {id: self.broken.get(id) or self.chunks[id] for id in ids}

    def _table(self, source: bytes) -> Table:
        nodes: dict[bytes, Node | bytes] = {}
        first: dict[tuple[int, int], bytes] = {}
        rest = [b""]
        while rest:
            path = rest.pop()
            place = os.path.join(source, path)
            found = os.lstat(place)
            kind = {stat.S_IFDIR: Kind.DIRECTORY, stat.S_IFREG: Kind.FILE, stat.S_IFLNK: Kind.SYMLINK}[stat.S_IFMT(found.st_mode)]
            plain = Node(kind, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, 0, found.st_mtime_ns)
            if kind == Kind.DIRECTORY:
                nodes[path] = plain
                rest += [os.path.join(path, name) if path else name for name in os.listdir(place)]
            elif kind == Kind.SYMLINK:
                text = os.readlink(place)
                nodes[path] = plain._replace(target=text, size=len(text))
            elif first.setdefault((found.st_dev, found.st_ino), path) != path:
                nodes[path] = first[found.st_dev, found.st_ino]
            else:
                data = Path(os.fsdecode(place)).read_bytes()
                nodes[path] = plain._replace(size=len(data), blocks=found.st_blocks, chunks=self._cut(data))
        return build_table(nodes)

    def _cut(self, data: bytes) -> bytes:
        piece = PIECE_BYTES if len(data) > WHOLE_BYTES else max(1, len(data))
        ids: list[bytes] = []
        for start in range(0, len(data), piece):
            chunk = data[start : start + piece]
            id = blake3(chunk) if chunk.strip(b"\0") else ZERO_ID
            if id != ZERO_ID:
                self.chunks[id] = chunk
            ids.append(id)
        return b"".join(ids)


def failed(text: str, *, stale: bool = False) -> Failed:
    return Failed(errno.EIO, text, stale)


def shown(folder: Path) -> dict[bytes, tuple[object, ...]]:
    """Each path below with its kind, mode, mtime and content; links of one file have the same number."""
    found: dict[bytes, tuple[object, ...]] = {}
    numbers: dict[int, int] = {}
    for above, folders, files in os.walk(os.fsencode(folder)):
        folders.sort()
        for name in sorted([*folders, *files]):
            place = os.path.join(above, name)
            here = os.lstat(place)
            content: object = None
            if stat.S_ISLNK(here.st_mode):
                content = os.readlink(place)
            elif stat.S_ISREG(here.st_mode):
                content = Path(os.fsdecode(place)).read_bytes(), numbers.setdefault(here.st_ino, len(numbers))
            found[os.path.relpath(place, os.fsencode(folder))] = (here.st_mode, here.st_mtime_ns, content)
    return found
