"""The back end over pyfuse3: no other module imports it. It serves one mount in a process, on a descriptor of /dev/fuse.

pyfuse3 runs on trio. Here `trio` is a few functions over the poll loop, put in its place while pyfuse3 is imported, so trio is not even
loaded. With the interposer, opens of an immutable tree are no requests: the first `open` is answered ENOSYS, and the kernel opens by
itself from then on, keeping pages and listings. The kernel drops what `invalidate` names and nothing else.

A request that waits ends with EINTR when its process is killed, a direct read with any signal, each with EIO after `read_timeout`. A read
of pages goes on after other signals, as on a disk: EINTR for a page would be SIGBUS for a process that has mapped it. When serving ends,
requests in flight are left without an answer: the kernel has ended them, or it sends them to the next server of the connection.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from inspect import isawaitable
from types import ModuleType
from typing import Any, NoReturn

from monarch.fs._kernel import poll_loop
from monarch.fs._kernel.failure import answer_errno
from monarch.fs._kernel.fuse_protocol import FOREVER
from monarch.fs._kernel.holders import killed
from monarch.fs._kernel.interposer import Interposer, InterposerError, load
from monarch.fs._kernel.nursery import Nursery
from monarch.fs._tree.operations import PYFUSE3, Attr, Entry, MountOptions, TreeOperations
from monarch.fs.backends.serving import BACKGROUND, KILL_SECONDS, ServingBackend

# The most requests that may wait at the same time; each has a task with a buffer of 1 MiB, of which the kernel backs the first page.
_TASKS = 4096
_BLOCK = 4096
_WRITES = ("setattr", "mknod", "mkdir", "unlink", "rmdir", "symlink", "rename", "link", "create", "setxattr", "removexattr", "write")


class Pyfuse3Backend(ServingBackend):
    """Serves a tree on an open descriptor of a mount; a resumed one needs the interposer."""

    name = PYFUSE3

    def __init__(self, fd: int, *, resumed: bool = False) -> None:
        super().__init__(fd, resumed=resumed)
        self._requests: _Requests | None = None
        self.interposer: Interposer | None = None
        try:
            self.interposer = load()
        except InterposerError as e:
            self.opens, self.reason = True, str(e)
        self._trio = Nursery()
        self._fuse = _import(self._trio)

    async def _serve(self, ops: TreeOperations, options: MountOptions) -> None:
        fuse, front, target = self._fuse, self.interposer, self.target
        if front is not None:
            front.configure(read_ahead=options.read_ahead, background=BACKGROUND, immutable=options.immutable)
        requests = self._requests = _Requests(fuse, ops, options, self)
        # pyfuse3 closes the descriptor of its session.
        own = os.dup(self._fd)
        try:
            fuse.init(requests, f"/dev/fd/{own}", set())  # pyright: ignore[reportArgumentType]
        except RuntimeError as e:
            os.close(own)
            raise OSError(errno.EIO, f"{target}: {e}") from None
        if front is not None and not front.in_front():
            front = self.interposer = None
            self.opens, self.reason = True, "pyfuse3 does not call libfuse through the interposer"
        if front is not None:
            os.set_blocking(own, False)
            front.on_interrupt(requests.interrupt)
        if self._resumed:
            if front is None:
                raise OSError(errno.ENOSYS, f"{target}: a connection is resumed by the interposer only: {self.reason}")
            self._trio.stashed = front.resume()
        self._serving = True
        try:
            if not self._stopping:
                await fuse.main(1, _TASKS)
        finally:
            with self._lock:
                self._serving = False
            # A notice that another thread sends may wait forever for an answer; the session then remains until the end of the process.
            if not self._notices:
                fuse.close(unmount=False)

    def end(self) -> None:
        self._fuse.terminate()

    def counters(self) -> dict[str, int]:
        """Requests of this process by kind; without the interposer those that reach Python."""
        if self.interposer is not None:
            return self.interposer.counters()
        return dict(self._requests.counts) if self._requests else {}

    def _invalidate_entry(self, parent: int, name: bytes) -> None:
        self._fuse.invalidate_entry(parent, name)

    def _invalidate_inode(self, inode: int) -> None:
        self._fuse.invalidate_inode(inode, False)

    def _store(self, inode: int, offset: int, data: memoryview) -> None:
        self._fuse.notify_store(inode, offset, data)


class _Requests:
    """The handlers that pyfuse3 calls. It accepts no exception but its own from them."""

    supports_dot_lookup = enable_writeback_cache = enable_acl = False

    def __init__(self, fuse: ModuleType, ops: TreeOperations, options: MountOptions, backend: Pyfuse3Backend) -> None:
        self._fuse, self._ops, self._options, self._backend = fuse, ops, options, backend
        self._error: type[Exception] = fuse.FUSEError
        # Requests that may wait: the task, the thread that sent them, whether any signal ends them.
        self._waiting: dict[int, tuple[poll_loop.Task, tuple[int, bool]]] = {}
        self.counts = Counter[str]()
        refusal = errno.EROFS if options.immutable else errno.EACCES

        async def refuse(*_: object) -> NoReturn:
            raise self._error(refusal)

        for name in _WRITES:
            setattr(self, name, refuse)
        self._refusal = refusal

    def __getattr__(self, name: str) -> Callable[..., Awaitable[NoReturn]]:
        if name.startswith("_"):
            raise AttributeError(name)

        async def absent(*_: object) -> NoReturn:
            raise self._error(errno.ENOSYS)

        return absent

    def init(self) -> None:
        # The kernel takes the smaller of its own value and the answer to this request, so its own is raised after the answer was sent.
        poll_loop.current_loop().call_later(0, lambda: self._backend.set_up(self._options))

    def interrupt(self, request: int) -> None:
        if (found := self._waiting.get(request)) is None:
            return
        task, (thread, direct) = found
        if direct or killed(thread):
            task.resume(InterruptedError(errno.EINTR, "the reader got a signal"))
        else:
            # The kernel announces only the first signal.
            poll_loop.current_loop().call_later(KILL_SECONDS, lambda: self.interrupt(request))

    def _call(self, what: str, operation: Callable[..., Any], *args: Any) -> Any:
        self.counts[what] += 1
        try:
            return operation(*args)
        except Exception as e:
            raise self._error(answer_errno(f"{self._backend.target}: {what}", e)) from None

    def _attributes(self, attr: Attr | None, valid: float = FOREVER) -> Any:
        a = self._fuse.EntryAttributes()
        a.entry_timeout = min(valid, FOREVER)
        if attr is None:
            return a
        a.st_ino, a.st_mode, a.st_nlink, a.st_uid, a.st_gid = attr.inode, attr.mode, attr.nlink, attr.uid, attr.gid
        a.st_size, a.st_blocks, a.attr_timeout = attr.size, attr.blocks, min(attr.valid, FOREVER)
        a.st_atime_ns = a.st_mtime_ns = attr.mtime_ns
        a.st_ctime_ns = attr.ctime_ns or attr.mtime_ns
        return a

    async def _waited(self, what: str, answer: Any) -> Any:
        """The answer of a live tree, which may be an awaitable where `TreeOperations` has an answer at once."""
        if self._options.immutable or not isawaitable(answer):
            return answer
        return await self._limited(what, answer)

    async def _limited(self, what: str, answer: Awaitable[Any]) -> Any:
        """The answer of a request that may wait, at most `read_timeout`. A handler calls it before its first wait."""
        task = poll_loop.current_loop().task
        assert task is not None
        request, reader = (front.request(), front.reader()) if (front := self._backend.interposer) else (id(task), (0, False))
        self._waiting[request], task.limit = (task, reader), self._options.read_timeout
        try:
            return await answer
        except Exception as e:
            raise self._error(answer_errno(f"{self._backend.target}: {what}", e)) from None
        finally:
            task.limit = None
            del self._waiting[request]

    async def lookup(self, parent: int, name: bytes, ctx: object) -> Any:
        entry: Entry = await self._waited("lookup", self._call("lookup", self._ops.lookup, parent, name))
        return self._attributes(entry.attr, entry.valid)

    async def getattr(self, inode: int, ctx: object) -> Any:
        return self._attributes(await self._waited("getattr", self._call("getattr", self._ops.attr, inode)))

    async def readlink(self, inode: int, ctx: object) -> bytes:
        return await self._waited("readlink", self._call("readlink", self._ops.readlink, inode))

    async def open(self, inode: int, flags: int, ctx: object) -> Any:
        self.counts["open"] += 1
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            raise self._error(self._refusal)
        if not self._backend.opens:
            raise self._error(errno.ENOSYS)
        # A live tree may keep the file open, so that reads find it after a rename.
        if not self._options.immutable and (hold := getattr(self._ops, "open", None)) is not None:
            await self._waited("open", hold(inode))
        return self._fuse.FileInfo(fh=inode, keep_cache=self._options.immutable)

    async def opendir(self, inode: int, ctx: object) -> int:
        self.counts["opendir"] += 1
        if not self._backend.opens:
            raise self._error(errno.ENOSYS)
        return inode

    async def release(self, fh: int) -> None: ...

    async def releasedir(self, fh: int) -> None: ...

    async def readdir(self, inode: int, after: int, token: Any) -> None:
        found = await self._waited("readdirplus", self._call("readdirplus", self._ops.readdir, inode, after))
        try:
            self._list(found, token)
        except Exception as e:
            raise self._error(answer_errno(f"{self._backend.target}: readdirplus", e)) from None

    def _list(self, entries: Iterable[Entry], token: Any) -> None:
        for entry in entries:
            if not self._fuse.readdir_reply(token, entry.name, self._attributes(entry.attr, entry.valid), entry.cookie):
                break

    async def read(self, inode: int, offset: int, size: int) -> bytes | memoryview:
        self.counts["read"] += 1
        return await self._limited("read", self._ops.read(inode, offset, size))

    async def listxattr(self, inode: int, ctx: object) -> list[bytes]:
        return self._call("listxattr", self._ops.listxattr, inode)

    async def getxattr(self, inode: int, name: bytes, ctx: object) -> bytes:
        return self._call("getxattr", self._ops.getxattr, inode, name)

    async def statfs(self, ctx: object) -> Any:
        found, s = self._call("statfs", self._ops.statfs), self._fuse.StatvfsData()
        s.f_bsize = s.f_frsize = _BLOCK
        s.f_blocks, s.f_files, s.f_namemax = -(-found.size // _BLOCK), found.inodes, 255
        return s

    def forget(self, inodes: list[tuple[int, int]]) -> None:
        for inode, n in inodes:
            with suppress(self._error):
                self._call("forget", self._ops.forget, inode, n)


def _import(trio: Nursery) -> Any:
    """pyfuse3 with this module as its trio; trio itself stays as it is for other modules."""
    before = sys.modules.get("trio")
    sys.modules["trio"] = trio
    try:
        import pyfuse3
    finally:
        if before is None:
            del sys.modules["trio"]
        else:
            sys.modules["trio"] = before
    pyfuse3.trio = trio  # pyright: ignore[reportAttributeAccessIssue]
    # It logs each answer that is too late, such as one to a killed reader.
    logging.getLogger("pyfuse3").setLevel(logging.CRITICAL)
    return pyfuse3
