"""The index of a directory of the client: makes tables of it, and serves the contents that they name.

The first scan in a process starts from what the last one wrote to the cache folder, so an unchanged tree is listed and not read. Contents
are read when they are asked for and verified by their identity: a file that has changed since gives a `ReadFailure`, never other bytes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from threading import Lock, Timer
from time import monotonic
from typing import Literal, NamedTuple

from monarch.extension.directory_tree import blake3, load_cached, save_cached
from monarch.fs._index import cache_folder
from monarch.fs._index.assembly import Assembly
from monarch.fs._index.bytecode import Bytecode
from monarch.fs._index.pattern import Exclusion
from monarch.fs._index.scan import Look
from monarch.fs._index.seen import Seen, dump, restore
from monarch.fs._tree.folder import Folder
from monarch.fs._tree.node import ID_SIZE, PIECE_BYTES, WHOLE_BYTES, ZERO_ID, Kind
from monarch.fs._tree.table import Table

# The most bytes of one cache file, and of all of them; the most sources that are remembered.
_MOST_BYTES, _ALL_BYTES, _MOST_FILES = 1 << 30, 4 << 30, 64
_NAMED = 5
# The most contents that are searched one by one after a scan, and the most such searches: the index of all contents costs as much as some
# hundred of these.
_FEW, _SEARCHES = 8, 32
# Pieces of zeros that are skipped in one step.
_HOLE = ZERO_ID * 1024
# Seconds from a scan that found changes to the write of the cache file, which costs more than the scan.
_SAVE_SECONDS = 20.0
# Errors of a name without a file, and of a name with something other than a regular file: a link, a socket, a directory, a pipe.
_REMOVED = (errno.ENOENT, errno.ENOTDIR)
_REPLACED = (*_REMOVED, errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EINVAL)


class ReadFailure(NamedTuple):
    """Why a content cannot be served. `paths` have or had it, relative to the source; `stale`: they have changed since the scan."""

    paths: list[str]
    reason: str
    stale: bool


class Scan(NamedTuple):
    """A look at the source."""

    table: Table
    warnings: list[str]
    seconds: float


class _Place(NamedTuple):
    directory: bytes
    name: bytes
    offset: int
    size: int


class Index:
    """The index of `source`. Raises `ValueError` for a malformed argument; the directory itself is looked at by `scan`.

    `compile_seconds` bounds how long a scan waits for modules that are being compiled.
    """

    def __init__(
        self,
        source: str,
        *,
        exclude: Sequence[str] = (".monarch",),
        gitignore: bool = False,
        pyc: Literal["as-is", "compile"] = "compile",
        cache: Path | None = None,
        compile_seconds: float = 1.0,
    ) -> None:
        text = os.fspath(source)
        if not text or "\0" in text:
            raise ValueError(f"source {source!r} is no path of a directory")
        if pyc not in ("as-is", "compile"):
            raise ValueError(f"pyc is {pyc!r}: it is 'as-is' or 'compile'")
        self.source = os.path.abspath(text)
        self._exclusion = Exclusion(exclude)
        self._gitignore = gitignore
        self._seconds = compile_seconds
        self._folder = cache if cache is not None else cache_folder.default_folder()
        self._bytecode = Bytecode(self._folder, self._source_text) if pyc == "compile" else None
        self._assembly = Assembly(self._bytecode)
        self._seen: dict[bytes, Seen] | None = None
        self._top = b""
        # Whether the cache file is out of date, and the thread that writes it.
        self._unsaved = False
        self._saving: Timer | None = None
        self._scanning = Lock()
        self._locating = Lock()
        # The tables of the last two scans; folders whose contents have no known places yet; the places of contents.
        self._tables: list[Table] = []
        self._unlocated: list[Table] = []
        self._searches = 0
        self._places: dict[bytes, list[_Place]] = {}
        self._located: dict[tuple[bytes, int], Folder] = {}

    def scan(self) -> Scan:
        """Looks at the source. `FileNotFoundError`, `NotADirectoryError` and `PermissionError` are about the source itself."""
        with self._scanning:
            began = monotonic()
            top = os.fsencode(os.path.realpath(self.source, strict=True))
            if not os.path.isdir(top):
                raise NotADirectoryError(20, os.strerror(20), self.source)
            if top != self._top:
                self._top, self._seen = top, None
            file = self._cache_file(top)
            first = self._seen is None
            if self._seen is None:
                self._seen = restore(load_cached(file, _MOST_BYTES), self._cache_key(top))
            look = Look(top, self._exclusion, self._gitignore, self._seen)
            look.run()
            table = self._table(look)
            self._seen = look.seen
            self._unsaved |= look.changed
            if self._unsaved and first:
                self._save()
                cache_folder.trim(file.parent, _ALL_BYTES, _MOST_FILES)
            elif self._unsaved and self._saving is None:
                self._saving = Timer(_SAVE_SECONDS, self._save_later)
                self._saving.daemon = True
                self._saving.start()
            return Scan(table, _warnings(look), monotonic() - began)

    def _save(self) -> None:
        """Writes what was seen to the cache folder. Without it the next process reads files again that have changed since."""
        if self._seen is not None:
            save_cached(self._cache_file(self._top), dump(self._seen, self._cache_key(self._top)))
            self._unsaved = False

    def _save_later(self) -> None:
        with self._scanning:
            self._saving = None
            if self._unsaved:
                self._save()

    def _table(self, look: Look) -> Table:
        missing = self._assembly.missing(look)
        table = self._assembly.table(look)
        self._remember(table)
        if missing and self._bytecode is not None:
            self._bytecode.ask(missing)
            self._bytecode.wait(self._seconds)
            self._bytecode.save()
            table = self._assembly.table(look)
            self._replace(table)
        return table

    def _remember(self, table: Table) -> None:
        with self._locating:
            self._tables = [*self._tables[-1:], table]
            self._unlocated, self._searches = list(self._tables), 0

    def _replace(self, table: Table) -> None:
        with self._locating:
            self._tables[-1] = table
            self._unlocated, self._searches = list(self._tables), 0

    def _cache_key(self, top: bytes) -> tuple[bytes, tuple[str, ...], bool]:
        return top, self._exclusion.patterns, self._gitignore

    def _cache_file(self, top: bytes) -> Path:
        name = blake2b(repr(self._cache_key(top)).encode(), digest_size=16).hexdigest()
        return self._folder / "sources" / name

    def read(self, ids: Sequence[bytes]) -> list[bytes | ReadFailure]:
        """The contents with these identities, verified; of the tables of the last two scans."""
        with self._locating:
            if self._unlocated and len(ids) <= _FEW and self._searches < _SEARCHES:
                self._searches += 1
                places = [self._found(id) for id in ids]
            else:
                self._locate()
                places = [list(self._places.get(id, ())) for id in ids]
        return [self._read(id, found) for id, found in zip(ids, places, strict=True)]

    def _found(self, id: bytes) -> list[_Place]:
        """Where a content is, without an index of all."""
        found = list(self._places.get(id, ()))
        for table in self._unlocated:
            for rel, folder in _folders(table):
                if id in folder.tails:
                    found += [spot for other, spot in _spots(rel, folder) if other == id and spot not in found]
        return found

    def _locate(self) -> None:
        if len(self._unlocated) and len(self._places) > 4 * max(len(t) for t in self._tables) + 4096:
            self._places, self._located, self._unlocated = {}, {}, list(self._tables)
        for table in self._unlocated:
            for rel, folder in _folders(table):
                if self._located.get((rel, id(folder))) is folder:
                    continue
                self._located[rel, id(folder)] = folder
                for chunk, spot in _spots(rel, folder):
                    found = self._places.setdefault(chunk, [])
                    if spot not in found[-8:]:
                        found.append(spot)
        self._unlocated.clear()

    def _read(self, id: bytes, places: list[_Place]) -> bytes | ReadFailure:
        if self._bytecode is not None and self._bytecode.has(id):
            found = self._bytecode.content(id)
            if found is not None:
                return found
        if not places:
            return ReadFailure([], f"no file of the index has the content {id.hex()[:12]}", False)
        reason, stale, gone = "the content has changed since the index was made", True, 0
        for place in places:
            path = self._top + b"/" + (place.directory + b"/" if place.directory else b"") + place.name
            try:
                data = _read_piece(path, place.offset, place.size)
            except OSError as e:
                if e.errno in _REPLACED:
                    gone += e.errno in _REMOVED
                    continue
                reason, stale = e.strerror or str(e), False
                continue
            if len(data) == place.size and blake3(data) == id:
                return data
        paths = {os.fsdecode((p.directory + b"/" if p.directory else b"") + p.name): None for p in places}
        return ReadFailure(list(paths), reason if gone < len(places) else "the file was removed since the index was made", stale)

    def _source_text(self, id: bytes) -> bytes | None:
        [found] = self.read([id])
        return found if isinstance(found, bytes) else None

    def close(self) -> None:
        """Ends what compiles in the background, and writes the cache file. Contents can still be read."""
        with self._scanning:
            if self._saving is not None:
                self._saving.cancel()
            if self._unsaved:
                self._save()
        if self._bytecode is not None:
            self._bytecode.close()


def removed(source: str, paths: Iterable[str]) -> list[str]:
    """Those of the paths, relative to `source`, at which nothing is any more."""
    return [path for path in paths if not os.path.lexists(os.path.join(source, path))]


def _folders(table: Table) -> Iterator[tuple[bytes, Folder]]:
    """The folders of a table with their paths."""
    paths: list[bytes] = [b""]
    for rel, folder in zip(paths, table.folders, strict=False):
        prefix = rel + b"/" if rel else b""
        paths.extend(prefix + folder.name(place) for place in folder.subfolders)
        yield rel, folder


def _spots(rel: bytes, folder: Folder) -> Iterator[tuple[bytes, _Place]]:
    """The chunks of the files in a folder, and where each is."""
    for place, name in enumerate(folder.all_names()):
        node = folder.node(place)
        if node.kind == Kind.FILE:
            step = node.size if node.size <= WHOLE_BYTES else PIECE_BYTES
            for start in range(0, len(node.chunks), len(_HOLE)):
                # Holes have no place, and a sparse image may have a million pieces of them.
                if node.chunks.startswith(_HOLE, start):
                    continue
                for at in range(start, min(start + len(_HOLE), len(node.chunks)), ID_SIZE):
                    id = node.chunks[at : at + ID_SIZE]
                    if id != ZERO_ID:
                        offset = at // ID_SIZE * step
                        yield id, _Place(rel, name, offset, min(step, node.size - offset))


def _read_piece(path: bytes, offset: int, size: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "no regular file")
        parts: list[bytes] = []
        while size and (part := os.pread(fd, size, offset)):
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def _warnings(look: Look) -> list[str]:
    top = os.fsdecode(look.top)
    skipped = sum(seen.skipped for seen in look.seen.values())
    foreign = sorted(path for seen in look.seen.values() for path in seen.foreign)
    unreadable = sorted(path for seen in look.seen.values() for path in seen.unreadable)
    unreadable += sorted(path for path, error in look.closed.items() if error.errno not in look.GONE)
    found: list[str] = []
    if skipped:
        found.append(f"{top}: {skipped} sockets, pipes or devices are left out")
    if foreign:
        found.append(f"{top}: {len(foreign)} directories are other file systems, shown empty: {_named(foreign)}")
    if unreadable:
        found.append(f"{top}: {len(unreadable)} files or directories cannot be read: {_named(unreadable)}")
    return found


def _named(paths: list[bytes]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(os.fsdecode(path) for path in paths[:_NAMED]) + more
