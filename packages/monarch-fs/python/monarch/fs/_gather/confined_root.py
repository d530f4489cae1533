"""One directory, or one file, of a host, below which every access resolves.

The kernel does the confinement: `openat2` with RESOLVE_BENEATH refuses each resolution that would leave the root, at any moment of it, so
a directory that another process moves or replaces by a link during an access cannot lead out. Magic links (`/proc/<pid>/fd/N`) are refused
too.

Paths name a link only as their last part: a view shows links as links, and the client's kernel follows them inside the view. A link has a
text that leads, inside the view, to the file that the host found: always relative, with ".." only at its begin and never above the
root. A link whose target is absent, or not below the root, has a text that leads to no file: no view has the name `DANGLING`, also where
a host has a file of this name.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import threading
from collections.abc import Callable

from monarch.fs._gather.remote_attr import RemoteAttr, remote_attr

_OPENAT2 = 437
_NO_MAGICLINKS, _BENEATH = 0x02, 0x08
# The most links in a chain, as in the kernel.
_LINKS = 40
# The kernel returns EAGAIN if a concurrent rename made it uncertain whether ".." left the root.
_RETRIES = 64
DANGLING = b".monarch-dangling"
# The most names of a directory in one listing, so that a process that creates files endlessly cannot exhaust the memory.
LONGEST_LISTING = 4_000_000


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


def open_beneath(root: int, path: bytes, flags: int) -> int:
    """A descriptor of `path` below the directory `root`; links are followed as long as they stay below it.

    `OSError`: ENOENT where there is no such file, also for a path or a link that leads out of `root`; ELOOP for magic links and for links
    in a circle.
    """
    if b"\0" in path:
        raise OSError(errno.ENOENT, "a name with a null character", path)
    how = _How(flags | os.O_CLOEXEC, 0, _BENEATH | _NO_MAGICLINKS)
    for _ in range(_RETRIES):
        found = _syscall(
            _OPENAT2, ctypes.c_int(root), ctypes.c_char_p(path or b"."), ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))
        )
        if found >= 0:
            return int(found)
        failed = ctypes.get_errno()
        if failed not in (errno.EAGAIN, errno.EINTR):
            break
    else:
        failed = errno.EAGAIN
    # EXDEV: the path, or a link on it, leads out of the root.
    failed = errno.ENOENT if failed == errno.EXDEV else failed
    raise OSError(failed, os.strerror(failed), path)


class ConfinedRoot:
    """A root of a host; thread safe. A root that is not there yet, or is replaced by another one, is opened with the next access."""

    def __init__(self, path: str) -> None:
        if not os.path.isabs(path):
            raise ValueError(f"{path}: the root of a gathered tree is an absolute path")
        self.path = os.path.normpath(path)
        self._lock = threading.Lock()
        self._descriptor = -1
        self._identity = (-1, -1)
        # The path of the root in the kernel, without links.
        self._real = b""
        # The name of the root in its parent if the root is a file.
        self._file = b""

    @property
    def file_name(self) -> bytes:
        """The name of the root in its directory where the root is a file, else empty."""
        return self._file

    def _root(self) -> int:
        """A duplicate of the descriptor of the root directory; for a file, of its parent directory."""
        with self._lock:
            found = os.stat(self.path)
            identity = (found.st_dev, found.st_ino)
            if self._descriptor < 0 or identity != self._identity:
                self._open(identity, stat.S_ISDIR(found.st_mode))
            return os.dup(self._descriptor)

    def _open(self, identity: tuple[int, int], is_directory: bool) -> None:
        real = os.path.realpath(os.fsencode(self.path))
        name = b"" if is_directory else os.path.basename(real)
        descriptor = os.open(real if is_directory else os.path.dirname(real), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._identity, self._file = descriptor, identity, name
        self._real = os.readlink(b"/proc/self/fd/%d" % descriptor)

    def _at(self, path: bytes, flags: int) -> int:
        if DANGLING in path and DANGLING in path.split(b"/"):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        root = self._root()
        try:
            if self._file:
                if path:
                    raise OSError(errno.ENOTDIR, "the root is a file", path)
                return open_beneath(root, self._file, flags | os.O_NOFOLLOW)
            return open_beneath(root, path, flags)
        finally:
            os.close(root)

    def open(self, path: bytes) -> int:
        """A descriptor of a regular file, for reading; never waits for a pipe. `OSError`."""
        descriptor = self._at(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW)
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            os.close(descriptor)
            raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.ENXIO, "no regular file", path)
        return descriptor

    def attr(self, path: bytes) -> RemoteAttr:
        """The attributes of a name; of a link, its own. `OSError`."""
        descriptor = self._at(path, os.O_PATH | os.O_NOFOLLOW)
        try:
            return remote_attr(os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def names(self, path: bytes) -> list[bytes]:
        """The names of a directory, sorted. `OSError`."""
        descriptor = self._at(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            found: list[bytes] = []
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    found.append(os.fsencode(entry.name))
                    if len(found) > LONGEST_LISTING:
                        raise OSError(errno.EOVERFLOW, f"more than {LONGEST_LISTING} names", path)
        finally:
            os.close(descriptor)
        return sorted(name for name in found if name != DANGLING)

    def attrs(self, path: bytes, names: list[bytes]) -> list[RemoteAttr | None]:
        """The attributes of names of a directory; None for one that has gone meanwhile."""
        descriptor = self._at(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            return [_attr_in(descriptor, name) for name in names]
        finally:
            os.close(descriptor)

    def with_directory(self, path: bytes, use: Callable[[bytes, int], None]) -> None:
        """Calls `use(path, descriptor)` with a directory; of a root that is a file, with the directory that has it. `OSError`."""
        descriptor = self._root()
        if path or not self._file:
            os.close(descriptor)
            descriptor = self._at(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            use(path, descriptor)
        finally:
            os.close(descriptor)

    def link(self, path: bytes) -> bytes:
        """The text of a link as the view shows it. `OSError` where the path is no link."""
        descriptor = self._at(path, os.O_PATH | os.O_NOFOLLOW)
        try:
            text = os.readlink(b"", dir_fd=descriptor)
        finally:
            os.close(descriptor)
        try:
            target = self._resolved(path)
        except OSError:
            # The text of the link remains readable after a name that leads nowhere.
            return os.path.join(DANGLING, text.lstrip(b"/").replace(b"../", b"") or b"root")
        return os.path.relpath(b"/" + target, b"/" + os.path.dirname(path))

    def _resolved(self, path: bytes) -> bytes:
        """The path below the root, without links, of the file that `path` leads to; each step is an access that the kernel confines."""
        done: list[bytes] = []
        left = path.split(b"/")[::-1]
        links = 0
        while left:
            part = left.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":
                if not done:
                    raise OSError(errno.ENOENT, "it leads out of the root", path)
                done.pop()
                continue
            here = b"/".join([*done, part])
            descriptor = self._at(here, os.O_PATH | os.O_NOFOLLOW)
            try:
                text = os.readlink(b"", dir_fd=descriptor) if stat.S_ISLNK(os.fstat(descriptor).st_mode) else None
            finally:
                os.close(descriptor)
            if text is None:
                done.append(part)
                continue
            links += 1
            if links > _LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if text.startswith(b"/"):
                done, text = [], self._below(text)
            left += text.split(b"/")[::-1]
        return b"/".join(done)

    def _below(self, absolute: bytes) -> bytes:
        for root in (self._real, os.fsencode(self.path)):
            if absolute == root:
                return b""
            prefix = root.rstrip(b"/") + b"/"
            if absolute.startswith(prefix):
                return absolute[len(prefix) :]
        raise OSError(errno.ENOENT, "it leads out of the root", absolute)

    def close(self) -> None:
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor, self._identity = -1, (-1, -1)


def _attr_in(directory: int, name: bytes) -> RemoteAttr | None:
    if b"/" in name or name in (b"", b".", b".."):
        return None
    try:
        return remote_attr(os.stat(name, dir_fd=directory, follow_symlinks=False))
    except OSError:
        return None
