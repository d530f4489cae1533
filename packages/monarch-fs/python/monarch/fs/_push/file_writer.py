"""Writes one file of a target: under a temporary name in its directory, then renamed.

A reader sees the old file or the new one, whole, also when the writer is killed between any two steps. Attributes are set before the
rename. Chunks of zero bytes become holes; where the source's file has fewer blocks than bytes, so do blocks of zeros within chunks.
"""

from __future__ import annotations

import contextlib
import errno
import os

from monarch.fs._push.folder import temporary_name
from monarch.fs._push.relocation import Relocation
from monarch.fs._tree.node import Kind, Node

_BLOCK = 4096
_ZEROS = bytes(_BLOCK)
# A larger file that contains a prefix is not held in memory: it is reported instead of rewritten.
RELOCATED_BYTES = 256 << 20


class FileWriter:
    """A file that is being written. `write` takes its chunks in order; `finish` or `discard` ends it.

    `folder` is the descriptor of its directory, which stays the caller's.
    """

    def __init__(self, folder: int, name: bytes, node: Node, path: bytes, relocation: Relocation | None) -> None:
        self._folder = folder
        self._name = name
        self._node = node
        self._path = path
        self._relocation = relocation
        self._temporary = temporary_name()
        self._fd = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        self._offset = 0
        self._tail = b""
        self._has_prefix = False
        # Whether the prefix was replaced, and whether the file contains one now.
        self.relocated = False
        self.left = False
        self.size = node.size

    def write(self, data: bytes | None, size: int) -> None:
        """The next chunk of this many bytes; None: all of them are zero."""
        if data is not None:
            if self._node.blocks * 512 < self._node.size:
                self._write_sparse(data)
            else:
                self._write_all(data, self._offset)
            self._look(data)
        else:
            self._tail = b""
        self._offset += size

    def finish(self) -> os.stat_result:
        """Gives the file its attributes and its name; returns its attributes under that name."""
        try:
            os.ftruncate(self._fd, self._node.size)
            if self._has_prefix:
                self._relocate()
            set_attributes(self._fd, self._node)
            os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            found = os.fstat(self._fd)
        except BaseException:
            self.discard()
            raise
        self._close()
        return found

    def discard(self) -> None:
        """Removes the incomplete file."""
        if self._fd >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary, dir_fd=self._folder)
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _write_all(self, data: bytes | memoryview, offset: int) -> None:
        rest = memoryview(data)
        while rest:
            count = os.pwrite(self._fd, rest, offset)
            rest, offset = rest[count:], offset + count

    def _write_sparse(self, data: bytes) -> None:
        """Leaves out blocks of zeros."""
        begin = 0
        for start in range(0, len(data), _BLOCK):
            if data[start : start + _BLOCK] == _ZEROS:
                self._write_all(data[begin:start], self._offset + begin)
                begin = start + _BLOCK
        self._write_all(data[begin:], self._offset + begin)

    def _look(self, data: bytes) -> None:
        relocation = self._relocation
        if relocation is None or self._has_prefix:
            return
        # The prefix may be split between the end of the last chunk and the start of this one.
        overlap = relocation.overlap
        self._has_prefix = relocation.is_in(data) or relocation.is_in(self._tail + data[:overlap])
        self._tail = (self._tail + data)[-overlap:] if overlap else b""

    def _relocate(self) -> None:
        assert self._relocation is not None
        if self._node.size > RELOCATED_BYTES:
            self.left = True
            return
        old = os.pread(self._fd, self._node.size, 0)
        new, self.left = self._relocation.content(self._path, old)
        if new != old:
            os.ftruncate(self._fd, 0)
            self._write_all(new, 0)
            self.size = len(new)
            self.relocated = True


def mode_of(node: Node, found: os.stat_result) -> int:
    """The mode of a file or directory that has this owner: set-id bits of a file that were for another one are left out."""
    mode = node.mode
    if node.kind != Kind.DIRECTORY:
        if found.st_uid != node.uid:
            mode &= ~0o4000
        if found.st_gid != node.gid:
            mode &= ~0o2000
    return mode


def set_attributes(fd: int, node: Node) -> None:
    """Owner (as root only), mode, extended attributes and mtime of a file or directory that is open."""
    if os.geteuid() == 0:
        try:
            os.fchown(fd, node.uid, node.gid)
        except OSError as e:
            # The file system or the user namespace does not have this owner.
            if e.errno not in (errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP):
                raise
    os.fchmod(fd, mode_of(node, os.fstat(fd)))
    for name, value in node.xattrs:
        try:
            os.setxattr(fd, name, value)
        except OSError as e:
            # The file system has no such attributes; the content is correct.
            if e.errno != errno.EOPNOTSUPP:
                raise
    os.utime(fd, ns=(node.mtime_ns, node.mtime_ns))
