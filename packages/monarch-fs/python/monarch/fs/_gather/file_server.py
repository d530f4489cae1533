"""What a host answers about its roots: attributes, listings in pages, links, and bytes of files.

Requests name a file by its path below the root and, for bytes, by its identity as well: a log that has been rotated since is another file
under the same path. Descriptors of files that are read stay open, the most recently used ones, so that reading goes on in a file that has
been renamed or removed. Answers are bounded: a page of a listing has at most `PAGE` names, a read at most `LARGEST_READ` bytes.
"""

from __future__ import annotations

import errno
import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from monarch.fs._gather.confined_root import ConfinedRoot
from monarch.fs._gather.remote_attr import RemoteAttr, remote_attr
from monarch.fs._gather.watcher import Changed, Watcher

# The most names of one answer.
PAGE = 4096
# The most bytes of one answer.
LARGEST_READ = 4 << 20
# The most files that remain open between reads.
_OPEN_FILES = 128
# The most listings that are kept for their later pages.
_LISTINGS = 8


class Page(NamedTuple):
    """Some names of a directory with their attributes; `is_last`: there are no more."""

    entries: list[tuple[bytes, RemoteAttr]]
    is_last: bool
    # The last name of this page, even if its file was removed in the meantime.
    after: bytes


class Part(NamedTuple):
    """Bytes of a file, fewer than asked for at its end, and its attributes at that moment."""

    data: bytes
    attr: RemoteAttr


class _OpenFile:
    """A descriptor that several reads may use at once; closed with the last of them once it is dropped."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.users = 0
        self.dropped = False


class FileServer:
    """Answers for one root; thread safe. `report` gets the changes below it."""

    def __init__(self, path: str, report: Callable[[list[Changed] | None], None], *, watches: int | None = None) -> None:
        self.root = ConfinedRoot(path)
        self._report = report
        self._watcher = Watcher(self._changed) if watches is None else Watcher(self._changed, limit=watches)
        self._lock = threading.Lock()
        self._files: OrderedDict[tuple[int, int], _OpenFile] = OrderedDict()
        self._listings: OrderedDict[bytes, tuple[RemoteAttr, list[bytes]]] = OrderedDict()

    def attr(self, path: bytes) -> RemoteAttr:
        """`OSError` where there is no such name."""
        self._watch(os.path.dirname(path))
        return self.root.attr(path)

    def attrs(self, path: bytes, names: list[bytes]) -> list[RemoteAttr | None]:
        """The attributes of up to `PAGE` names of a directory, None for one that is absent. `OSError` for the directory."""
        self._watch(path)
        return self.root.attrs(path, names[:PAGE])

    def attr_of(self, path: bytes, identity: tuple[int, int]) -> RemoteAttr:
        """The attributes of a file that may have been renamed or removed since it was opened. `OSError`: ESTALE where it is not at hand."""
        with self._lock:
            known = self._files.get(identity)
            if known is not None:
                known.users += 1
        if known is not None:
            try:
                return remote_attr(os.fstat(known.descriptor))
            finally:
                self._release(known)
        found = self.attr(path)
        if found.identity != identity:
            raise OSError(errno.ESTALE, "another file has this name now", path)
        return found

    def link(self, path: bytes) -> bytes:
        return self.root.link(path)

    def list(self, path: bytes, after: bytes) -> Page:
        """The names that follow `after` in the order of their bytes; all of the first page for an empty one."""
        self._watch(path)
        now = self.root.attr(path)
        with self._lock:
            known = self._listings.get(path)
        # A later page belongs to the listing of the first one, unless the directory has changed.
        if known is None or not after or known[0] != now:
            known = (now, self.root.names(path))
            with self._lock:
                self._listings[path] = known
                self._listings.move_to_end(path)
                while len(self._listings) > _LISTINGS:
                    self._listings.popitem(last=False)
        names = known[1]
        start = _first_after(names, after) if after else 0
        chosen = names[start : start + PAGE]
        found = self.root.attrs(path, chosen)
        entries = [(name, attr) for name, attr in zip(chosen, found, strict=True) if attr is not None and attr.is_shown]
        is_last = start + PAGE >= len(names)
        if is_last:
            with self._lock:
                self._listings.pop(path, None)
        return Page(entries, is_last, chosen[-1] if chosen else after)

    def hold(self, path: bytes, identity: tuple[int, int]) -> RemoteAttr:
        """Opens a file ahead of its reads, so that they find it also after a rename. `OSError`: ESTALE where the path has another file."""
        self._watch(os.path.dirname(path))
        file = self._acquire(path, identity)
        try:
            return remote_attr(os.fstat(file.descriptor))
        finally:
            self._release(file)

    def read(self, path: bytes, identity: tuple[int, int], offset: int, size: int) -> Part:
        """At most `size` and `LARGEST_READ` bytes. `OSError`: ESTALE where the path has another file now."""
        if offset < 0 or size < 0:
            raise OSError(errno.EINVAL, f"{size} bytes at {offset}", path)
        file = self._acquire(path, identity)
        try:
            # The attributes are read before the bytes: a change in between gives a later version with the next look, never bytes that are
            # older than their version.
            before = remote_attr(os.fstat(file.descriptor))
            wanted = min(size, LARGEST_READ)
            parts: list[bytes] = []
            while wanted:
                data = os.pread(file.descriptor, wanted, offset)
                if not data:
                    break
                parts.append(data)
                offset, wanted = offset + len(data), wanted - len(data)
            return Part(parts[0] if len(parts) == 1 else b"".join(parts), before)
        finally:
            self._release(file)

    def counts(self) -> dict[str, int]:
        """What this root holds: watches, compared directories, open files."""
        watched, compared = self._watcher.counts()
        with self._lock:
            return {"watched": watched, "compared": compared, "open": len(self._files)}

    def close(self) -> None:
        self._watcher.close()
        with self._lock:
            for file in self._files.values():
                self._drop(file)
            self._files.clear()
        self.root.close()

    def _changed(self, changes: list[Changed] | None) -> None:
        name = self.root.file_name
        if changes is not None and name:
            # The watched directory also has files that the root does not show.
            changes = [Changed(b"", b"", change.renewed) for change in changes if change.name == name]
            if not changes:
                return
        self._report(changes)

    def _acquire(self, path: bytes, identity: tuple[int, int]) -> _OpenFile:
        with self._lock:
            known = self._files.get(identity)
            if known is not None:
                self._files.move_to_end(identity)
                known.users += 1
                return known
        descriptor = self.root.open(path)
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != identity:
            os.close(descriptor)
            raise OSError(errno.ESTALE, "another file has this name now", path)
        with self._lock:
            file = self._files.get(identity)
            if file is None:
                file = self._files[identity] = _OpenFile(descriptor)
                while len(self._files) > _OPEN_FILES:
                    self._drop(self._files.popitem(last=False)[1])
            else:
                os.close(descriptor)
            file.users += 1
            return file

    def _release(self, file: _OpenFile) -> None:
        with self._lock:
            file.users -= 1
            if file.dropped and not file.users:
                os.close(file.descriptor)

    def _drop(self, file: _OpenFile) -> None:
        file.dropped = True
        if not file.users:
            os.close(file.descriptor)

    def _watch(self, path: bytes) -> None:
        try:
            self.root.with_directory(path, self._watcher.watch)
        except OSError:
            # Without a watch, attributes are valid for a second.
            return


def _first_after(names: list[bytes], name: bytes) -> int:
    return bisect_right(names, name)
