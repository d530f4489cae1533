"""Which directories of a root have changed: reported in batches, by inotify or, where no watch can be had, by comparison.

A directory is watched from the first time that the client asks for it or for a file in it, up to `limit` directories; the one that was
asked for longest ago gives way. One watch covers the names of the directory and the content of its files. Where the kernel gives no further
watch (`fs.inotify.max_user_watches`), the modification times of the directory's entries are compared each second instead.

Changes are collected for `BATCH` seconds from the first one and then reported once each: a burst of writes to a log is one report.
A queue of the kernel that overflowed reports everything as changed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

# Seconds from the first change to its report.
BATCH = 0.05
# Seconds between two comparisons of a directory without a watch.
POLL = 1.0
# The most directories that one host watches for one client.
LIMIT = 4096
# The most entries for which a directory without a watch is compared by entries; a larger one is compared by its own times.
_COMPARED = 4096
# The most changes of one report; more are reported as "everything".
_LARGEST = 4096

_MODIFY, _ATTRIB, _CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x8, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IGNORED = 0x400, 0x800, 0x4000, 0x8000
_ONLYDIR, _DONT_FOLLOW = 0x01000000, 0x02000000
_NAMES = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_MASK = _MODIFY | _ATTRIB | _CLOSE_WRITE | _NAMES | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_EVENT = struct.Struct("iIII")

_libc = ctypes.CDLL(None, use_errno=True)


class Changed(NamedTuple):
    """One name of a directory. `renewed`: the name has another file than before, or none; else the file's content or attributes changed."""

    directory: bytes
    name: bytes
    renewed: bool


class Watcher:
    """The changes below one root, given to `report` on the watcher's thread; None is "anything may have changed"."""

    def __init__(self, report: Callable[[list[Changed] | None], None], *, limit: int = LIMIT) -> None:
        self._report = report
        self._limit = limit
        self._lock = threading.Lock()
        self._watched: OrderedDict[bytes, int] = OrderedDict()
        self._by_number: dict[int, bytes] = {}
        self._polled: OrderedDict[bytes, tuple[int, dict[bytes, tuple[int, ...]]]] = OrderedDict()
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # No inotify instance is left: all directories are compared.
        self._queue = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="monarch-gather-watcher", daemon=True)
        self._thread.start()

    def watch(self, path: bytes, directory: int) -> None:
        """Watches the directory that this descriptor has open, as `path` in reports. Idempotent and cheap where it is watched."""
        with self._lock:
            if self._closed:
                return
            if path in self._watched:
                self._watched.move_to_end(path)
                return
            if path in self._polled:
                self._polled.move_to_end(path)
                return
            number = -1
            if self._queue >= 0:
                number = _libc.inotify_add_watch(self._queue, b"/proc/self/fd/%d" % directory, _MASK)
            if number >= 0:
                # Another path of the same directory, before it was moved: the kernel has one watch for both.
                self._watched.pop(self._by_number.get(number, b"\0"), None)
                self._watched[path], self._by_number[number] = number, path
                if len(self._watched) > self._limit:
                    _, oldest = self._watched.popitem(last=False)
                    self._by_number.pop(oldest, None)
                    _libc.inotify_rm_watch(self._queue, oldest)
                return
            try:
                copy = os.open(b"/proc/self/fd/%d" % directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                return
            self._polled[path] = (copy, _entries(copy))
            # Fewer than watches: each comparison needs a descriptor.
            if len(self._polled) > min(self._limit, 256):
                os.close(self._polled.popitem(last=False)[1][0])
            os.eventfd_write(self._wake, 1)

    def counts(self) -> tuple[int, int]:
        """Directories with a watch, and those that are compared."""
        with self._lock:
            return len(self._watched), len(self._polled)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._wake, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._queue >= 0:
            poll.register(self._queue, select.POLLIN)
        changes: dict[Changed, None] = {}
        everything = False
        due = compare = float("inf")
        while True:
            with self._lock:
                if self._closed:
                    break
                compare = min(compare, monotonic() + POLL) if self._polled else float("inf")
            until = min(due, compare)
            ready = {fd for fd, _ in poll.poll(None if until == float("inf") else max(0.0, until - monotonic()) * 1000)}
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if self._queue in ready:
                everything |= self._drain(changes)
            if monotonic() >= compare:
                compare = float("inf")
                self._compare(changes)
            if len(changes) > _LARGEST:
                everything = True
            if everything:
                changes.clear()
            if (changes or everything) and due == float("inf"):
                due = monotonic() + BATCH
            if monotonic() >= due:
                found, changes, due = None if everything else list(changes), {}, float("inf")
                everything = False
                self._report(found)
        with self._lock:
            for descriptor, _ in self._polled.values():
                os.close(descriptor)
            self._polled.clear()
            if self._queue >= 0:
                os.close(self._queue)
            os.close(self._wake)

    def _drain(self, changes: dict[Changed, None]) -> bool:
        """Reads what the kernel has queued; True: the queue has overflowed."""
        lost = False
        while True:
            try:
                data = os.read(self._queue, 1 << 16)
            except BlockingIOError:
                return lost
            at = 0
            while at < len(data):
                number, mask, _, size = _EVENT.unpack_from(data, at)
                name = data[at + _EVENT.size : at + _EVENT.size + size].rstrip(b"\0")
                at += _EVENT.size + size
                if mask & _OVERFLOW:
                    lost = True
                    continue
                with self._lock:
                    path = self._by_number.get(number)
                    if path is None:
                        continue
                    if mask & (_IGNORED | _MOVE_SELF | _DELETE_SELF):
                        # The path may now belong to another directory, which the next access watches.
                        self._by_number.pop(number, None)
                        self._watched.pop(path, None)
                        if not mask & _IGNORED:
                            _libc.inotify_rm_watch(self._queue, number)
                if mask & (_IGNORED | _MOVE_SELF | _DELETE_SELF):
                    directory, _, last = path.rpartition(b"/")
                    changes[Changed(directory, last, True)] = None
                elif name:
                    changes[Changed(path, name, bool(mask & _NAMES))] = None
                else:
                    directory, _, last = path.rpartition(b"/")
                    changes[Changed(directory, last, False)] = None

    def _compare(self, changes: dict[Changed, None]) -> None:
        with self._lock:
            polled = list(self._polled.items())
        for path, (descriptor, before) in polled:
            with self._lock:
                if self._polled.get(path, (-1,))[0] != descriptor:
                    continue
                now = _entries(descriptor)
                self._polled[path] = (descriptor, now)
            for name in before.keys() | now.keys():
                old, new = before.get(name), now.get(name)
                if old != new:
                    renewed = old is None or new is None or old[0] != new[0]
                    changes[Changed(path, name, renewed)] = None


def _entries(directory: int) -> dict[bytes, tuple[int, ...]]:
    """Inode, size and times of each entry."""
    found: dict[bytes, tuple[int, ...]] = {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if len(found) >= _COMPARED:
                    break
                try:
                    at = entry.stat(follow_symlinks=False)
                except OSError as e:
                    if e.errno != errno.ENOENT:
                        raise
                    continue
                found[os.fsencode(entry.name)] = (at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
    except OSError:
        return found
    return found
