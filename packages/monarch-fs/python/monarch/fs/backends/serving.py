"""What back ends have in common: their state, stops, and notices to the kernel from threads that do not answer it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from monarch.fs._kernel import connection, poll_loop
from monarch.fs._tree.operations import MountOptions, TreeOperations

if TYPE_CHECKING:
    from collections.abc import Generator

# The most asynchronous reads (read-ahead) that the kernel may have in flight; its default of 12 starves reads over a network.
BACKGROUND = 64
# The most bytes of one notice with pages.
_STORE_BYTES = 1 << 20
# Seconds between two checks whether a reader that got a signal has been killed.
KILL_SECONDS = 0.1


class ServingBackend:
    """Serves a tree on an open descriptor of a mount. `opens`: whether an open of a file is a request, and `reason` why.

    `name`: the name of the back end in the setting `fs_backend`.

    `resumed`: another process has served this descriptor; needs Linux 6.9, else `run` raises `OSError`.
    """

    name = ""

    def __init__(self, fd: int, *, resumed: bool = False) -> None:
        self._fd, self._resumed = fd, resumed
        self.target = ""
        self._loop: poll_loop.PollLoop | None = None
        self._serving = self._stopping = False
        self._notices, self._lock = 0, threading.Lock()
        self.opens, self.reason = False, ""
        # Called on the thread of the loop when the connection is set up: another server can take it over from then on.
        self.negotiated: Callable[[], object] = lambda: None

    async def run(self, ops: TreeOperations, target: str, options: MountOptions) -> None:
        """Serves until the file system is unmounted, the connection is aborted, or `stop`. `OSError` where it cannot begin."""
        self.target, self._loop = target, poll_loop.current_loop()
        if not options.immutable:
            self.opens, self.reason = True, "a live view"
        await self._serve(ops, options)

    async def _serve(self, ops: TreeOperations, options: MountOptions) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Ends `run` without unmounting; any thread. Requests in flight get no answer."""
        self._stopping = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self.end() if self._serving else None)

    def end(self) -> None:
        raise NotImplementedError

    def counters(self) -> dict[str, int]:
        """Requests of this process by kind."""
        raise NotImplementedError

    def set_up(self, options: MountOptions) -> None:
        """The kernel and the server have negotiated. The kernel takes the smaller read-ahead of the two, so its own is raised now."""
        connection.set_read_ahead(self.target, options.read_ahead)
        self.negotiated()

    def unmount(self, *, lazy: bool) -> None:
        """Unmounts; not on the loop's thread. `MountBusyError` if it is in use and `lazy` is not set."""
        self._refuse_loop()
        connection.detach(self.target, lazy=lazy)

    def invalidate(self, entries: Sequence[tuple[int, bytes]], attrs: Sequence[int]) -> None:
        """The kernel drops names, attributes and pages before this returns. Not on the loop's thread: the kernel may wait for an answer."""
        with self._noticing():
            self._notify((lambda p=parent, n=name: self._invalidate_entry(p, n) for parent, name in entries), missing_ok=True)
            self._notify((lambda i=inode: self._invalidate_inode(i) for inode in attrs), missing_ok=True)

    def store(self, inode: int, offset: int, data: memoryview) -> None:
        """Puts pages of a file into the kernel; not on the loop's thread. `FileNotFoundError`: the kernel does not have this inode."""
        pieces = range(0, len(data), _STORE_BYTES)
        with self._noticing():
            self._notify((lambda p=p: self._store(inode, offset + p, data[p : p + _STORE_BYTES]) for p in pieces), missing_ok=False)

    def _invalidate_entry(self, parent: int, name: bytes) -> None:
        raise NotImplementedError

    def _invalidate_inode(self, inode: int) -> None:
        raise NotImplementedError

    def _store(self, inode: int, offset: int, data: memoryview) -> None:
        raise NotImplementedError

    def _refuse_loop(self) -> None:
        if self._loop is not None and self._loop.inside():
            raise RuntimeError("the thread that serves the mount would wait for itself")

    @contextmanager
    def _noticing(self) -> Generator[None]:
        self._refuse_loop()
        with self._lock:
            if not self._serving:
                raise OSError(errno.ENOTCONN, f"{self.target}: not served")
            self._notices += 1
        try:
            yield
        finally:
            with self._lock:
                self._notices -= 1

    def _notify(self, notices: Iterable[Callable[[], object]], *, missing_ok: bool) -> None:
        for notice in notices:
            try:
                notice()
            except FileNotFoundError:
                if not missing_ok:
                    raise
