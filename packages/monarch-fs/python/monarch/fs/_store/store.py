"""The store of a machine: contents by their BLAKE3-256, in segments that several processes of one user share.

A segment (`segment.py`) is an append-only file of many contents. A file for each content would cost three system calls of the directory
for each small one; a segment costs two writes. Each process appends to a segment of its own, so no put waits for another process. The
name of a segment has its capacity, and a segment is made under the lock of the store only where all capacities together stay below the
limit: the limit holds without any count that processes would have to share.

Removal takes whole segments, the least recently used first, and none that has a pinned chunk or that is being written. So one pinned chunk
keeps its segment; segments are a 64th of the limit, 64 MiB at most, and chunks of one tree come together, which makes that rare. A process
that reads from a segment keeps its descriptor for some seconds after the removal.

A content is verified when it is put, and once more when a process that has not put it first reads it: that costs 0.2 ms a MiB, and
nothing that was truncated or overwritten, or lost with the power, is served. Content that fails the check counts as missing from then on.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from monarch.extension.directory_tree import blake3
from monarch.fs._store.pins import Pins
from monarch.fs._store.segment import DATA, INDEX, RECORD_BYTES, OpenFile, Place, SegmentIndex, SegmentWriter, capacity
from monarch.fs._tree.node import ID_SIZE, ZERO_ID

# The most bytes of a segment; a larger content has its own segment.
_SEGMENT_BYTES = 64 << 20
# A segment takes at most this part of the limit.
_PARTS = 64
# The most open data files, far below the 1,024 descriptors that a process may have.
_OPEN_FILES = 128
# Seconds between two looks at the folder while all reads succeed, and between two marks that a segment is in use.
_LOOK_SECONDS, _MARK_SECONDS = 2.0, 30.0
# The most verified contents that are kept for the next read of the same chunk: a sequential read requests eight parts of each.
_KEPT = 8
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StoreUsage(NamedTuple):
    """`bytes` on the disk, with the indexes; `chunks` that this process has seen; `limit` in bytes."""

    bytes: int
    chunks: int
    limit: int


class Store:
    """The contents in a folder; thread safe. `OSError` where the folder cannot be made or is of another user."""

    def __init__(self, folder: Path, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        if limit < 0:
            raise ValueError(f"the limit of the store {folder}: {limit} bytes")
        self.folder, self.limit = Path(folder), limit
        self._segments, pins = f"{folder}/segments", f"{folder}/pins"
        self._make()
        self._clock = clock
        # Excludes threads of this process. Processes exclude each other by the lock file.
        self._lock = threading.RLock()
        self._lock_file = OpenFile(f"{folder}/lock", os.O_RDWR | os.O_CREAT)
        self._pins = Pins(pins)
        self._indexes: dict[str, SegmentIndex] = {}
        self._places: dict[bytes, Place] = {}
        # Places with damaged contents: another read of the index must not restore them.
        self._damaged: set[Place] = set()
        # Further places of a content that two processes have put at the same time.
        self._others: dict[bytes, list[Place]] = {}
        self._verified: set[bytes] = set()
        self._files: OrderedDict[str, tuple[OpenFile, float]] = OrderedDict()
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._writer: SegmentWriter | None = None
        # Full segments with pending contents.
        self._ending: dict[str, SegmentWriter] = {}
        self._changed = -1
        self._looked = clock()
        with self._lock:
            self._look()

    def _make(self) -> None:
        for path in (str(self.folder), self._segments, f"{self.folder}/pins"):
            _private_folder(path)

    def has(self, id: bytes) -> bool:
        """Whether the content is here: its record, that is; `verify` reads it."""
        return not self.missing((id,))

    def missing(self, ids: Iterable[bytes]) -> list[bytes]:
        """Those that are not here, in order. The content of zeros is nowhere and never missing."""
        with self._lock:
            self._look()
            return [id for id in ids if id not in self._places and id != ZERO_ID]

    def put(self, id: bytes, data: bytes | memoryview) -> bool:
        """Stores a content; False where there is no room. `ValueError` where it is not the content of this identity."""
        if len(id) != ID_SIZE or blake3(data) != id:
            raise ValueError(f"{len(data)} bytes are not the content of the chunk {id.hex()}")
        for attempt in (1, 2):
            with self._lock:
                if id in self._places or not self.missing((id,)):
                    return True
                writer = self._writer_for(len(data))
                if writer is None:
                    return False
                offset = writer.reserve(len(data))
            failure: OSError | None = None
            try:
                writer.write(offset, data)
            except OSError as e:
                # Its frames would keep a reference to the writer.
                failure = e.with_traceback(None)
            with self._lock:
                failure = self._complete(writer, id, offset, len(data), failure)
                if failure is None:
                    return True
                if failure.errno not in _NO_ROOM:
                    raise failure
                # Another program has filled the disk: removing unused contents makes room.
                if attempt == 2 or not self._exclusively(lambda: self._remove(max(len(data), self._segment_bytes()))):
                    return False
        return False

    def _complete(self, writer: SegmentWriter, id: bytes, offset: int, size: int, failure: OSError | None) -> OSError | None:
        """Ends a put; why it has failed."""
        place: Place | None = None
        if failure is None:
            try:
                place = writer.commit(id, offset, size)
            except OSError as e:
                failure = e
        if place is None:
            writer.give_up(offset, size)
        elif writer.name in self._indexes:
            self._found(id, place)
            self._verified.add(id)
            self._indexes[writer.name].places.append((id, place))
        if writer is not self._writer:
            self._end(writer)
        elif failure is not None or not writer.has_room(1):
            self._seal()
        return failure

    def read(self, id: bytes, offset: int, size: int) -> bytes | None:
        """At most `size` bytes from an offset, fewer at the end of the content; None where it is not here, or is damaged."""
        if self._clock() - self._looked > _LOOK_SECONDS:
            with self._lock:
                self._look()
        for _ in range(3):  # a segment may be removed, and the content may be in another one
            place = self._places.get(id)
            if place is None and self.missing((id,)):
                return None
            place = place or self._places.get(id)
            if place is None:
                return None
            found = self._read(id, place, offset, size)
            if found is not None:
                return found
        return None

    def verify(self, id: bytes) -> bool:
        """Whether the content is here and intact: it is read and hashed. Damaged content counts as missing from now on."""
        with self._lock:
            self._verified.discard(id)
            self._kept.pop(id, None)
        return self.read(id, 0, 0) is not None

    def pin(self, name: str, ids: Collection[bytes]) -> None:
        """Keeps these contents, those to come too, until `unpin` or the end of this process. In the place of what the name had."""
        if any(len(id) != ID_SIZE for id in ids):
            raise ValueError(f"the pin {name!r}: an identity has {ID_SIZE} bytes")
        with self._lock, self._exclusive():
            self._pins.pin(name, ids)

    def unpin(self, name: str) -> None:
        """Ends the pin of this name; none is no error."""
        with self._lock, self._exclusive():
            self._pins.unpin(name)

    def size(self, id: bytes) -> int | None:
        """The bytes of a content by its record; None where it is not here."""
        place = self._places.get(id)
        return None if place is None else place.size

    def usage(self) -> StoreUsage:
        with self._lock:
            self._look()
            return StoreUsage(sum(self._size(name) for name in self._indexes), len(self._places), self.limit)

    def close(self) -> None:
        """Seals what this process writes, and ends its pins; the object is of no use any more."""
        with self._lock:
            self._seal()
            self._pins.close()
            self._files.clear()
            self._kept.clear()

    def _read(self, id: bytes, place: Place, offset: int, size: int) -> bytes | None:
        kept = self._kept.get(id)
        if kept is not None:
            return kept[offset : offset + size]
        try:
            file = self._file(place.segment)
        except OSError:  # removed by another process
            self._forget(id, place)
            return None
        if id in self._verified:
            wanted = max(min(size, place.size - offset), 0)
            found = os.pread(file.fd, wanted, place.offset + offset) if wanted else b""
            if len(found) == wanted:
                return found
        else:
            content = os.pread(file.fd, place.size, place.offset)
            if len(content) == place.size and blake3(content) == id:
                with self._lock:
                    self._verified.add(id)
                    if size < place.size:
                        self._kept[id] = content
                        while len(self._kept) > _KEPT:
                            self._kept.popitem(last=False)
                return content[offset : offset + size]
        self._forget(id, place)
        return None

    def _forget(self, id: bytes, place: Place) -> None:
        with self._lock:
            self._damaged.add(place)
            self._verified.discard(id)
            self._kept.pop(id, None)
            self._lose(id, place)

    def _lose(self, id: bytes, place: Place) -> None:
        """The content is no longer there; it may be at another place."""
        others = [other for other in self._others.pop(id, ()) if other != place]
        if self._places.get(id) == place:
            del self._places[id]
            self._verified.discard(id)
            if others:
                self._places[id] = others.pop()
        if others:
            self._others[id] = others

    def _found(self, id: bytes, place: Place) -> None:
        if place not in self._damaged and self._places.setdefault(id, place) != place:
            self._others.setdefault(id, []).append(place)

    def _file(self, segment: str) -> OpenFile:
        now = self._clock()
        found = self._files.get(segment)
        if found is not None and now - found[1] < _MARK_SECONDS:
            return found[0]
        with self._lock:
            file = found[0] if found else OpenFile(f"{self._segments}/{segment}{DATA}", os.O_RDONLY)
            self._mark(file)
            self._files[segment] = file, now
            while len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)
            return file

    def _mark(self, file: OpenFile) -> None:
        with suppress(OSError):
            # The time of the kernel has ticks of some milliseconds.
            stamp = time.time_ns()
            os.utime(file.fd, ns=(stamp, stamp))

    def _look(self) -> None:
        """Reads what other processes have written and removed."""
        self._looked = self._clock()
        try:
            changed = os.stat(self._segments).st_mtime_ns
        except FileNotFoundError:
            # Another program has removed the store: it is empty, and the segment that is being written no longer has a name.
            self._seal()
            self._make()
            changed = os.stat(self._segments).st_mtime_ns
        if changed != self._changed or time.time_ns() - changed < 20_000_000:  # the clock of a file system ticks every 1 to 10 ms
            self._changed = changed
            names = {name.removesuffix(INDEX) for name in os.listdir(self._segments) if name.endswith(INDEX)}
            for name in self._indexes.keys() - names:
                self._drop(name)
            for name in names - self._indexes.keys():
                if capacity(name):
                    self._indexes[name] = SegmentIndex(self._segments, name)
        own = self._writer.name if self._writer is not None else None
        for name, index in list(self._indexes.items()):
            if name == own or name in self._ending or index.sealed:
                continue
            try:
                more = index.more()
            except OSError:
                self._drop(name)
                continue
            for id, place in more:
                self._found(id, place)

    def _drop(self, name: str) -> None:
        """A segment is no longer there."""
        index = self._indexes.pop(name)
        self._files.pop(name, None)
        for id, place in index.places:
            self._lose(id, place)
            self._damaged.discard(place)

    def _segment_bytes(self) -> int:
        return min(_SEGMENT_BYTES, self.limit // _PARTS)

    def _writer_for(self, size: int) -> SegmentWriter | None:
        if self._writer is not None and self._writer.has_room(size):
            return self._writer
        wanted = size + 2 * RECORD_BYTES
        if wanted > self.limit:
            return None
        self._seal()
        with self._exclusive():
            self._look()
            needed = max(wanted, self._segment_bytes())
            free = self.limit - sum(self._size(name) for name in self._indexes)
            if free < needed:
                self._remove(needed - free)
                free = self.limit - sum(self._size(name) for name in self._indexes)
            if free < wanted:
                return None
            try:
                self._writer = SegmentWriter(self._segments, f"{secrets.token_hex(8)}-{min(needed, free):x}")
            except OSError as e:
                if e.errno in _NO_ROOM:
                    return None
                raise
            self._indexes[self._writer.name] = SegmentIndex(self._segments, self._writer.name)
        return self._writer

    def _seal(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._end(writer)

    def _end(self, writer: SegmentWriter) -> None:
        """Seals a segment with the last content that is written to it."""
        if not writer.pending:
            writer.seal()
            self._ending.pop(writer.name, None)
            if writer.name in self._indexes:
                self._indexes[writer.name].sealed = True
        else:
            self._ending[writer.name] = writer

    def _size(self, name: str) -> int:
        """What a segment counts: its capacity while it may grow, then what it has."""
        if not self._indexes[name].sealed:
            return capacity(name)
        with suppress(FileNotFoundError):
            return sum(os.stat(f"{self._segments}/{name}{kind}").st_size for kind in (DATA, INDEX))
        return 0

    def _remove(self, needed: int) -> bool:
        """Removes the least recently used segments until so many bytes are free; whether they are. The caller holds both locks."""
        pinned = self._pins.pinned()
        used: list[tuple[int, str]] = []
        for name, index in self._indexes.items():
            if index.sealed and all(id not in pinned for id, _ in index.places):
                with suppress(FileNotFoundError):
                    used.append((os.stat(f"{self._segments}/{name}{DATA}").st_mtime_ns, name))
        for _, name in sorted(used):
            if needed <= 0:
                break
            needed -= self._size(name)
            for kind in (INDEX, DATA):
                with suppress(FileNotFoundError):
                    os.unlink(f"{self._segments}/{name}{kind}")
            self._drop(name)
        return needed <= 0

    def _exclusively(self, action: Callable[[], bool]) -> bool:
        with self._exclusive():
            self._look()
            return action()

    @contextmanager
    def _exclusive(self) -> Generator[None]:
        """Against other processes; the kernel ends the lock with its process."""
        fcntl.flock(self._lock_file.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock_file.fd, fcntl.LOCK_UN)


def _private_folder(path: str) -> None:
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.stat(path)
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"the store is of the user {found.st_uid}, not of {os.geteuid()}", path)
    if found.st_mode & 0o077:
        os.chmod(path, 0o700)
