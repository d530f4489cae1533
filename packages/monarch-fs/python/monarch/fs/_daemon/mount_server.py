"""The process that serves one mount. Its arguments: FOLDER FUSE LISTENER resume|first.

Four threads: the main thread answers the kernel and never waits for another process; one thread exchanges messages with the daemon; one
works on requests of the daemon that take time (tables, invalidations), and one puts pages into the kernel, which no refresh waits for.
The server listens on a socket of its own and takes the newest connection, so a daemon can be replaced while the mount is served. It passes
the descriptors of /dev/fuse and of the listening socket to the daemon. Without a daemon for `ORPHAN_SECONDS` the mount has no users any
more: the server unmounts it and ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import select
import shutil
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from monarch.extension.channel import Channel, ChannelError, Head, Message
from monarch.fs._daemon.error_message import error_head
from monarch.fs._daemon.fetched_chunks import FetchedChunks
from monarch.fs._daemon.mount_record import LINGER_SECONDS, STATE, TABLE, MountRecord, remove_made
from monarch.fs._daemon.mounted_tree import MountedTree
from monarch.fs._daemon.numbering import Change
from monarch.fs._daemon.tree_state import TreeState
from monarch.fs._kernel import connection, poll_loop
from monarch.fs._store.store import Store
from monarch.fs._tree.difference import patched
from monarch.fs._tree.node import PIECE_BYTES
from monarch.fs._tree.table import Table
from monarch.fs.backends.choice import make_backend
from monarch.fs.errors import FsError

# Seconds for which a mount is served without a daemon.
ORPHAN_SECONDS = 10.0
# The most staged tables; the oldest is dropped.
_MAX_STAGED = 4
T = TypeVar("T")


class MountServer:
    """Serves the mount of a folder until it is unmounted."""

    def __init__(self, folder: Path, fuse: int, listener: socket.socket, *, resumed: bool) -> None:
        self._folder, self._fuse, self._listener, self._resumed = folder, fuse, listener, resumed
        self._record = MountRecord.load(folder)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._channel: Channel | None = None
        self._orphaned = time.monotonic()
        self._detached = self._ready = False
        self._chunks = FetchedChunks(Store(Path(self._record.store), self._record.limit), self._send)
        self._work: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._pages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._staged: dict[str, Change] = {}
        self._table: Table | None = None
        threading.Thread(target=self._exchange, name="messages", daemon=True).start()
        self._tree = self._opened()
        self._backend = make_backend(self._record.options.backend, fuse, resumed=resumed)
        self._backend.negotiated = self._negotiated

    def _opened(self) -> MountedTree:
        state, owner = self._folder / STATE, self._record.owner
        if self._resumed:
            return MountedTree.restore(state, self._chunks, owner=owner)
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir(mode=0o700)
        self._table = Table.decode((self._folder / TABLE).read_bytes())
        return MountedTree(self._table, self._chunks, state, owner=owner)

    def run(self) -> None:
        """Returns when the mount has gone."""
        poll_loop.run(self._backend.run(self._tree, self._record.target, self._record.options))

    def _negotiated(self) -> None:
        if not self._ready:
            self._ready = True
            for name, requests in (("requests", self._work), ("pages", self._pages)):
                threading.Thread(target=self._handle_requests, args=(requests,), name=name, daemon=True).start()
            self._send({"op": "ready"})

    # Messages.

    def _send(self, head: Head, blob: bytes = b"") -> None:
        channel = self._channel
        if channel is not None:
            with contextlib.suppress(ChannelError):
                channel.queue(head, blob)
                os.eventfd_write(self._event, 1)

    def _exchange(self) -> None:
        try:
            while True:
                self._exchange_once()
        except BaseException:
            traceback.print_exc()
            os._exit(3)

    def _exchange_once(self) -> None:
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        channel, timeout = self._channel, None
        try:
            if channel is None:
                timeout = self._orphan_timeout()
            else:
                poll.register(channel, select.POLLIN if channel.flush() else select.POLLIN | select.POLLOUT)
            ready = {fd for fd, _ in poll.poll(timeout)}
            if self._event in ready:
                os.eventfd_read(self._event)
            if channel is not None and channel.fileno() in ready:
                for message in channel.receive():
                    self._take(message)
        except ChannelError:
            assert channel is not None
            channel.close()
            self._channel, self._orphaned = None, time.monotonic()
            return
        if self._listener.fileno() in ready:
            self._accept()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError):
            return
        channel = Channel(sock)
        if channel.peer()[1] != os.getuid():
            channel.close()
            return
        if self._channel is not None:
            self._channel.close()
        channel.queue({"op": "hello", "pid": os.getpid(), "ready": self._ready}, b"", [self._fuse, self._listener.fileno()])
        self._channel = channel
        self._chunks.repeat()

    def _take(self, message: Message) -> None:
        op = message.head.get("op")
        if op == "fetched":
            self._chunks.answer(message)
        elif op == "detached":
            self._detached = True
        else:
            (self._pages if op == "push" else self._work).put(message)

    def _orphan_timeout(self) -> float:
        """Milliseconds until something is to be done about the lack of a daemon."""
        limit = LINGER_SECONDS if self._detached else ORPHAN_SECONDS
        left = self._orphaned + limit - time.monotonic()
        if left > 0:
            return left * 1000 + 1
        if self._detached:
            os._exit(0)
        threading.Thread(target=self._leave, name="unmount", daemon=True).start()
        self._detached, self._orphaned = True, time.monotonic()
        return LINGER_SECONDS * 1000

    def _leave(self) -> None:
        target = self._record.target
        if connection.mount_point(target).device != self._record.device:
            return  # another mount is there now
        print(f"{target}: no daemon for {ORPHAN_SECONDS:g} s; unmounting", file=sys.stderr, flush=True)
        try:
            connection.detach(target, lazy=False)
        except FsError as e:
            print(e, file=sys.stderr, flush=True)
            with contextlib.suppress(FsError):
                connection.detach(target, lazy=True)
        remove_made(self._record.made)
        shutil.rmtree(self._folder, ignore_errors=True)

    # Requests of the daemon.

    def _handle_requests(self, requests: queue.SimpleQueue[Message]) -> None:
        while True:
            message = requests.get()
            head = message.head
            operation = {
                "stage": self._stage,
                "commit": self._commit,
                "abort": self._abort,
                "push": self._push,
                "status": self._status,
            }.get(str(head.get("op")))
            try:
                if operation is None:
                    raise ValueError(f"no operation {head.get('op')!r}")
                answer = operation(head, message.blob)
            except Exception as e:
                if not isinstance(e, (FsError, ValueError, OSError)):
                    traceback.print_exc()
                answer = {"error": error_head(e)}
            self._send({"op": "answer", "call": head.get("call"), **answer})

    def _on_loop(self, call: Callable[[], T]) -> T:
        done = threading.Event()
        result: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                result.append(call())
            except BaseException as e:
                failed.append(e)
            done.set()

        poll_loop.call_soon_threadsafe(run)
        # The end of a loop ends the process.
        done.wait()
        if failed:
            raise failed[0]
        return result[0]

    def _stage(self, head: Head, blob: bytes) -> dict[str, Any]:
        delta: tuple[str, bytes] | None = None
        if head["full"]:
            new = Table.decode(blob)
        else:
            if self._table is None or self._table.generation != self._tree.generation:
                self._table = TreeState(self._folder / STATE).load().table
            new, delta = patched(self._table, blob), (self._table.generation, blob)
        if new.generation != self._tree.generation:
            self._staged[new.generation] = self._tree.prepare(new, delta)
            while len(self._staged) > _MAX_STAGED:
                del self._staged[next(iter(self._staged))]
        return {"generation": new.generation}

    def _commit(self, head: Head, _: bytes) -> dict[str, Any]:
        generation = str(head["generation"])
        if connection.descriptor_failed(self._fuse):
            # It was unmounted or aborted: the process ends as soon as its loop notices, and the daemon decides what follows.
            threading.Event().wait()
        if generation == self._tree.generation:
            return {}
        change = self._staged.get(generation)
        if change is None:
            raise FsError(f"the generation {generation[:12]} is not staged", path=self._record.target, errno=errno.ESTALE)
        if not self._tree.fits(change):
            change = self._tree.prepare(change.table)
        self._on_loop(lambda: self._tree.begin(change))
        try:
            self._backend.invalidate(change.entries, change.inodes)
            self._on_loop(lambda: self._tree.commit(change))
        except BaseException:
            self._on_loop(lambda: self._tree.cancel(change))
            raise
        self._staged.pop(generation, None)
        self._table = change.table
        return {}

    def _abort(self, head: Head, _: bytes) -> dict[str, Any]:
        self._staged.pop(str(head["generation"]), None)
        return {}

    def _push(self, _: Head, blob: bytes) -> dict[str, Any]:
        ids = {blob[i : i + 32] for i in range(0, len(blob), 32)}
        files = 0
        for inode, offset, id in self._tree.known(ids):
            content = self._chunks.local(id, 0, PIECE_BYTES)
            if content:
                with contextlib.suppress(OSError):
                    self._backend.store(inode, offset, memoryview(content))
                    files += 1
        return {"stored": files}

    def _status(self, head: Head, _: bytes) -> dict[str, Any]:
        server, number = head.get("after") or (0, 0)
        after = int(number) if server == os.getpid() else 0
        found, failures = self._on_loop(lambda: (self._tree.status(), self._tree.failures(after)))
        last = found.last_error
        return {
            "status": found._asdict() | {"last_error": None if last is None else last._asdict()},
            "failures": [failure._asdict() for failure in failures],
            "backend": self._backend.name,
            "opens": self._backend.opens,
            "reason": self._backend.reason,
            "requests": self._backend.counters(),
            "pid": os.getpid(),
        }


def main() -> None:
    folder, fuse, listener, how = sys.argv[1:]
    sock = socket.socket(fileno=int(listener))
    sock.setblocking(False)
    for fd in (int(fuse), int(listener)):
        os.set_inheritable(fd, False)
    code = 1
    try:
        MountServer(Path(folder), int(fuse), sock, resumed=how == "resume").run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Threads may wait forever for an answer of the kernel.
        sys.stderr.flush()
        os._exit(code)
