"""The client of the daemon, in the service process of a host. Any thread may use it.

One thread keeps the connection. When the connection ends, as by the end of the daemon, the thread starts the next daemon if there is
none, mounts again what it had mounted, and repeats the requests under way: each of them may be repeated. A request has a time limit,
since a daemon can be stopped. The client keeps the table of each mount, and what was committed since, for the case that mount and daemon
are gone.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from monarch.actor import Future
from monarch.extension import when_done
from monarch.extension.channel import Channel, ChannelError, Head, Message
from monarch.fs._daemon import daemon_folder
from monarch.fs._daemon.daemon_start import reach_daemon
from monarch.fs._daemon.error_message import error_of
from monarch.fs._daemon.mount_record import mount_key
from monarch.fs._daemon.served_status import ServedStatus, served_status
from monarch.fs._store.location import open_store
from monarch.fs._store.store import Store
from monarch.fs._tree.difference import patched
from monarch.fs._tree.node import PIECE_BYTES
from monarch.fs._tree.operations import MountOptions
from monarch.fs._tree.table import Table
from monarch.fs.errors import FsError

# Seconds: a mount of a million entries takes several, and the daemon names a mount server that does not answer after 60.
REQUEST_SECONDS = 75.0
# Pauses between two attempts to reach a daemon, in seconds.
_PAUSES = (0.0, 0.05, 0.2, 0.5, 1.0)
# The most differences, and their bytes, that are kept before they are merged into a table.
_MAX_DELTAS, _MAX_DELTA_BYTES = 128, 1 << 20


class Failure(Protocol):
    """Why a chunk cannot be had."""

    @property
    def errno(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def stale(self) -> bool: ...


class Answer(Protocol):
    """What a fetch gives, such as `Fetched` of the relay: failures and passed contents by chunk; what is in neither is in the store."""

    @property
    def failed(self) -> dict[bytes, Any]: ...
    @property
    def passed(self) -> dict[bytes, bytes]: ...


class MountRequest(NamedTuple):
    """What is to be mounted where."""

    target: str
    # The name under which the chunks of this mount are fetched.
    tree: str
    # The shown source; mounts of one source share a mount point.
    source: str
    # An encoded `Table`.
    table: bytes
    options: MountOptions
    owner: tuple[int, int] | None
    # The generation of the table; empty: decode the table to determine it.
    generation: str = ""


class Unmounted(NamedTuple):
    """`lazy`: processes held the mount, and it was detached; `holders` are their pids and commands."""

    lazy: bool
    holders: list[tuple[int, str]]


class _Mount:
    """A mount of this client, with all that makes it again."""

    def __init__(self, request: MountRequest) -> None:
        self.request = request
        self.table = request.table
        self.generation = request.generation or Table.decode(request.table).generation
        self.deltas: list[bytes] = []
        self.staged: dict[str, bytes] = {}

    def current(self) -> bytes:
        """The table of the generation that was committed last."""
        if self.deltas:
            table = Table.decode(self.table)
            for delta in self.deltas:
                table = patched(table, delta)
            self.table, self.deltas = table.encode(), []
        return self.table

    def committed(self, generation: str) -> None:
        delta = self.staged.pop(generation, None)
        if delta is not None and generation != self.generation:
            self.generation = generation
            self.deltas.append(delta)
            if len(self.deltas) > _MAX_DELTAS or sum(map(len, self.deltas)) > _MAX_DELTA_BYTES:
                self.current()


class _Call:
    """A request under way."""

    def __init__(self, head: Head, blob: bytes) -> None:
        self.head, self.blob = head, blob
        self.done = threading.Event()
        self.answer: Message | None = None
        self.error: Exception | None = None


class DaemonClient:
    """The mounts of one service process. `on_fetch(target, tree, chunk)` must not block; `store` is where its chunks are put.

    A request that the daemon does not answer within `timeout` seconds raises `FsError`.
    """

    def __init__(
        self,
        on_fetch: Callable[[str, str, bytes], Future[Any]],
        *,
        store: Store | None = None,
        folder: Path | None = None,
        timeout: float = REQUEST_SECONDS,
    ) -> None:
        self._on_fetch, self._timeout = on_fetch, timeout
        self._store = store
        self._folder = folder or daemon_folder.daemon_folder()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._mounts: dict[str, _Mount] = {}
        self._channel: Channel | None = None
        self._thread: threading.Thread | None = None
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False
        # The pid of the daemon that answered last; 0 before the first answer.
        self.daemon_pid = 0

    # Mounts.

    def prepare(self) -> None:
        """Starts the daemon where none runs, before it is needed. The next request raises why it cannot be started."""
        with contextlib.suppress(FsError):
            self._request({"op": "hello"}, b"", "")

    def mount(self, request: MountRequest) -> None:
        """Mounts, or shares the mount of the same source that is there, which then shows this table.

        `MountBusyError` names what else is mounted there; `ValueError` for a path that is not absolute, `TableError` for a malformed table.
        """
        key = mount_key(request.target)
        mount = _Mount(request)
        self._request(self._mount_head(key, mount, again=False), mount.table, request.target)
        with self._lock:
            self._mounts[key] = mount

    def _mount_head(self, key: str, mount: _Mount, *, again: bool) -> Head:
        request = mount.request
        store = self._opened_store()
        return {
            "op": "mount",
            "target": key,
            "spelling": request.target,
            "tree": request.tree,
            "source": request.source,
            "options": request.options._asdict(),
            "owner": request.owner,
            "store": str(store.folder),
            "limit": store.limit,
            "generation": mount.generation,
            "again": again,
        }

    def stage(self, target: str, delta: bytes) -> None:
        """Prepares a switch: `delta` is a difference to the table that is shown. Nothing that is shown changes."""
        key, mount = self._known(target)
        try:
            answer = self._request({"op": "stage", "target": key, "full": False}, delta, target)
        except ValueError:
            # Another client has moved the mount, or the mount was created again: the difference has another base there.
            table = patched(Table.decode(mount.current()), delta)
            answer = self._request({"op": "stage", "target": key, "full": True}, table.encode(), target)
        with self._lock:
            mount.staged[str(answer.head["generation"])] = delta

    def commit(self, target: str, generation: str) -> None:
        """Shows a staged generation; one that is shown already is no error. `FsError` with ESTALE where it was not staged."""
        key, mount = self._known(target)
        head = {"op": "commit", "target": key, "generation": generation}
        try:
            self._request(head, b"", target)
        except FsError as e:
            delta = mount.staged.get(generation)
            if e.errno != errno.ESTALE or delta is None:
                raise
            # The mount server that staged the difference was replaced.
            self.stage(target, delta)
            self._request(head, b"", target)
        with self._lock:
            mount.committed(generation)

    def abort(self, target: str, generation: str) -> None:
        """Drops a staged generation."""
        key, mount = self._known(target)
        mount.staged.pop(generation, None)
        self._request({"op": "abort", "target": key, "generation": generation}, b"", target)

    def push(self, target: str, ids: Sequence[bytes], *, walk: bool = True) -> int:
        """Puts the pages of stored chunks into the kernel; the number of files and pieces. Blocks until that is done.

        The kernel takes pages of inodes that it has. `walk`: another process lists the whole tree first, which gives it all of them.
        """
        key, _ = self._known(target)
        return int(self._request({"op": "push", "target": key, "walk": walk}, b"".join(ids), target).head.get("stored", 0))

    def status(self, target: str, *, after: tuple[int, int] = (0, 0)) -> ServedStatus:
        """The state of a mount; `FsError` with the cause where it has gone.

        `after` is a mount server and a number: failed reads up to this number are left out where the server is the same.
        """
        key, _ = self._known(target)
        return served_status(self._request({"op": "status", "target": key, "after": after}, b"", target).head)

    def unmount(self, target: str) -> Unmounted:
        """Gives the mount up. It is unmounted with its last user; after three seconds it is detached from processes that hold it."""
        key = mount_key(target)
        with self._lock:
            if self._mounts.pop(key, None) is None:
                return Unmounted(False, [])
        head = self._request({"op": "unmount", "target": key}, b"", target).head
        return Unmounted(bool(head.get("lazy")), [(int(pid), str(command)) for pid, command in head.get("holders", [])])

    def close(self) -> None:
        """Gives all mounts up, and ends the connection. The daemon completes unmounts that fail here."""
        with self._lock:
            targets = [mount.request.target for mount in self._mounts.values()]
        for target in targets:
            with contextlib.suppress(FsError, ValueError):
                self.unmount(target)
        with self._lock:
            thread = self._thread
            if not self._closed:
                self._closed = True
                # The thread closes the descriptor at its end.
                if thread is None:
                    os.close(self._event)
                else:
                    os.eventfd_write(self._event, 1)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _known(self, target: str) -> tuple[str, _Mount]:
        key = mount_key(target)
        with self._lock:
            mount = self._mounts.get(key)
        if mount is None:
            raise FsError("not mounted by this client", path=target, errno=errno.ENOTCONN)
        return key, mount

    def _opened_store(self) -> Store:
        with self._lock:
            if self._store is None:
                self._store = open_store()
            return self._store

    # Requests.

    def _request(self, head: Head, blob: bytes, path: str) -> Message:
        call = _Call(head, blob)
        with self._lock:
            if self._closed:
                raise FsError("the client of the daemon is closed", path=path, errno=errno.ESHUTDOWN)
            number = next(self._numbers)
            head["call"] = number
            self._calls[number] = call
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fs-daemon-client", daemon=True)
                self._thread.start()
            elif self._channel is not None:
                with contextlib.suppress(ChannelError):
                    self._channel.queue(head, blob)
            os.eventfd_write(self._event, 1)
        try:
            if not call.done.wait(self._timeout):
                raise FsError(f"the daemon {self._daemon_state()} for {self._timeout:g} s", path=path, errno=errno.ETIMEDOUT)
        finally:
            with self._lock:
                self._calls.pop(number, None)
        if call.error is not None:
            raise call.error
        assert call.answer is not None
        error: dict[str, Any] | None = call.answer.head.get("error")
        if error is not None:
            raise error_of(error, path)
        return call.answer

    def _daemon_state(self) -> str:
        with contextlib.suppress(OSError, IndexError):
            state = Path(f"/proc/{self.daemon_pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state in ("T", "t"):
                return f"{self.daemon_pid} is stopped and has not answered"
        return f"{self.daemon_pid or ''} has not answered".strip()

    # The thread of the connection.

    def _run(self) -> None:
        failures = 0
        try:
            while not self._closed:
                try:
                    channel = self._connected()
                except (FsError, OSError, ValueError) as e:
                    failures += 1
                    if failures >= len(_PAUSES):
                        self._fail(e)
                        failures = 0
                        self._wait(None)
                    else:
                        self._wait(_PAUSES[failures])
                    continue
                try:
                    while not self._closed:
                        self._exchange(channel)
                        failures = 0
                except ChannelError:
                    failures += 1
                    self._wait(_PAUSES[min(failures, len(_PAUSES)) - 1])
                finally:
                    with self._lock:
                        self._channel = None
                    channel.close()
        finally:
            with self._lock:
                self._fail_locked(FsError("the client of the daemon is closed", errno=errno.ESHUTDOWN))
                os.close(self._event)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._fail_locked(error)

    def _fail_locked(self, error: Exception) -> None:
        for call in self._calls.values():
            call.error = error if isinstance(error, FsError) else FsError(str(error))
            call.done.set()

    def _wait(self, seconds: float | None) -> None:
        """Waits for a request or the end of the client, or this time."""
        if seconds is None or seconds > 0:
            select.select([self._event], [], [], seconds)

    def _connected(self) -> Channel:
        """A new connection, with the mounts and the requests of the last one."""
        channel = Channel(reach_daemon(self._folder))
        try:
            pid, uid = channel.peer()
            if uid != os.getuid():
                raise FsError(f"the daemon belongs to the user {uid}", path=str(self._folder), errno=errno.EPERM)
            with self._lock:
                mounts = list(self._mounts.items())
            again = [(self._mount_head(key, mount, again=True), mount.current()) for key, mount in mounts]
            with self._lock:
                self.daemon_pid = pid
                for head, table in again:
                    channel.queue(head | {"call": 0}, table)
                for number in sorted(self._calls):
                    channel.queue(self._calls[number].head, self._calls[number].blob)
                self._channel = channel
        except BaseException:
            channel.close()
            raise
        return channel

    def _exchange(self, channel: Channel) -> None:
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        poll.register(channel, select.POLLIN if channel.flush() else select.POLLIN | select.POLLOUT)
        ready = {fd for fd, _ in poll.poll()}
        if self._event in ready:
            os.eventfd_read(self._event)
        if channel.fileno() in ready:
            for message in channel.receive():
                self._take(channel, message)

    def _take(self, channel: Channel, message: Message) -> None:
        head = message.head
        if head.get("op") == "fetch":
            self._fetch(channel, head)
        elif head.get("op") == "answer":
            with self._lock:
                call = self._calls.get(head.get("call", 0))
            if call is not None:
                call.answer = message
                call.done.set()

    def _fetch(self, channel: Channel, head: Head) -> None:
        number, id = head["call"], bytes.fromhex(head["id"])

        def answer(fields: Head, blob: bytes = b"") -> None:
            with self._lock:
                if self._channel is channel:
                    with contextlib.suppress(ChannelError):
                        channel.queue({"op": "answer", "call": number, **fields}, blob)
                        os.eventfd_write(self._event, 1)

        def done(future: Future[Any]) -> None:
            try:
                found: Answer = future.get()
                failure: Failure | None = found.failed.get(id)
                content = found.passed.get(id)
                if failure is None and content is None and head.get("again"):
                    content = self._opened_store().read(id, 0, PIECE_BYTES)
                    if content is None:
                        answer({"failure": [errno.EIO, "the chunk was removed from the store before it was read"]})
                        return
            except Exception as e:
                answer({"failure": [errno.EIO, f"{type(e).__name__}: {e}"]})
                return
            if failure is not None:
                answer({"failure": [errno.ESTALE if failure.stale else failure.errno, failure.reason]})
            elif content is not None:
                answer({"stored": False}, content)
            else:
                answer({"stored": True})

        try:
            when_done(self._on_fetch(head["target"], head["tree"], id), done)
        except Exception as e:
            answer({"failure": [errno.EIO, f"{type(e).__name__}: {e}"]})
