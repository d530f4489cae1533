"""One mount of the daemon: made for its first user, shared by the next ones, supervised, and removed after the last one.

The daemon keeps /dev/fuse and the listening socket of the mount server open. A server that ends is replaced on the same connection, and
reads that wait go on. A server that keeps ending is replaced after a growing pause. After `MAX_CRASHES` in a row the connection is
aborted: what waits fails, and the mount is made anew. All operations of a mount run one after another under its lock, but the pushes of
pages, which take long and change nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import socket
import stat
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from monarch.extension.channel import Head, Message, PeerGone, listen, make_private
from monarch.fs._daemon.daemon_folder import PRIVATE_HINT
from monarch.fs._daemon.error_message import checked
from monarch.fs._daemon.mount_record import LINGER_SECONDS, SOCKET, STATE, TABLE, MountRecord, remove_made
from monarch.fs._daemon.server_link import ServerLink, is_running
from monarch.fs._daemon.tree_state import StateError, TreeState
from monarch.fs._kernel import connection
from monarch.fs.errors import FsError, MountBusyError

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger(__name__)
# The most seconds in which a server reads a table of a million entries.
READY_SECONDS = 60.0
BUSY_SECONDS = 3.0
# Seconds for which the mount of an ended client, and one of an earlier daemon, remains.
GRACE_SECONDS, TAKEN_GRACE_SECONDS = 2.0, 10.0
# Seconds after which a second client is also asked for a chunk.
FETCH_TURN_SECONDS = 10.0
# Seconds between two checks of a server that does not answer the next daemon.
_GREETING_SECONDS = 1.0
# A server that ends within this time after it was ready counts towards repeated failures.
_SHORT_LIFE = 0.1
_FREE_DEATHS, MAX_CRASHES, _MAX_PAUSE = 4, 12, 0.5


class User(Protocol):
    """A client that uses the mount."""

    async def fetch(self, spelling: str, tree: str, id: str, again: bool) -> Message: ...


class Use(NamedTuple):
    """How a client names the mount point, and the tree it serves."""

    spelling: str
    tree: str


class Unmounted(NamedTuple):
    """How a mount ended: `lazy` if processes held it, which `holders` has as (pid, command)."""

    lazy: bool
    holders: list[tuple[int, str]]


class ServedMount:
    """The mount at one path. `on_idle` is called when it has gone and no operation waits."""

    def __init__(self, target: str, folder: Path, on_idle: Callable[[ServedMount], None]) -> None:
        self.target, self.folder, self._on_idle = target, folder, on_idle
        self.users: dict[User, Use] = {}
        self.record: MountRecord | None = None
        self.last_error = ""
        self._lock = asyncio.Lock()
        self._interest = 0
        self._fuse = -1
        self._listener: socket.socket | None = None
        self._link: ServerLink | None = None
        self._linked = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._fetches: set[asyncio.Task[None]] = set()
        self._arrival = asyncio.Event()
        self._since = 0.0

    @contextlib.asynccontextmanager
    async def _exclusive(self) -> AsyncGenerator[None]:
        self._interest += 1
        try:
            async with self._lock:
                yield
        finally:
            self._interest -= 1
            if self.record is None and not self._interest:
                self._on_idle(self)

    # Users.

    async def use(self, user: User, use: Use, record: MountRecord, table: bytes, generation: str, *, again: bool) -> None:
        """Adds a user. `again`: it was one before, of an earlier daemon, and the generation that is shown stays."""
        async with self._exclusive():
            if self.record is None:
                await self._make(record, table)
            else:
                if self.record.source != record.source or self.record.options != record.options or self.record.owner != record.owner:
                    what = "with other options" if self.record.source == record.source else f"of {self.record.source}"
                    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._since))
                    raise MountBusyError(f"a mount {what} is there since {since}", path=self.target)
                if not again:
                    await self.request({"op": "stage", "full": True}, table)
                    await self.request({"op": "commit", "generation": generation})
            self.users[user] = use
            self._arrival.set()
            if self._grace is not None:
                self._grace.cancel()
                self._grace = None

    def lose(self, user: User) -> None:
        """A user has ended without a word; the mount stays for the next moment."""
        if self.users.pop(user, None) is not None and not self.users:
            self._expire_after(GRACE_SECONDS)

    def _expire_after(self, seconds: float) -> None:
        if self._grace is not None:
            self._grace.cancel()
        loop = asyncio.get_running_loop()
        self._arrival.clear()
        self._grace = loop.call_later(seconds, lambda: self._spawn(self._expire()))

    async def _expire(self) -> None:
        async with self._exclusive():
            if not self.users and self.record is not None:
                self._arrival.set()
                await self._remove()

    async def release(self, user: User) -> Unmounted:
        """Takes a user away; the last one unmounts."""
        async with self._exclusive():
            if self.users.pop(user, None) is None or self.users or self.record is None:
                return Unmounted(False, [])
            return await self._remove()

    async def operate(self, user: User, head: Head, blob: bytes) -> Message:
        """An operation of the mount server, for a user; the status for any client. `FsError` for another one."""
        for _ in range(3):
            try:
                async with self._exclusive() if head.get("op") != "push" else contextlib.nullcontext():
                    if user not in self.users and head.get("op") != "status":
                        raise FsError(self.last_error or "not mounted by this client", path=self.target, errno=errno.ENOTCONN)
                    return await self.request(head, blob)
            except FsError as e:
                # The supervisor is next to take the lock.
                if e.errno != errno.EAGAIN:
                    raise
        raise FsError(f"the mount keeps failing: {self.last_error}", path=self.target)

    async def request(self, head: Head, blob: bytes = b"") -> Message:
        for _ in range(5):
            if self.record is None:
                raise FsError(self.last_error or "not mounted", path=self.target, errno=errno.ENOTCONN)
            try:
                async with asyncio.timeout(READY_SECONDS):
                    await self._linked.wait()
                    link = self._link
                    if link is None:
                        raise FsError(f"the mount is made anew: {self.last_error}", path=self.target, errno=errno.EAGAIN)
                    return checked(await link.channel.request(head, blob), self.target)
            except PeerGone:
                self._linked.clear()
                continue
            except TimeoutError:
                raise FsError(
                    f"the mount server {self._link.pid if self._link else 0} has not answered for {READY_SECONDS:g} s",
                    path=self.target,
                    errno=errno.ETIMEDOUT,
                ) from None
        raise FsError("the mount server keeps ending", path=self.target)

    # Making and removing.

    async def _make(self, record: MountRecord, table: bytes) -> None:
        await asyncio.to_thread(self._prepare_target, record)
        try:
            await asyncio.to_thread(self._prepare_folder, record, table)
            await self._mount(record)
        except BaseException:
            remove_made(record.made)
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _prepare_target(self, record: MountRecord) -> None:
        found = connection.mount_point(self.target)
        if found.kind == "live":
            kind, source = found.what or ("", "")
            raise MountBusyError(f"a file system {kind} of {source} is mounted there", path=self.target)
        if found.kind == "dead":
            connection.detach(self.target, lazy=True)
            found = connection.mount_point(self.target)
        if found.kind == "absent":
            record.made = _make_directories(self.target)
        elif not stat.S_ISDIR(os.stat(self.target).st_mode):
            raise FsError("the mount point is not a directory", path=self.target, errno=errno.ENOTDIR)

    def _prepare_folder(self, record: MountRecord, table: bytes) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        make_private(self.folder, PRIVATE_HINT)
        (self.folder / TABLE).write_bytes(table)
        record.save(self.folder)

    async def _mount(self, record: MountRecord) -> None:
        """Mounts and starts a server; the table is in the folder."""
        found = await asyncio.to_thread(connection.open_connection, self.target, record.options)
        self._fuse, record.device, record.negotiated = found.fd, found.device, False
        self.record, self._since, self.last_error = record, time.time(), ""
        self._linked.clear()
        try:
            record.save(self.folder)
            self._listener = listen(self.folder, SOCKET)
            link = self._start(resumed=False)
            await _ready(link, self.target)
        except BaseException:
            await self._remove(force=True)
            raise
        record.negotiated = True
        record.save(self.folder)
        self._connected(link)
        self._supervisor = self._spawn(self._supervise(link))

    def _start(self, *, resumed: bool) -> ServerLink:
        assert self._listener is not None
        self._link = ServerLink.start(self.folder, self._fuse, self._listener, resumed=resumed, on_fetch=self._fetch)
        return self._link

    def _connected(self, link: ServerLink) -> None:
        self._link = link
        self._linked.set()

    async def _remove(self, *, force: bool = False) -> Unmounted:
        record, link = self.record, self._link
        assert record is not None
        if self._supervisor is not None and self._supervisor is not asyncio.current_task():
            self._supervisor.cancel()
        result = await self._detach(force=force)
        self.record, self._link, self._supervisor = None, None, None
        self._linked.clear()
        if link is not None:
            if not result.lazy or force:
                # Without a mount the server ends on its own.
                await _ended(link, 0.0 if force else 2.0)
            else:
                link.channel.send({"op": "detached"})
                self._spawn(_linger(link, record.device))
        if self._fuse >= 0:
            os.close(self._fuse)
            self._fuse = -1
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        remove_made(record.made)
        shutil.rmtree(self.folder, ignore_errors=True)
        return result

    async def _detach(self, *, force: bool) -> Unmounted:
        deadline = time.monotonic() + BUSY_SECONDS
        if force:
            with contextlib.suppress(FsError):
                connection.abort(self.record.device if self.record else -1)
        found: list[tuple[int, str]] = []
        while not force:
            try:
                await asyncio.to_thread(connection.detach, self.target, lazy=False)
                return Unmounted(False, [])
            except MountBusyError:
                if time.monotonic() >= deadline:
                    found = await asyncio.to_thread(connection.holders, self.target)
                    break
                await asyncio.sleep(0.1)
            except FsError as e:
                _log.warning("%s", e)
                break
        with contextlib.suppress(FsError):
            await asyncio.to_thread(connection.detach, self.target, lazy=True)
        shown = ", ".join(f"{pid} ({command})" for pid, command in found) or "no process that can be seen"
        if not force:
            _log.warning("%s: detached while it was held by %s", self.target, shown)
        return Unmounted(True, found)

    # Supervision.

    async def _supervise(self, link: ServerLink) -> None:
        deaths, crashes, born = 0, 0, time.monotonic()
        while True:
            reason = await link.ended
            self._linked.clear()
            self.last_error = reason
            if await asyncio.to_thread(connection.descriptor_failed, self._fuse):
                self._fail_operations()
                async with self._exclusive():
                    await self._lost(reason)
                return
            if time.monotonic() - born > _SHORT_LIFE:
                deaths = crashes = 0
            deaths += 1
            # A server that was killed from outside while it served has no fault that a new mount would fix.
            crashes += not (link.killed and link.ready.done())
            _log.warning("%s: %s; it is started again", self.target, reason)
            if crashes >= MAX_CRASHES:
                self._fail_operations()
                async with self._exclusive():
                    await self._again(f"{crashes} mount servers in a row ended at once, the last one: {reason}")
                return
            if deaths > _FREE_DEATHS:
                await asyncio.sleep(min(_MAX_PAUSE, 0.01 * 2 ** (deaths - _FREE_DEATHS)))
            try:
                link = self._start(resumed=True)
                born = float("inf")
                await _ready(link, self.target)
                born = time.monotonic()
                self._connected(link)
            except (OSError, FsError) as e:
                _log.warning("%s", e)
                link.kill()

    def _fail_operations(self) -> None:
        """An operation that waits for the next server would keep the lock, which the mount needs to be made anew."""
        self._link = None
        self._linked.set()

    async def _lost(self, reason: str) -> None:
        """The connection has ended: another process unmounted or aborted it."""
        found = await asyncio.to_thread(connection.mount_point, self.target)
        if found.kind == "dead" and self.users:
            await self._again(f"the connection was aborted; {reason}")
        else:
            _log.warning("%s: unmounted by another process", self.target)
            self.last_error = "unmounted by another process"
            self.users.clear()
            await self._remove()

    async def _again(self, reason: str) -> None:
        """Makes the mount anew: handles that were open fail."""
        record = self.record
        assert record is not None
        _log.error("%s: mounted anew: %s", self.target, reason)
        try:
            table = await asyncio.to_thread(lambda: TreeState(self.folder / STATE).load().table.encode())
        except (OSError, StateError):
            table = await asyncio.to_thread((self.folder / TABLE).read_bytes)
        # Created directories are kept for the next mount.
        made, record.made = record.made, []
        await self._remove(force=True)
        fresh = MountRecord(record.target, record.source, record.options, record.owner, record.store, record.limit, made)
        try:
            await asyncio.to_thread(self._prepare_folder, fresh, table)
            await self._mount(fresh)
            self.last_error = reason
        except (OSError, FsError) as e:
            _log.error("%s: %s", self.target, e)
            self.last_error = f"{reason}; then: {e}"

    async def take_over(self, record: MountRecord) -> None:
        """Takes over a mount that an earlier daemon made, or removes what is left of it."""
        async with self._exclusive():
            try:
                link = ServerLink(self.folder, self._fetch)
                while not (link.greeted.done() or link.ended.done()):
                    await asyncio.wait((link.greeted, link.ended), timeout=_GREETING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                    if not link.greeted.done() and not await asyncio.to_thread(is_running, self.folder):
                        # The server was killed, and one of its threads waits in the kernel for a page, with the descriptor of the
                        # connection.
                        connection.abort(record.device)
                        break
                taken = link.greeted.done() and len(link.descriptors) == 2
            except OSError:
                link, taken = None, False
            if link is None or not taken:
                await asyncio.to_thread(self._sweep, record)
                return
            self._fuse, number = link.descriptors
            self._listener = socket.socket(fileno=number)
            self.record, self._since = record, time.time()
            self._link = link
            if not record.negotiated:
                await asyncio.wait((link.ready, link.ended), timeout=READY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if not link.ready.done():
                    await self._remove(force=True)
                    return
                record.negotiated = True
                record.save(self.folder)
            _log.info("%s: taken over, with the mount server %d", self.target, link.pid)
            self._connected(link)
            self._supervisor = self._spawn(self._supervise(link))
            if not self.users:
                self._expire_after(TAKEN_GRACE_SECONDS)

    def _sweep(self, record: MountRecord) -> None:
        try:
            if connection.mount_point(self.target).kind == "dead":
                connection.detach(self.target, lazy=True)
        except FsError as e:
            _log.warning("%s", e)
        remove_made(record.made)
        shutil.rmtree(self.folder, ignore_errors=True)

    # Chunks.

    def _fetch(self, link: ServerLink, message: Message) -> None:
        self._spawn(self._answer_fetch(link, str(message.head.get("id")), bool(message.head.get("again"))))

    async def _answer_fetch(self, link: ServerLink, id: str, again: bool) -> None:
        failure: list[object] = [errno.EIO, "source left: no client that uses this mount is there"]
        asked: set[User] = set()
        pending: set[asyncio.Task[Message]] = set()
        try:
            while True:
                user = next((user for user in self.users if user not in asked), None)
                if user is None and not pending:
                    if asked or self.users or self._grace is None:
                        break
                    # Clients of an earlier daemon, or a restarted client, connect within the grace period.
                    await self._arrival.wait()
                    if not self.users:
                        break
                    continue
                if user is not None:
                    asked.add(user)
                    use = self.users[user]
                    pending.add(asyncio.create_task(_asked(user.fetch(use.spelling, use.tree, id, again))))
                turn = FETCH_TURN_SECONDS if any(other not in asked for other in self.users) else None
                done, pending = await asyncio.wait(pending, timeout=turn or FETCH_TURN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        answer = task.result()
                    except (PeerGone, FsError, ValueError) as e:
                        if not isinstance(e, PeerGone):
                            failure = [errno.EIO, str(e)]
                        continue
                    failed = answer.head.get("failure")
                    if failed is None:
                        link.channel.send({"op": "fetched", "id": id, "stored": bool(answer.head.get("stored"))}, answer.blob)
                        return
                    failure = failed
            link.channel.send({"op": "fetched", "id": id, "failure": failure})
        finally:
            for task in pending:
                task.cancel()

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except Exception:
                _log.exception("%s: failed", self.target)

        task = asyncio.get_running_loop().create_task(run())
        self._fetches.add(task)
        task.add_done_callback(self._fetches.discard)
        return task

    def summary(self) -> Mapping[str, object]:
        """What the daemon reports of the mount by itself."""
        link = self._link
        return {"server": link.pid if link is not None else 0, "users": len(self.users), "daemon_error": self.last_error}


async def _asked(answer: Awaitable[Message]) -> Message:
    return await answer


async def _ready(link: ServerLink, target: str) -> None:
    await asyncio.wait((link.ready, link.ended), timeout=READY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    if link.ready.done():
        return
    if link.ended.done():
        raise FsError(f"{link.ended.result()} before it served; its log is servers.log", path=target)
    link.kill()
    raise FsError(f"the mount server {link.pid} was not ready within {READY_SECONDS:g} s", path=target, errno=errno.ETIMEDOUT)


async def _ended(link: ServerLink, seconds: float) -> None:
    if seconds:
        await asyncio.wait((link.ended,), timeout=seconds)
    link.kill()
    await asyncio.wait((link.ended,), timeout=5.0)


async def _linger(link: ServerLink, device: int) -> None:
    """Serves those that hold a detached mount for a while; then their requests fail."""
    await asyncio.wait((link.ended,), timeout=LINGER_SECONDS)
    if not link.ended.done():
        with contextlib.suppress(FsError):
            connection.abort(device)
        await _ended(link, 1.0)


def _make_directories(target: str) -> list[str]:
    missing: list[str] = []
    path = target
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    made: list[str] = []
    try:
        for path in reversed(missing):
            try:
                os.mkdir(path, 0o755)
            except FileExistsError:
                # On a file system that several hosts share, another one has created it in the meantime.
                if not os.path.isdir(path):
                    raise
            else:
                made.append(path)
    except OSError as e:
        remove_made(made)
        raise FsError(f"the mount point cannot be made: {e.strerror}", path=target, errno=e.errno or errno.EIO) from None
    return made
