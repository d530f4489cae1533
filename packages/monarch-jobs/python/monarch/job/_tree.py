"""A file or a tree of files as a stream of entries, and back: what `monarch cp` sends.

Entries are plain tuples, in an order in which they can be made: `(DIRECTORY, path, mode, mtime)`, `(FILE, path, mode, mtime)` followed by
`(DATA, bytes)`s and `(END,)`, `(LINK, path, target)`, and `(SKIPPED, path, why)`. Paths are relative to the root, which is the empty path.

Who receives trusts nothing: every name is looked up from its folder's descriptor without following links, so nothing is written outside
the root, whatever the entries say and whoever changes the tree meanwhile. Files appear complete, or not at all.
"""

from __future__ import annotations

import os
import secrets
import stat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Entry = tuple[Any, ...]

DIRECTORY, FILE, DATA, END, LINK, SKIPPED = range(6)
_READ = 256 << 10
BATCH = 1 << 20
# Set-user-id and the like are not for strangers.
_MODE = 0o1777


def entries(root: str) -> Iterator[Entry]:
    """What is at `root`; `OSError` if nothing is. Links in it stay links, what cannot be read is said."""
    found = os.stat(root)
    if stat.S_ISDIR(found.st_mode):
        yield (DIRECTORY, "", found.st_mode & _MODE, found.st_mtime_ns)
        yield from _below(root, "")
    elif stat.S_ISREG(found.st_mode):
        with open(root, "rb", buffering=0) as file:
            yield from _file("", found, file)
    else:
        raise OSError(22, "not a file or a directory", root)


def _below(folder: str, path: str) -> Iterator[Entry]:
    try:
        inside = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as e:
        yield (SKIPPED, path, e.strerror)
        return
    for entry in inside:
        name = f"{path}/{entry.name}" if path else entry.name
        try:
            if entry.is_symlink():
                yield (LINK, name, os.readlink(entry.path))
                continue
            found = entry.stat(follow_symlinks=False)
            file = open(entry.path, "rb", buffering=0, opener=_opened) if stat.S_ISREG(found.st_mode) else None
        except OSError as e:
            yield (SKIPPED, name, e.strerror)
            continue
        if file is not None:
            with file:
                yield from _file(name, found, file)
        elif stat.S_ISDIR(found.st_mode):
            yield (DIRECTORY, name, found.st_mode & _MODE, found.st_mtime_ns)
            yield from _below(entry.path, name)
        else:
            yield (SKIPPED, name, "not a file, a directory or a link")


def _opened(path: str, flags: int) -> int:
    # A link or a pipe may have taken its place: neither must lead away or hold us up.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _file(name: str, found: os.stat_result, file: Any) -> Iterator[Entry]:
    yield (FILE, name, found.st_mode & _MODE, found.st_mtime_ns)
    while data := file.read(_READ):
        yield (DATA, data)
    yield (END,)


def batches(stream: Iterable[Entry]) -> Iterator[list[Entry]]:
    """The same in lists of about `BATCH` bytes."""
    batch: list[Entry] = []
    size = 0
    for entry in stream:
        batch.append(entry)
        size += len(entry[1]) if entry[0] == DATA else 256
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def destination(path: str, name: str) -> str:
    """Where something called `name` goes that is copied to `path`: into it if it is a directory, or said to be one."""
    path = os.path.expanduser(path or ".")
    if path.endswith("/"):
        os.makedirs(path, exist_ok=True)
    return os.path.join(path, name) if os.path.isdir(path) else path


class Refused(OSError):
    """An entry that has no place below the root."""


class TreeWriter:
    """Makes a file or a tree of entries, at `root`. `close` removes what is not complete."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.skipped: list[tuple[str, str]] = []
        self._top: int | None = None
        self._file: int | None = None
        self._place: tuple[int, str, str] | None = None
        self._times: tuple[int, int] = (0, 0)
        # Modes of directories come last: one may be read-only.
        self._modes: list[tuple[str, int, int]] = []

    def put(self, batch: Iterable[Entry]) -> None:
        for entry in batch:
            kind = entry[0]
            if kind == DATA:
                self._data(entry[1])
            elif kind == END:
                self._end()
            elif kind == DIRECTORY:
                self._directory(*entry[1:])
            elif kind == FILE:
                self._begin(*entry[1:])
            elif kind == LINK:
                self._link(*entry[1:])
            else:
                self.skipped.append((entry[1], entry[2]))

    def finish(self) -> None:
        """All has been put."""
        for path, mode, mtime in reversed(self._modes):
            folder = self._folder(path.split("/") if path else [])
            try:
                os.utime(folder, ns=(mtime, mtime))
                os.fchmod(folder, mode)
            finally:
                os.close(folder)
        self._modes.clear()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._place is not None:
            folder, temporary, _ = self._place
            self._place = None
            try:
                os.unlink(temporary, dir_fd=folder)
            except OSError:
                pass
            os.close(folder)
        if self._top is not None:
            os.close(self._top)
            self._top = None

    # ---- entries

    def _directory(self, path: str, mode: int, mtime: int) -> None:
        if path == "":
            os.makedirs(self.root, exist_ok=True)
            # The root may be a link: the user named it.
            self._top = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            folder, name = self._parent(path)
            try:
                os.mkdir(name, 0o700, dir_fd=folder)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    raise NotADirectoryError(20, "is there, and no directory", path) from None
                os.chmod(name, 0o700 | mode, dir_fd=folder)
            finally:
                os.close(folder)
        self._modes.append((path, mode & _MODE, mtime))

    def _begin(self, path: str, mode: int, mtime: int) -> None:
        folder, name = self._parent(path)
        temporary = f".{name[:200]}.{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._file = os.open(temporary, flags, 0o600, dir_fd=folder)
        except BaseException:
            os.close(folder)
            raise
        self._place = (folder, temporary, name)
        self._times = (mode & _MODE, mtime)

    def _data(self, data: bytes) -> None:
        if self._file is None:
            raise Refused(22, "data that belongs to no file")
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def _end(self) -> None:
        if self._file is None or self._place is None:
            raise Refused(22, "the end of no file")
        mode, mtime = self._times
        os.fchmod(self._file, mode)
        os.utime(self._file, ns=(mtime, mtime))
        os.close(self._file)
        self._file = None
        folder, temporary, name = self._place
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        self._place = None
        os.close(folder)

    def _link(self, path: str, target: str) -> None:
        folder, name = self._parent(path)
        try:
            temporary = f".{name[:200]}.{secrets.token_hex(4)}"
            os.symlink(target, temporary, dir_fd=folder)
            try:
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(temporary, dir_fd=folder)
                raise
        finally:
            os.close(folder)

    # ---- places

    def _parent(self, path: str) -> tuple[int, str]:
        """A descriptor of the folder that the last name of the path is in, and that name."""
        if path == "":
            if self._top is not None:
                raise Refused(22, "a file in the place of the root")
            folder, name = os.path.split(os.path.abspath(self.root))
            return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), name
        names = path.split("/")
        if any(name in ("", ".", "..") or "\0" in name for name in names):
            raise Refused(22, "refused: outside of what is copied", path)
        return self._folder(names[:-1]), names[-1]

    def _folder(self, names: list[str]) -> int:
        if self._top is None:
            raise Refused(22, "refused: nothing to put it into", "/".join(names))
        found = os.dup(self._top)
        for name in names:
            try:
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=found)
            except OSError as e:
                raise OSError(e.errno, f"refused, or gone: {e.strerror}", "/".join(names)) from None
            finally:
                os.close(found)
            found = inner
        return found
