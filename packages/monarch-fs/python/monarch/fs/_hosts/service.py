"""The file service of a host: one process for each host and job, started by the agent with the first mount.

It fetches chunks into the store of the machine (`Exchange`), answers other hosts that ask for them, and asks the daemon of the machine to
mount. It ends with the job, and with it the use of its mounts. Endpoints are asynchronous; what blocks runs in threads.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from monarch.actor import Actor, Future, Port, endpoint
from monarch.extension import Service
from monarch.fs._daemon.daemon_client import DaemonClient, MountRequest
from monarch.fs._hosts.host_answer import FetchReport, HostFacts, HostFailure, HostMountStatus, OpenRequest
from monarch.fs._kernel import preflight
from monarch.fs._relay.exchange import Exchange, Fetched
from monarch.fs._relay.host_tree import upstreams_of
from monarch.fs._relay.peer import Peer
from monarch.fs._store.location import open_store
from monarch.fs._store.store import Store
from monarch.fs._tree.changed import new_chunks
from monarch.fs._tree.difference import patched
from monarch.fs._tree.operations import MountOptions
from monarch.fs._tree.table import Table
from monarch.fs.errors import FsError, MountBusyError

_log = logging.getLogger(__name__)
# Chunks of a background fetch that are asked for at once, so that one list does not hold the exchange for long.
_BATCH = 4096


def place_here() -> str:
    """This machine and its mount namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot} {os.readlink('/proc/self/ns/mnt')}"


class _Shown:
    """A mount of this host."""

    def __init__(self, request: OpenRequest, table: Table) -> None:
        self.request, self.table = request, table
        # Tables that are staged, by generation.
        self.staged: dict[str, Table] = {}


class FileService(Actor):
    """The actor of the service."""

    def __init__(self) -> None:
        self._store: Store = open_store()
        self._exchange = Exchange(self._store)
        self._daemon = DaemonClient(self._fetch, store=self._store)
        self._mounts: dict[str, _Shown] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def _fetch(self, target: str, tree: str, id: bytes) -> Future[Fetched]:
        if tree not in self._mounts:
            # The mount is used under another name too, which is closed.
            tree = next((name for name, shown in self._mounts.items() if shown.request.target == target), tree)
        return self._exchange.fetch(tree, [id], urgent=True)

    @endpoint
    async def facts(self, allow_other: bool) -> HostFacts:
        missing = await asyncio.to_thread(preflight.problems, allow_other=allow_other)
        return HostFacts(socket.gethostname(), self._exchange.peer(), place_here(), missing)

    @endpoint
    async def open(self, request: OpenRequest) -> str | HostFailure:
        """Mounts; the generation that is shown then. Again with another table: shows that."""
        try:
            table = await asyncio.to_thread(Table.decode, request.table)
            self._join(request)
            await asyncio.to_thread(self._pin, request.tree, table.chunk_ids())
            options = MountOptions(allow_other=request.allow_other, read_timeout=request.read_timeout)
            owner = None if os.geteuid() == 0 else (os.geteuid(), os.getegid())
            asked = MountRequest(request.target, request.tree, request.source, request.table, options, owner)
            await asyncio.to_thread(self._daemon.mount, asked)
        except (OSError, ValueError, LookupError) as e:
            self._leave(request.tree)
            return _failure(e)
        self._mounts[request.tree] = _Shown(request, table)
        self._in_background(request.tree, self._bring(request.tree, request.eager))
        return table.generation

    def _pin(self, name: str, ids: Collection[bytes]) -> None:
        try:
            self._store.pin(name, ids)
        except OSError as e:
            # A full disk: there is nothing to pin, contents pass through.
            _log.warning("the store %s: %s", self._store.folder, e)

    def _join(self, request: OpenRequest) -> None:
        own = self._exchange.peer()
        rank = next((rank for rank, peer in enumerate(request.hosts) if peer.proc == own.proc), None)
        if rank is None:
            raise ValueError("this host is not among the hosts of the mount")
        peers = [request.client if at < 0 else Peer(*request.hosts[at]) for at in upstreams_of(rank, len(request.hosts))]
        self._exchange.join(request.tree, peers)

    def _leave(self, tree: str) -> None:
        if tree not in self._mounts:
            self._exchange.leave(tree)
            self._store.unpin(tree)
            self._store.unpin(_staged_pin(tree))

    async def _bring(self, tree: str, ids: Sequence[bytes]) -> FetchReport:
        """Fetches chunks into the store, and their pages into the kernel."""
        missing: list[bytes] = []
        stale, unstored, reason = False, False, ""
        for at in range(0, len(ids), _BATCH):
            if tree not in self._mounts:
                # Closed meanwhile: the rest is not wanted any more.
                return FetchReport([], False, False, "")
            batch = ids[at : at + _BATCH]
            absent = await asyncio.to_thread(self._store.missing, batch)
            try:
                found = await self._exchange.fetch(tree, absent) if absent else None
            except (LookupError, OSError) as e:
                return FetchReport([*missing, *ids[at:]] if tree in self._mounts else [], stale, unstored, str(e))
            if found is not None:
                missing += [*found.failed, *found.unstored]
                for failure in found.failed.values():
                    stale, reason = stale or failure.stale, failure.reason
                unstored = unstored or bool(found.unstored)
            if shown := self._mounts.get(tree):
                with suppress(FsError, ValueError):
                    await asyncio.to_thread(self._daemon.push, shown.request.target, batch)
        return FetchReport(missing, stale, unstored, reason)

    def _in_background(
        self, tree: str, work: Coroutine[Any, Any, FetchReport], port: Port[FetchReport | HostFailure] | None = None
    ) -> None:
        async def run() -> None:
            try:
                report = await work
                if port is not None:
                    port.send(report)
                if report.missing and port is None and tree in self._mounts:
                    _log.warning("%d chunks could not be brought: %s", len(report.missing), report.reason)
            except Exception as e:
                _log.exception("chunks could not be brought")
                if port is not None:
                    port.send(HostFailure("failed", f"{type(e).__name__}: {e}", errno.EIO))

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @endpoint(explicit_response_port=True)
    async def bring(self, port: Port[FetchReport | HostFailure], tree: str, ids: list[bytes] | None) -> None:
        """Fetches these chunks, or all of the tree; answers when they are in the store, and lets other endpoints run meanwhile."""
        shown = self._mounts.get(tree)
        if shown is None:
            port.send(HostFailure("failed", "it is not mounted", errno.ENOTCONN))
            return
        self._in_background(tree, self._bring(tree, sorted(shown.table.chunk_ids()) if ids is None else ids), port)

    @endpoint
    async def stage(self, tree: str, delta: bytes) -> str | HostFailure:
        """Prepares the switch to the table that the difference makes; its generation."""
        shown = self._mounts.get(tree)
        if shown is None:
            return HostFailure("failed", "it is not mounted", errno.ENOTCONN)
        try:
            table = await asyncio.to_thread(patched, shown.table, delta)
            await asyncio.to_thread(self._pin, _staged_pin(tree), new_chunks(shown.table, table))
            await asyncio.to_thread(self._daemon.stage, shown.request.target, delta)
        except (OSError, ValueError) as e:
            return _failure(e)
        shown.staged[table.generation] = table
        return table.generation

    @endpoint
    async def commit(self, tree: str, generation: str, eager: list[bytes]) -> str | HostFailure:
        shown = self._mounts.get(tree)
        if shown is None:
            return HostFailure("failed", "it is not mounted", errno.ENOTCONN)
        try:
            await asyncio.to_thread(self._daemon.commit, shown.request.target, generation)
            table = shown.staged.pop(generation, None)
            if table is not None:
                shown.table = table
        except (OSError, ValueError) as e:
            return _failure(e)
        self._in_background(tree, self._settle(tree, eager))
        return generation

    async def _settle(self, tree: str, eager: list[bytes]) -> FetchReport:
        """After a switch: the chunks of the new table are pinned, and the changed ones brought."""
        report = await self._bring(tree, eager)
        if shown := self._mounts.get(tree):
            await asyncio.to_thread(self._pin, tree, shown.table.chunk_ids())
            if not shown.staged:
                self._store.unpin(_staged_pin(tree))
        return report

    @endpoint
    async def abort(self, tree: str, generation: str) -> None:
        shown = self._mounts.get(tree)
        if shown is not None:
            shown.staged.pop(generation, None)
            with suppress(OSError, ValueError):
                await asyncio.to_thread(self._daemon.abort, shown.request.target, generation)

    @endpoint
    async def status(self, tree: str) -> HostMountStatus:
        name = socket.gethostname()
        shown = self._mounts.get(tree)
        if shown is None:
            return HostMountStatus(name, "failed", "", 0, 0, 0, [], "it is not mounted", False, "")
        ids = shown.table.chunk_ids()
        held, total = await asyncio.to_thread(self._held, ids)
        try:
            served = await asyncio.to_thread(self._daemon.status, shown.request.target)
        except (OSError, ValueError) as e:
            return HostMountStatus(name, "failed", shown.table.generation, held, total, 0, [], str(e), False, "")
        return HostMountStatus(
            name,
            "live",
            served.generation,
            held,
            total,
            served.faults,
            list(served.stale),
            served.last_error,
            served.opens,
            served.reason,
        )

    def _held(self, ids: set[bytes]) -> tuple[int, int]:
        """Chunks that are in the store and all, in bytes; of one that is not there, the size is not known."""
        sizes = [self._store.size(id) for id in ids]
        return sum(size or 0 for size in sizes), sum(size or 0 for size in sizes) if None not in sizes else -1

    @endpoint
    async def close(self, tree: str) -> list[tuple[int, str]] | HostFailure:
        """Unmounts; pids and commands of the processes that held the mount, if it had to be detached."""
        shown = self._mounts.pop(tree, None)
        if shown is None:
            return []
        if any(other.request.target == shown.request.target for other in self._mounts.values()):
            # Another mount of this job shows the same there.
            self._leave(tree)
            return []
        try:
            ended = await asyncio.to_thread(self._daemon.unmount, shown.request.target)
        except (OSError, ValueError) as e:
            return _failure(e)
        finally:
            self._leave(tree)
        return ended.holders if ended.lazy else []


def _staged_pin(tree: str) -> str:
    """The name of the pin of what a refresh adds."""
    return f"{tree}.staged"


def _failure(error: Exception) -> HostFailure:
    reason = error.reason if isinstance(error, FsError) else str(error)
    kind = "busy" if isinstance(error, MountBusyError) else "value" if isinstance(error, ValueError) else "failed"
    return HostFailure(kind, reason or type(error).__name__, getattr(error, "errno", None) or errno.EIO)


# Each job has its own: it ends with the job.
SERVICE = Service(FileService)
