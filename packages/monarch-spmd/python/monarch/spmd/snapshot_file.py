"""A state in memory that processes of one user share: a file without a name, opened by its path below /proc.

offset  size  what
0       8     `MONSNAP1`
8       8     n, the number of parts, little endian
16      24*n  for each part its offset, its bytes, and 1 if it is read-only
...           the parts; the first one is the pickle, the others are the memory of its arrays and tensors

A large part has the place within its page that it has in the program. A processor copies a third as fast to a place that is up to some
hundred bytes further into its page than the source: a load seems to depend on a store whose address has the same lowest 12 bits. Other
parts are at multiples of 64.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from threading import Thread
from typing import Any, NamedTuple

from monarch.extension.bulk import BufferMemory
from monarch.extension.pickling import dumps_for_same_program, loads
from monarch.spmd import memory_cgroup
from monarch.spmd.errors import SPMDError

_MAGIC = b"MONSNAP1"
_HEAD = struct.Struct("<8sQ")
_ROW = struct.Struct("<QQQ")
# Bytes of the free memory that a snapshot leaves.
_SPARE = 64 << 20
# Bytes of one system call, or of one copy by a thread.
_WRITE = 64 << 20
_PAGE = mmap.PAGESIZE
_LARGE = 256 << 10
# Two threads copy 50 % faster than one; more than four saturate the memory.
_MOST_THREADS = 4


class PackedState(NamedTuple):
    """A state that is ready to be written; its parts are views of the state's own memory."""

    rows: list[tuple[int, int, int]]
    parts: list[BufferMemory]
    nbytes: int


def pack(state: Any) -> PackedState:
    """Takes a state apart. Raises what pickling raises, with a note that names the value at fault."""
    pickled, buffers = dumps_for_same_program(state)
    parts = [BufferMemory(part) for part in (pickled, *buffers)]
    rows: list[tuple[int, int, int]] = []
    end = _HEAD.size + _ROW.size * len(parts)
    for part in parts:
        if part.nbytes < _LARGE:
            begin = _up(end, 64)
            end = begin + part.nbytes
        else:
            page = _up(end, _PAGE)
            begin = page + part.address % _PAGE
            # The size of the file does not depend on addresses.
            end = page + _PAGE + _up(part.nbytes, _PAGE)
        rows.append((begin, part.nbytes, int(part.readonly)))
    return PackedState(rows, parts, end)


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


class SnapshotFile:
    """Memory without a name, gone with the last process that has it open. `path` is for other processes of this user."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("monarch-snapshot", os.MFD_CLOEXEC) if fd is None else fd
        self._map: mmap.mmap | None = None

    def __del__(self) -> None:
        self.close()

    @classmethod
    def at(cls, path: str) -> SnapshotFile:
        """That of another process, as long as that lives."""
        return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    @property
    def nbytes(self) -> int:
        return os.fstat(self.fd).st_size

    @property
    def inode(self) -> int:
        """Equal for all that have this memory open, and for no other memory meanwhile."""
        return os.fstat(self.fd).st_ino

    def close(self) -> None:
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            self._map = None
            os.close(fd)

    def resize(self, nbytes: int) -> None:
        """Memory that the file has already is kept: pages that exist are written several times as fast as new ones."""
        if self.nbytes != nbytes:
            self._map = None
            os.ftruncate(self.fd, nbytes)

    def view(self) -> memoryview:
        """The content, which others see change."""
        nbytes = self.nbytes
        # Another process may have resized it.
        if self._map is None or len(self._map) != nbytes:
            self._map = mmap.mmap(self.fd, nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        return memoryview(self._map)

    def write(self, packed: PackedState, threads: int = 1) -> None:
        """Copies a state into the file, with as many threads where it is large. The file stays larger than that, if it is by a little."""
        had = self.nbytes
        # Texts in the pickle change their length from one step to the next.
        if not packed.nbytes <= had <= packed.nbytes + packed.nbytes // 8 + _LARGE:
            self.resize(packed.nbytes)
        head = _HEAD.pack(_MAGIC, len(packed.rows)) + b"".join(_ROW.pack(*row) for row in packed.rows)
        # System calls write new pages at half the price; a map writes existing pages at a third of it.
        if had < packed.nbytes // 2:
            os.pwrite(self.fd, head, 0)
            for (begin, nbytes, _), part in zip(packed.rows, packed.parts, strict=True):
                _write(self.fd, begin, part, nbytes)
            return
        view = self.view()
        view[: len(head)] = head
        memory = BufferMemory(view)
        pieces = [
            (memory.address + begin + done, part.address + done, min(_WRITE, nbytes - done))
            for (begin, nbytes, _), part in zip(packed.rows, packed.parts, strict=True)
            for done in range(0, nbytes, _WRITE)
        ]
        _copy(pieces, min(threads, _MOST_THREADS, packed.nbytes // _WRITE))

    def read(self) -> Any:
        """The state. Its arrays and tensors are views of memory of this process: pages of the file, copied when they are changed."""
        nbytes = self.nbytes
        private = memoryview(mmap.mmap(self.fd, nbytes, mmap.MAP_PRIVATE)) if nbytes else memoryview(b"")
        parts: list[memoryview] = []
        if nbytes < _HEAD.size or bytes(private[: len(_MAGIC)]) != _MAGIC:
            raise SPMDError("the snapshot is not one of this version of monarch-spmd", code="snapshot_failed")
        for index in range(_HEAD.unpack_from(private)[1]):
            begin, size, readonly = _ROW.unpack_from(private, _HEAD.size + index * _ROW.size)
            part = private[begin : begin + size]
            parts.append(part.toreadonly() if readonly else part)
        return loads(parts[0], parts[1:])


def _write(fd: int, offset: int, part: BufferMemory, nbytes: int) -> None:
    if not nbytes:
        return
    # The memory of the part, kept alive by `part`: a view of an object that may be read-only, or have another shape.
    view = memoryview((ctypes.c_char * nbytes).from_address(part.address)).cast("B")
    while view.nbytes:
        done = os.pwrite(fd, view[:_WRITE], offset)
        view, offset = view[done:], offset + done


def _copy(pieces: list[tuple[int, int, int]], threads: int) -> None:
    """Copies each piece to an address, from an address, so many bytes. Other threads of Python run meanwhile."""
    left = iter(pieces)

    def take() -> None:
        # Taking the next item of a list is one step for the interpreter: each piece is taken once.
        for to, source, nbytes in left:
            ctypes.memmove(to, source, nbytes)

    others: list[Thread] = []
    for _ in range(threads - 1):
        thread = Thread(target=take, name="monarch-snapshots-copy")
        try:
            thread.start()
        except RuntimeError:  # the process has reached its limit of threads
            break
        others.append(thread)
    take()
    for thread in others:
        thread.join()


def check_memory(nbytes: int, what: str, where: str) -> None:
    """`SPMDError` with both sizes where the memory of this host would not have room for so many bytes more."""
    left = available_memory()
    if left is not None and nbytes > left - _SPARE:
        raise SPMDError(
            f"{what} is too large for {where}: {nbytes:,} bytes, and {max(left, 0):,} bytes of memory are left", code="snapshot_failed"
        )


def available_memory() -> int | None:
    """Bytes that processes of this host may still take: what the kernel reports, or what the memory cgroup leaves, if that is less."""
    left: list[int] = []
    within = memory_cgroup.room()
    if within is not None:
        left.append(within)
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            left += [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
    except OSError:  # parts of /proc are hidden
        pass
    return min(left, default=None)
