"""A file or a tree of files as a stream of entries, and back: what `monarch cp` sends.

Entries are plain tuples, in an order in which they can be made: `(DIRECTORY, path, mode, mtime)`, `(FILE, path, mode, mtime)` followed by
`(DATA, bytes)`s and `(END,)`, `(LINK, path, target)`, and `(SKIPPED, path, why)`. Paths are relative to the root, which is the empty path.

The receiver trusts nothing: every name is looked up from its folder's descriptor without following links, so nothing is written outside
the root, whatever the entries contain and whichever process changes the tree meanwhile. Files appear complete, or not at all.
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
# Set-user-id and similar bits must not come from another machine.
_MODE = 0o1777
# Without these permissions its owner cannot look up names in a directory.
_OPEN = 0o500


def entries(root: str) -> Iterator[Entry]:
    """The entries at `root`; `OSError` if there is none. Links stay links, and entries that cannot be read are reported."""
    found = os.stat(root)
    if stat.S_ISDIR(found.st_mode):
        yield (DIRECTORY, "", found.st_mode & _MODE, found.st_mtime_ns)
        try:
            walk = _Walk(root)
        except OSError as e:
            yield (SKIPPED, "", e.strerror)
            return
        try:
            yield from walk.entries()
        finally:
            walk.close()
    elif stat.S_ISREG(found.st_mode):
        with open(root, "rb", buffering=0) as file:
            yield from _file("", found, file)
    else:
        raise OSError(22, "not a file or a directory", root)


class _Walk:
    """Goes through a tree with the descriptor of one directory at a time, so neither depth nor the length of paths has a limit."""

    def __init__(self, root: str) -> None:
        self._folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # From the root to the current directory: path, identity, and remaining names, the next one last.
        self._levels: list[tuple[str, tuple[int, int], list[str]]] = []
        try:
            self._levels.append(self._level(""))
        except BaseException:
            os.close(self._folder)
            raise

    def close(self) -> None:
        os.close(self._folder)

    def entries(self) -> Iterator[Entry]:
        """All that is below the root, each directory before what is in it."""
        while self._levels:
            path, _, names = self._levels[-1]
            if not names:
                self._levels.pop()
                if self._levels:
                    self._ascend(path)
                continue
            name = names.pop()
            yield from self._entry(name, f"{path}/{name}" if path else name)

    def _entry(self, name: str, path: str) -> Iterator[Entry]:
        file = None
        try:
            found = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                yield (LINK, path, os.readlink(name, dir_fd=self._folder))
                return
            if stat.S_ISREG(found.st_mode):
                file = open(name, "rb", buffering=0, opener=self._opened)
        except OSError as e:
            yield (SKIPPED, path, e.strerror)
            return
        if file is not None:
            with file:
                yield from _file(path, found, file)
        elif stat.S_ISDIR(found.st_mode):
            yield (DIRECTORY, path, found.st_mode & _MODE, found.st_mtime_ns)
            try:
                self._descend(name, path)
            except OSError as e:
                yield (SKIPPED, path, e.strerror)
        else:
            yield (SKIPPED, path, "not a file, a directory or a link")

    def _opened(self, name: str, flags: int) -> int:
        # A link or a pipe may have replaced the file: neither must redirect or block the read.
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._folder)

    def _descend(self, name: str, path: str) -> None:
        above = self._folder
        self._folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        try:
            self._levels.append(self._level(path))
        except BaseException:
            self._folder, above = above, self._folder
            raise
        finally:
            os.close(above)

    def _ascend(self, path: str) -> None:
        above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder)
        os.close(self._folder)
        self._folder = above
        if _identity(above) != self._levels[-1][1]:
            raise OSError(116, "moved while it was copied", path)

    def _level(self, path: str) -> tuple[str, tuple[int, int], list[str]]:
        return path, _identity(self._folder), sorted(os.listdir(self._folder), reverse=True)


def _identity(folder: int) -> tuple[int, int]:
    found = os.fstat(folder)
    return found.st_dev, found.st_ino


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
    """Where something called `name` goes that is copied to `path`: into it if it is a directory, or declared as one."""
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
        # The path of the entry in progress.
        self._path = ""
        self._top: int | None = None
        # The last folder that was looked up, most likely that of the next entry or above it.
        self._last: tuple[list[str], int] | None = None
        self._file: int | None = None
        self._place: tuple[int, str, str] | None = None
        self._times: tuple[int, int] = (0, 0)
        # Modes of directories come last: one may be read-only.
        self._modes: list[tuple[str, int, int]] = []

    def put(self, batch: Iterable[Entry]) -> None:
        for entry in batch:
            if entry[0] not in (DATA, END):
                self._path = entry[1]
            try:
                self._put(entry)
            except Refused:
                raise
            except OSError as e:
                # The kernel names its argument: a temporary name, a folder, or nothing.
                place = os.path.join(self.root, self._path) if self._path else self.root
                raise OSError(e.errno, e.strerror or str(e), place) from None

    def _put(self, entry: Entry) -> None:
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
        # The order is that of the walk, so that each lookup continues from the last one. A directory that is closed to its owner comes
        # after its content.
        is_open = [mode & _OPEN == _OPEN for _, mode, _ in self._modes]
        first = [entry for entry, yes in zip(self._modes, is_open, strict=True) if yes]
        last = [entry for entry, yes in zip(self._modes, is_open, strict=True) if not yes]
        for path, mode, mtime in [*first, *reversed(last)]:
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
        if self._last is not None:
            os.close(self._last[1])
            self._last = None
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
        temporary = _temporary()
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
            temporary = _temporary()
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
        known, start = self._last or ([], self._top)
        below = len(known) if names[: len(known)] == known else 0
        found = os.dup(start if below else self._top)
        for name in names[below:]:
            try:
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=found)
            except OSError as e:
                raise OSError(e.errno, f"refused, or gone: {e.strerror}", "/".join(names)) from None
            finally:
                os.close(found)
            found = inner
        if self._last is not None:
            os.close(self._last[1])
        self._last = (names, os.dup(found))
        return found


def _temporary() -> str:
    """A name that no file has, and that is short enough beside any name."""
    return f".monarch-cp-{secrets.token_hex(8)}"
