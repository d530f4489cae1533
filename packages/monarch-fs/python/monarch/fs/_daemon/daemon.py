"""The daemon: owns the mounts of one user on one machine.

The first client starts it. A lock file settles a race of several starters; the socket is replaced under the lock only. It ends by itself
after some seconds without mounts and clients. It is one event loop, and what blocks runs in threads. It touches no mount: paths below a
mount point are left to other processes. A killed daemon loses nothing: mount servers keep their descriptors, and the next daemon
takes them over.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import logging
import os
import sys
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from monarch.extension.channel import AsyncChannel, Channel, Message, connect, listen
from monarch.fs._daemon.daemon_folder import SOCKET
from monarch.fs._daemon.error_message import checked, error_head
from monarch.fs._daemon.mount_record import MountRecord, mount_folder
from monarch.fs._daemon.served_mount import ServedMount, Use
from monarch.fs._daemon.tree_walk import walk
from monarch.fs._tree.operations import MountOptions
from monarch.fs.errors import FsError

_log = logging.getLogger(__name__)
LOCK, LOG = "lock", "log"
_LOG_BYTES = 1 << 20
# Seconds without mounts and clients after which the daemon ends.
IDLE_SECONDS = 3.0
# The most seconds until an earlier daemon releases the lock.
LOCK_SECONDS = 5.0
MAX_CLIENTS = 256
# The most operations of one client in progress.
MAX_OPERATIONS = 1024


class ClientLink:
    """A client: its connection, and the mounts that it uses."""

    def __init__(self, daemon: Daemon, channel: Channel) -> None:
        self._daemon = daemon
        self.pid, self.uid = channel.peer()
        self._tasks: set[asyncio.Task[None]] = set()
        self.channel = AsyncChannel(channel, self._message, self._ended)

    async def fetch(self, spelling: str, tree: str, id: str, again: bool) -> Message:
        head = {"op": "fetch", "target": spelling, "tree": tree, "id": id, "again": again}
        return checked(await self.channel.request(head), "")

    def _ended(self, reason: str) -> None:
        self._daemon.client_ended(self, reason)

    def _message(self, message: Message) -> None:
        if len(self._tasks) >= MAX_OPERATIONS:
            self.channel.end(f"more than {MAX_OPERATIONS} operations at once")
            return
        task = asyncio.get_running_loop().create_task(self._answer(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: Message) -> None:
        answer: dict[str, Any]
        try:
            answer = await self._daemon.operate(self, message)
        except Exception as e:
            if not isinstance(e, (FsError, ValueError, OSError)):
                _log.exception("operation %s failed", message.head.get("op"))
            answer = {"error": error_head(e)}
        self.channel.answer(message, answer)


class Daemon:
    """The mounts and the clients."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mounts: dict[str, ServedMount] = {}
        self._clients: set[ClientLink] = set()
        self._idle: asyncio.TimerHandle | None = None
        self._done = asyncio.Event()
        self._refused = 0

    async def run(self, started: int) -> None:
        """Returns when the daemon has had nothing to do for a while. `started`: a pipe that gets one byte when clients can connect."""
        loop = asyncio.get_running_loop()
        leftovers = self._leftovers()
        listener = listen(self._folder, SOCKET)
        loop.add_reader(listener.fileno(), self._accept, listener)
        os.write(started, b"1")
        os.close(started)
        self._check_idle()
        async with asyncio.TaskGroup() as group:
            for mount, record in leftovers:
                group.create_task(mount.take_over(record))
            await self._done.wait()
        loop.remove_reader(listener.fileno())
        with contextlib.suppress(OSError):
            os.unlink(self._folder / SOCKET)
        listener.close()

    def _leftovers(self) -> list[tuple[ServedMount, MountRecord]]:
        """Mounts of an earlier daemon; they are known before the first client is."""
        found: list[tuple[ServedMount, MountRecord]] = []
        for folder in sorted((self._folder / "m").glob("*")):
            try:
                record = MountRecord.load(folder)
            except (OSError, ValueError) as e:
                _log.warning("%s", e)
                continue
            mount = self._mounts[record.target] = ServedMount(record.target, folder, self._mount_idle)
            found.append((mount, record))
        return found

    def _accept(self, listener: Any) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as e:
            if not isinstance(e, BlockingIOError):
                _log.warning("a connection was not accepted: %s", e)
            return
        channel = Channel(sock)
        refusal = f"user {channel.peer()[1]}" if channel.peer()[1] != os.getuid() else ""
        if len(self._clients) >= MAX_CLIENTS:
            refusal = f"{len(self._clients)} clients"
        if refusal:
            self._refused += 1
            if self._refused == 1:
                _log.warning("a connection was refused: %s", refusal)
            channel.close()
            return
        self._clients.add(ClientLink(self, channel))
        self._check_idle()

    def client_ended(self, client: ClientLink, reason: str) -> None:
        _log.info("client %d: %s", client.pid, reason)
        self._clients.discard(client)
        for mount in list(self._mounts.values()):
            mount.lose(client)
        self._check_idle()

    def _mount_idle(self, mount: ServedMount) -> None:
        if self._mounts.get(mount.target) is mount:
            del self._mounts[mount.target]
        self._check_idle()

    def _check_idle(self) -> None:
        busy = bool(self._mounts or self._clients)
        if busy and self._idle is not None:
            self._idle.cancel()
            self._idle = None
        elif not busy and self._idle is None:
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._done.set)

    async def operate(self, client: ClientLink, message: Message) -> dict[str, Any]:
        """Carries out a request of a client."""
        head = message.head
        op = head.get("op")
        if op == "hello":
            return {"pid": os.getpid()}
        if op not in ("mount", "stage", "commit", "abort", "push", "status", "unmount"):
            raise ValueError(f"no operation {op!r}")
        target = head.get("target")
        if not isinstance(target, str) or not os.path.isabs(target):
            raise ValueError(f"{target!r}: a mount point must be an absolute path")
        mount = self._mounts.get(target)
        if op == "mount":
            record, use, generation, again = _mount_request(target, head)
            if mount is None:
                mount = self._mounts[target] = ServedMount(target, mount_folder(self._folder, target), self._mount_idle)
                self._check_idle()
            await mount.use(client, use, record, message.blob, generation, again=again)
            if not client.channel.open:
                mount.lose(client)
            return {}
        if mount is None:
            if op == "unmount":
                return {"lazy": False, "holders": []}
            raise FsError("not mounted by this client", path=target, errno=errno.ENOTCONN)
        if op == "unmount":
            lazy, holders = await mount.release(client)
            return {"lazy": lazy, "holders": holders}
        if op == "push" and head.get("walk") and client in mount.users:
            await walk(target)
        answer = (await mount.operate(client, {key: value for key, value in head.items() if key != "call"}, message.blob)).head
        kept = {key: value for key, value in answer.items() if key not in ("op", "call")}
        return kept | dict(mount.summary()) if op == "status" else kept


def _mount_request(target: str, head: dict[str, Any]) -> tuple[MountRecord, Use, str, bool]:
    """What a request to mount asks for: the record, the use, the generation of its table, and whether the client had the mount before."""
    try:
        owner = head["owner"]
        record = MountRecord(
            target,
            str(head["source"]),
            MountOptions(**head["options"]),
            None if owner is None else (int(owner[0]), int(owner[1])),
            str(head["store"]),
            int(head["limit"]),
        )
        return record, Use(str(head["spelling"]), str(head["tree"])), str(head["generation"]), bool(head["again"])
    except (KeyError, TypeError, IndexError) as e:
        raise ValueError(f"malformed request to mount: {e!r}") from None


def _locked(folder: Path) -> int | None:
    """The lock of the daemon; None where another one runs."""
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with contextlib.suppress(OSError):
                connect(folder, SOCKET, 0.1).close()
                return None
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)  # there is no event for a released lock
        else:
            return fd


def main() -> None:
    folder, started = Path(sys.argv[1]), int(sys.argv[2])
    # The starter reaps this process; the daemon is a child of the first process of the machine, in a session without a terminal.
    if os.fork():
        os._exit(0)
    os.set_inheritable(started, False)
    lock = _locked(folder)
    if lock is None:
        os.write(started, b"1")
        os._exit(0)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        handlers=[RotatingFileHandler(folder / LOG, maxBytes=_LOG_BYTES, backupCount=1)],
    )
    _log.info("daemon %d begins", os.getpid())
    gc.freeze()
    try:
        asyncio.run(Daemon(folder).run(started))
        _log.info("daemon %d ends: no mounts and no clients", os.getpid())
    except BaseException:
        _log.exception("the daemon failed")
        raise
