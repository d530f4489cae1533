"""A state in memory that processes of one user share: a file without a name, opened by its path below /proc.

offset  size  what
0       8     `MONSNAP1`
8       8     n, the number of parts, little endian
16      24*n  for each part its offset, its bytes, and 1 if it is read-only
...           the parts, each at a multiple of 64; the first one is the pickle, the others are the memory of its arrays and tensors
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Any, NamedTuple

from monarch.extension.pickling import dumps, loads
from monarch.spmd import memory_cgroup
from monarch.spmd.errors import SPMDError

_MAGIC = b"MONSNAP1"
_HEAD = struct.Struct("<8sQ")
_ROW = struct.Struct("<QQQ")
# Of the memory that is left, what a snapshot does not take.
_SPARE = 64 << 20
# Bytes of one system call.
_WRITE = 64 << 20


class PackedState(NamedTuple):
    """A state that is ready to be written; its parts are views of the state's own memory."""

    rows: list[tuple[int, int, int]]
    parts: list[memoryview]
    nbytes: int


def pack(state: Any) -> PackedState:
    """Takes a state apart. Raises what pickling raises, with a note that names the value at fault."""
    pickled, buffers = dumps(state)
    parts = [memoryview(pickled), *(memoryview(part) for part in buffers)]
    rows: list[tuple[int, int, int]] = []
    end = _HEAD.size + _ROW.size * len(parts)
    for part in parts:
        begin = -(-end // 64) * 64
        rows.append((begin, part.nbytes, int(part.readonly)))
        end = begin + part.nbytes
    return PackedState(rows, parts, end)


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
        if self._map is None:
            self._map = mmap.mmap(self.fd, self.nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        return memoryview(self._map)

    def write(self, packed: PackedState) -> None:
        """Copies a state into the file."""
        head = _HEAD.pack(_MAGIC, len(packed.rows)) + b"".join(_ROW.pack(*row) for row in packed.rows)
        pieces = [(0, memoryview(head)), *((row[0], part.cast("B")) for row, part in zip(packed.rows, packed.parts, strict=True))]
        if self.nbytes == packed.nbytes:
            view = self.view()
            for offset, piece in pieces:
                view[offset : offset + piece.nbytes] = piece
            return
        # Pages that are new come at half the price in system calls, those that exist at a third of it through a map.
        self.resize(packed.nbytes)
        for offset, piece in pieces:
            while piece.nbytes:
                done = os.pwrite(self.fd, piece[:_WRITE], offset)
                piece, offset = piece[done:], offset + done

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
