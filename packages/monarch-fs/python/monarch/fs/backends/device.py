"""The back end on /dev/fuse itself: it needs no library, no compiler and no headers, only the device.

One thread reads requests, answers them from the tree, and waits in poll(). A request that the tree answers at once takes no task: a read is
a task, because it may wait for its bytes.

The caches of the kernel are those of `backends.pyfuse3`: names, misses, attributes, links, pages and listings without limit, dropped by
`invalidate`; opens of an immutable tree are no requests. The kernel sends handle 0 for such files, and reads have the inode.

A waiting read ends with EINTR when its process is killed, a direct read with any signal, and with EIO after `read_timeout`. A read of
pages goes on after other signals, as on a disk: EINTR for a page would be SIGBUS for a process that has mapped it. When serving ends,
requests in flight are left without an answer: the kernel has ended them, or it sends them to the next server of the connection.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from inspect import isawaitable
from time import perf_counter
from typing import Any

from monarch.fs._kernel import fuse_protocol as fuse
from monarch.fs._kernel.failure import answer_errno
from monarch.fs._kernel.holders import killed
from monarch.fs._kernel.poll_loop import PollLoop, Task, Waiter
from monarch.fs._tree.operations import DEVICE, MountOptions, TreeOperations
from monarch.fs.backends.serving import BACKGROUND, KILL_SECONDS, ServingBackend

# Requests that are answered before the loop checks its other descriptors, calls and timers.
_AT_ONCE = 64
# Seconds for which a server polls for the next request before it sleeps, and the number of requests without a poll after a poll that found
# none. A reader on another processor sends its next request within 20 to 50 us. Measured there: 40 us from request to request and 38 us of
# processor time with this poll, 95 and 48 with a sleep after each answer.
_SOON, _NOT_SOON = 60e-6, 16
_WRITES = (
    "setattr",
    "mknod",
    "mkdir",
    "unlink",
    "rmdir",
    "symlink",
    "rename",
    "rename2",
    "link",
    "create",
    "setxattr",
    "removexattr",
    "tmpfile",
    "write",
)
# The errors of an ended request or connection.
_ABORTED = (errno.ENOENT, errno.ENODEV, errno.ECONNABORTED)
Body = bytes | memoryview
_log = logging.getLogger(__name__)


class DeviceBackend(ServingBackend):
    """Serves a tree on an open descriptor of a mount."""

    name = DEVICE

    def __init__(self, fd: int, *, resumed: bool = False) -> None:
        super().__init__(fd, resumed=resumed)
        self._requests: _Requests | None = None
        self._ended: Waiter[None] = Waiter()

    async def _serve(self, ops: TreeOperations, options: MountOptions) -> None:
        loop = self._loop
        assert loop is not None
        os.set_blocking(self._fd, False)
        if self._resumed:
            try:
                os.writev(self._fd, fuse.resend())
            except OSError as e:
                text = f"{self.target}: the kernel cannot send the requests of the connection again: {e.strerror}"
                raise OSError(e.errno, text) from None
        requests = self._requests = _Requests(self._fd, ops, options, self, loop)
        self._serving = True
        try:
            # The earlier server ended before it answered INIT: INIT is the first request then, and no other arrives before its answer.
            if self._resumed and not requests.first_is_init():
                loop.call_later(0, lambda: self.set_up(options))
            if not self._stopping:
                loop.watch(self._fd, requests.receive)
                # There is no event for a request that the check has received.
                loop.call_later(0, requests.receive)
                await self._ended
        finally:
            with self._lock:
                self._serving = False
            loop.unwatch(self._fd)

    def end(self) -> None:
        """Ends `run`; nothing happens where it has ended."""
        self._ended.set_result(None)

    def fail(self, error: OSError) -> None:
        """Ends `run` with this error."""
        self._ended.set_exception(error)

    def counters(self) -> dict[str, int]:
        counts = self._requests.counts if self._requests else []
        return {fuse.OPCODES.get(code, f"opcode_{code}"): count for code, count in enumerate(counts) if count}

    def _invalidate_entry(self, parent: int, name: bytes) -> None:
        os.writev(self._fd, fuse.inval_entry(parent, name))

    def _invalidate_inode(self, inode: int) -> None:
        os.writev(self._fd, fuse.inval_inode(inode))

    def _store(self, inode: int, offset: int, data: memoryview) -> None:
        os.writev(self._fd, fuse.store(inode, offset, data))


class _Requests:
    """Reads and answers the requests of one connection, on the thread of the loop."""

    def __init__(self, fd: int, ops: TreeOperations, options: MountOptions, backend: DeviceBackend, loop: PollLoop) -> None:
        self._fd, self._ops, self._options, self._backend, self._loop = fd, ops, options, backend, loop
        self._buffer = memoryview(bytearray(fuse.BUFFER_BYTES))
        self._buffers = [self._buffer]
        self._first = 0
        # Requests until the next poll for a request; with one processor, a polling server would delay its reader.
        self._unhurried = 0 if len(os.sched_getaffinity(0)) > 1 else sys.maxsize
        # Pending requests: their task, the thread that sent them, whether any signal ends them (as for O_DIRECT reads).
        self._waiting: dict[int, tuple[Task, int, bool]] = {}
        # The thread of the request that is being received.
        self._thread = 0
        self.counts = [0] * 64
        self._refusal = errno.EROFS if options.immutable else errno.EACCES
        self._handlers: list[Callable[[int, int, memoryview], None]] = [self._absent] * 64
        for code, name in fuse.OPCODES.items():
            handler = self._refuse if name in _WRITES else getattr(self, f"_on_{name}", None)
            if handler is not None:
                self._handlers[code] = handler

    def first_is_init(self) -> bool:
        """Whether a request is there that must be answered before any other. A request that was received waits for `receive`."""
        with suppress(OSError):
            self._first = os.readv(self._fd, self._buffers)
        return self._first >= fuse.REQUEST.size and fuse.OPCODES.get(fuse.REQUEST.unpack_from(self._buffer)[1]) == "init"

    def receive(self) -> None:
        """Answers what is there, up to a bound."""
        fd, buffers, handlers, counts, unpack = self._fd, self._buffers, self._handlers, self.counts, fuse.REQUEST.unpack_from
        for _ in range(_AT_ONCE):
            try:
                size = self._first or os.readv(fd, buffers)
            except BlockingIOError:
                size = self._received_soon()
                if not size:
                    return
            except OSError as e:
                # ENOENT: a request was aborted before it was received.
                if e.errno in (errno.ENOENT, errno.EINTR):
                    continue
                if e.errno in _ABORTED:
                    self._backend.end()
                else:
                    self._backend.fail(e)
                return
            self._first = 0
            _, code, identity, inode, _, _, self._thread, _, _ = unpack(self._buffer)
            if code >= 64:
                self._error(identity, errno.ENOSYS)
                continue
            counts[code] += 1
            try:
                handlers[code](identity, inode, self._buffer[fuse.REQUEST.size : size])
            except Exception as e:
                self._fail(identity, fuse.OPCODES.get(code, f"opcode_{code}"), e)

    def _received_soon(self) -> int:
        """The size of a request that comes at once, or 0."""
        if self._unhurried:
            self._unhurried -= 1
            return 0
        end = perf_counter() + _SOON
        while perf_counter() < end:
            # The next event announces everything else, such as the end of the connection.
            with suppress(OSError):
                return os.readv(self._fd, self._buffers)
        self._unhurried = _NOT_SOON
        return 0

    # Answers.

    def _write(self, identity: int, *parts: Body) -> None:
        try:
            os.writev(self._fd, parts)
        except OSError as e:
            # A request that was aborted in the meantime has no answer, and an ended connection has none.
            if e.errno not in _ABORTED:
                _log.error("%s: the kernel refuses an answer: %s", self._backend.target, e.strerror)
                if len(parts) > 1:
                    self._error(identity, errno.EIO)

    def _reply(self, identity: int, body: Body = b"") -> None:
        self._write(identity, fuse.answer(identity, 0, len(body)), body)

    def _error(self, identity: int, number: int) -> None:
        self._write(identity, fuse.answer(identity, number))

    def _fail(self, identity: int, what: str, e: Exception) -> None:
        self._error(identity, answer_errno(f"{self._backend.target}: {what}", e))

    def _answer(self, identity: int, what: str, operation: Callable[..., Any], *args: Any, body: Callable[[Any], Body]) -> None:
        try:
            found = operation(*args)
            if not self._options.immutable and isawaitable(found):
                self._begin(identity, self._answer_later(identity, what, found, body))
                return
            made = body(found)
        except Exception as e:
            self._fail(identity, what, e)
        else:
            self._reply(identity, made)

    async def _answer_later(self, identity: int, what: str, found: Awaitable[Any], body: Callable[[Any], Body]) -> None:
        """The answer of a live tree, which may be an awaitable where `TreeOperations` has an answer at once."""
        try:
            made = body(await found)
        except Exception as e:
            self._fail(identity, what, e)
        else:
            self._reply(identity, made)
        finally:
            self._waiting.pop(identity, None)

    def _begin(self, identity: int, coroutine: Any, *, direct: bool = False) -> None:
        """Runs what may wait, at most `read_timeout`."""
        task = self._loop.begin(coroutine, self._options.read_timeout)
        if task.parked is not None:
            self._waiting[identity] = (task, self._thread, direct)

    def _absent(self, identity: int, inode: int, body: memoryview) -> None:
        self._error(identity, errno.ENOSYS)

    def _refuse(self, identity: int, inode: int, body: memoryview) -> None:
        self._error(identity, self._refusal)

    # Requests, by the names of `OPCODES`.

    def _on_init(self, identity: int, inode: int, body: memoryview) -> None:
        options = self._options
        try:
            made = fuse.init_body(body, read_ahead=options.read_ahead, background=BACKGROUND, immutable=options.immutable)
        except OSError as e:
            self._error(identity, errno.EPROTO)
            self._backend.fail(OSError(e.errno, f"{self._backend.target}: {e.strerror}"))
            return
        self._reply(identity, made)
        self._backend.set_up(options)

    def _on_lookup(self, identity: int, inode: int, body: memoryview) -> None:
        self._answer(identity, "lookup", self._ops.lookup, inode, bytes(body[:-1]), body=fuse.entry_body)

    def _on_getattr(self, identity: int, inode: int, body: memoryview) -> None:
        self._answer(identity, "getattr", self._ops.attr, inode, body=fuse.attr_body)

    def _on_readlink(self, identity: int, inode: int, body: memoryview) -> None:
        self._answer(identity, "readlink", self._ops.readlink, inode, body=bytes)

    def _on_statfs(self, identity: int, inode: int, body: memoryview) -> None:
        self._answer(identity, "statfs", self._ops.statfs, body=fuse.statfs_body)

    def _on_open(self, identity: int, inode: int, body: memoryview) -> None:
        flags, _ = fuse.OPEN_FLAGS.unpack_from(body)
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            self._error(identity, self._refusal)
        elif self._options.immutable:
            # The kernel answers further opens itself.
            self._error(identity, errno.ENOSYS)
        else:
            # A live tree may keep the file open, so that reads find it after a rename.
            hold: Callable[[int], Any] = getattr(self._ops, "open", lambda _: None)
            self._answer(identity, "open", hold, inode, body=lambda _: fuse.open_body(inode, keep_cache=False))

    def _on_opendir(self, identity: int, inode: int, body: memoryview) -> None:
        if self._options.immutable:
            self._error(identity, errno.ENOSYS)
        else:
            self._reply(identity, fuse.open_body(inode, keep_cache=False))

    def _done(self, identity: int, inode: int, body: memoryview) -> None:
        self._reply(identity)

    _on_release = _on_releasedir = _on_destroy = _done

    def _on_readdirplus(self, identity: int, inode: int, body: memoryview) -> None:
        _, after, size, *_ = fuse.READ.unpack_from(body)

        def listing(entries: Any) -> bytes:
            made = bytearray()
            # An entry counts as a reference once the next one is requested.
            for entry in entries:
                piece = fuse.listing_piece(entry)
                if len(made) + len(piece) > size:
                    break
                made += piece
            return bytes(made)

        self._answer(identity, "readdirplus", self._ops.readdir, inode, after, body=listing)

    def _on_read(self, identity: int, inode: int, body: memoryview) -> None:
        _, offset, size, _, _, flags, _ = fuse.READ.unpack_from(body)
        self._begin(identity, self._read(identity, inode, offset, size), direct=bool(flags & os.O_DIRECT))

    async def _read(self, identity: int, inode: int, offset: int, size: int) -> None:
        try:
            found = await self._ops.read(inode, offset, size)
        except Exception as e:
            self._fail(identity, "read", e)
        else:
            self._reply(identity, found)
        finally:
            self._waiting.pop(identity, None)

    def _on_interrupt(self, identity: int, inode: int, body: memoryview) -> None:
        self._interrupt(fuse.INTERRUPT.unpack_from(body)[0])

    def _interrupt(self, identity: int) -> None:
        if (found := self._waiting.get(identity)) is None:
            return
        task, thread, direct = found
        if direct or killed(thread):
            task.resume(InterruptedError(errno.EINTR, "the reader got a signal"))
        else:
            # The kernel announces only the first signal.
            self._loop.call_later(KILL_SECONDS, lambda: self._interrupt(identity))

    def _on_listxattr(self, identity: int, inode: int, body: memoryview) -> None:
        room, _ = fuse.XATTR.unpack_from(body)
        self._answer(
            identity, "listxattr", self._ops.listxattr, inode, body=lambda names: fuse.xattr_body(b"".join(n + b"\0" for n in names), room)
        )

    def _on_getxattr(self, identity: int, inode: int, body: memoryview) -> None:
        room, _ = fuse.XATTR.unpack_from(body)
        name = bytes(body[fuse.XATTR.size : -1])
        self._answer(identity, "getxattr", self._ops.getxattr, inode, name, body=lambda value: fuse.xattr_body(value, room))

    def _on_forget(self, identity: int, inode: int, body: memoryview) -> None:
        self._forget(inode, fuse.FORGET.unpack_from(body)[0])

    def _on_batch_forget(self, identity: int, inode: int, body: memoryview) -> None:
        count, _ = fuse.FORGET_COUNT.unpack_from(body)
        start = fuse.FORGET_COUNT.size
        for one, n in fuse.FORGET_ONE.iter_unpack(body[start : start + count * fuse.FORGET_ONE.size]):
            self._forget(one, n)

    def _forget(self, inode: int, n: int) -> None:
        try:
            self._ops.forget(inode, n)
        except Exception as e:
            answer_errno(f"{self._backend.target}: forget", e)

    def _on_ioctl(self, identity: int, inode: int, body: memoryview) -> None:
        self._error(identity, errno.ENOTTY)
