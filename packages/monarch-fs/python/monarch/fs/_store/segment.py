"""One segment of the store: a file of contents, one after another, and a file with a record for each.

Only the process that made a segment appends to it, and holds a lock on its index meanwhile. A content is written before its record, so a
process that is killed leaves at most bytes that no record names. The last record is the seal: nothing follows it. The owner writes it when
the segment is full; where the owner has died, the first process that finds the index unlocked does. Records carry a checksum of
themselves, so a torn or overwritten record is left out.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from contextlib import suppress
from typing import NamedTuple

from monarch.fs._tree.node import ID_SIZE

# Identity, offset, size, checksum of these three.
_RECORD = struct.Struct("<32sQII")
RECORD_BYTES = _RECORD.size
_FIELDS = struct.Struct("<32sQI")
_SEAL = b"\xff" * ID_SIZE
INDEX, DATA = ".index", ".data"


class Place(NamedTuple):
    """Where a content is: the name of its segment, the offset in it, its size in bytes."""

    segment: str
    offset: int
    size: int


class OpenFile:
    """A descriptor that is closed when the last user of this object is gone: a thread may read while another one drops the file."""

    __slots__ = ("fd",)

    def __init__(self, path: str, flags: int) -> None:
        self.fd = -1
        self.fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close()


def record(id: bytes, offset: int, size: int) -> bytes:
    return _RECORD.pack(id, offset, size, zlib.crc32(_FIELDS.pack(id, offset, size)))


def capacity(name: str) -> int:
    """The bytes that a segment may grow to, index included, which its name has; 0 for another file."""
    digits = name.rpartition("-")[2]
    with suppress(ValueError):
        return int(digits, 16)
    return 0


class SegmentIndex:
    """What this process has read of the index of a segment."""

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self.sealed = False
        self.places: list[tuple[bytes, Place]] = []
        self._path = f"{folder}/{name}{INDEX}"
        self._read = 0

    def more(self) -> list[tuple[bytes, Place]]:
        """The records that are new since the last call; `OSError` where the segment has been removed."""
        if self.sealed:
            return []
        file = OpenFile(self._path, os.O_RDWR)
        found = self._records(file.fd)
        if not self.sealed:
            try:
                fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return found
            # The owner has died. Its records until then are complete now.
            found += self._records(file.fd)
            if not self.sealed:
                os.ftruncate(file.fd, self._read)
                with suppress(OSError):  # a full disk: the next process tries
                    os.pwrite(file.fd, record(_SEAL, 0, 0), self._read)
                self.sealed = True
        return found

    def _records(self, fd: int) -> list[tuple[bytes, Place]]:
        size = os.fstat(fd).st_size
        raw = os.pread(fd, (size - self._read) // RECORD_BYTES * RECORD_BYTES, self._read)
        raw = raw[: len(raw) // RECORD_BYTES * RECORD_BYTES]
        self._read += len(raw)
        found: list[tuple[bytes, Place]] = []
        for id, offset, length, checksum in _RECORD.iter_unpack(raw):
            if checksum != zlib.crc32(_FIELDS.pack(id, offset, length)):
                continue
            if id == _SEAL:
                self.sealed = True
                break
            found.append((id, Place(self.name, offset, length)))
        self.places += found
        return found


class SegmentWriter:
    """The segment that this process appends to."""

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self._capacity = capacity(name)
        self._path = f"{folder}/{name}"
        # A name is visible to other processes with its index: locked before, and with its data file present.
        made = f"{self._path}.new"
        self._index = OpenFile(made, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            fcntl.flock(self._index.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._data = OpenFile(f"{self._path}{DATA}", os.O_RDWR | os.O_CREAT | os.O_EXCL)
            os.rename(made, f"{self._path}{INDEX}")
        except BaseException:
            for left in (made, f"{self._path}{DATA}"):
                with suppress(OSError):
                    os.unlink(left)
            raise
        self._end = self._records = 0
        # Contents that have a place but no record yet.
        self.pending = 0
        self.is_open = True

    def has_room(self, size: int) -> bool:
        return self.is_open and self._end + size + (self._records + self.pending + 2) * RECORD_BYTES <= self._capacity

    def reserve(self, size: int) -> int:
        """The offset of a content of this size; `commit` or `give_up` follows. Writes of several threads may run at once."""
        offset = self._end
        self._end += size
        self.pending += 1
        return offset

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Writes a content at its offset; any thread, beside the other methods. `OSError` where the disk is full."""
        _write(self._data.fd, data, offset)

    def commit(self, id: bytes, offset: int, size: int) -> Place:
        """The content has its record from now on; `OSError` where the disk is full."""
        try:
            _write(self._index.fd, record(id, offset, size), self._records * RECORD_BYTES)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._index.fd, self._records * RECORD_BYTES)
            raise
        self._records += 1
        self.pending -= 1
        return Place(self.name, offset, size)

    def give_up(self, offset: int, size: int) -> None:
        """The content gets no record. Its bytes are free again where no other content follows."""
        self.pending -= 1
        if self._end == offset + size:
            self._end = offset
            with suppress(OSError):
                os.ftruncate(self._data.fd, offset)

    def seal(self) -> None:
        """Nothing is appended any more, and nothing is pending."""
        if self.is_open:
            self.is_open = False
            with suppress(OSError):  # a full disk: the process that finds the index unlocked seals it
                _write(self._index.fd, record(_SEAL, 0, 0), self._records * RECORD_BYTES)
            # A forked child may have the descriptor too.
            fcntl.flock(self._index.fd, fcntl.LOCK_UN)
            # The bytes of a removed segment are free after its last descriptor is closed.
            self._index.close()
            self._data.close()


def _write(fd: int, data: bytes | memoryview, offset: int) -> None:
    done = os.pwrite(fd, data, offset)
    while done < len(data):  # a disk that becomes full first writes a part
        done += os.pwrite(fd, memoryview(data)[done:], offset + done)
