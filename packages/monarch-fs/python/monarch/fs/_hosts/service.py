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
from monarch.extension import Service, setting
from monarch.extension.events import is_recording
from monarch.fs._daemon.daemon_client import DaemonClient, MountRequest
from monarch.fs._daemon.served_status import ServedStatus
from monarch.fs._home import home_problem
from monarch.fs._hosts.host_answer import FetchReport, HostFacts, HostFailure, HostMountStatus, OpenRequest
from monarch.fs._hosts.observation import Observation, record
from monarch.fs._kernel import preflight
from monarch.fs._kernel.machine import place_here
from monarch.fs._kernel.user_entry import entry_problem
from monarch.fs._relay.exchange import Exchange, Fetched
from monarch.fs._relay.host_tree import chain_of, upstreams_of
from monarch.fs._relay.peer import Peer
from monarch.fs._store.location import open_store
from monarch.fs._store.store import Store
from monarch.fs._tree.changed import new_chunks
from monarch.fs._tree.difference import patched
from monarch.fs._tree.operations import MountOptions
from monarch.fs._tree.point_key import path_on
from monarch.fs._tree.table import Table
from monarch.fs.errors import FsError, MountBusyError

_log = logging.getLogger(__name__)
# Chunks of a background fetch per request, so that one list does not occupy the exchange for long.
_BATCH = 4096
# Seconds from a refresh until all chunks are pinned again.
_PIN_SECONDS = 1.0
# Seconds between two looks at the counts of mounts.
_LOOK_SECONDS = 5.0


class _Shown:
    """A mount of this host."""

    def __init__(self, request: OpenRequest, table: Table) -> None:
        self.request, self.table = request, table
        # Pieces of large files, of all generations that this host showed.
        self.large = frozenset(table.large_chunk_ids())
        # Staged tables, by generation.
        self.staged: dict[str, Table] = {}
        # Chunks that refreshes added after the last pin of all chunks, and the number of refreshes.
        self.added: set[bytes] = set()
        self.refreshes = 0
        # Bytes of the tree on this host, and the generation and number of bytes from other machines at which they were counted.
        self.held, self.counted = 0, ("", -1)


class FileService(Actor):
    """The actor of the service."""

    _store: Store
    _exchange: Exchange
    _daemon: DaemonClient

    def __init__(self) -> None:
        # Why there is no store; reported to the clients. The next client causes another attempt.
        self._unusable = self._opened()
        self._mounts: dict[str, _Shown] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._observation = Observation()
        # Counts are reported in the order of the requests.
        self._looking = asyncio.Lock()
        self._observer: asyncio.Task[None] | None = None

    def _opened(self) -> str:
        """Opens the store; why it cannot be used, or ""."""
        try:
            self._store = open_store()
        except FsError as e:
            return f"{e.path}: {e.reason} ({e.hint})"
        self._exchange = Exchange(self._store)
        self._daemon = DaemonClient(self._fetch, store=self._store)
        return ""

    def _fetch(self, target: str, tree: str, id: bytes) -> Future[Fetched]:
        if tree not in self._mounts:
            # The mount is also used under another name, which is closed.
            tree = next((name for name, shown in self._mounts.items() if shown.request.target == target), tree)
        return self._exchange.fetch(tree, [id], urgent=True)

    @endpoint
    async def facts(self, allow_other: bool) -> HostFacts:
        missing = await asyncio.to_thread(preflight.problems, allow_other=allow_other)
        at_home = home_problem()
        missing += filter(None, (entry_problem(), at_home))
        if self._unusable:
            self._unusable = self._opened()
        if self._unusable:
            if not at_home or setting("fs_store_dir"):
                missing.append(self._unusable)
            return HostFacts(socket.gethostname(), Peer(0, "", ()), place_here(), missing)
        if not missing:
            # The daemon starts while the client scans its source.
            asyncio.get_running_loop().run_in_executor(None, self._daemon.prepare)
        return HostFacts(socket.gethostname(), self._exchange.peer(), place_here(), missing)

    @endpoint
    async def open(self, request: OpenRequest) -> str | HostFailure:
        """Mounts; the generation that is shown then. Again with another table: shows that."""
        try:
            table = await asyncio.to_thread(Table.decode, request.table)
            request = request._replace(target=os.path.normpath(path_on(request.target, request.keys[self._join(request)])))
            await asyncio.to_thread(self._pin, request.tree, table.chunk_ids())
            options = MountOptions(allow_other=request.allow_other, read_timeout=request.read_timeout, backend=preflight.chosen_backend())
            owner = None if os.geteuid() == 0 else (os.geteuid(), os.getegid())
            asked = MountRequest(request.target, request.tree, request.source, request.table, options, owner, table.generation)
            await asyncio.to_thread(self._daemon.mount, asked)
        except (OSError, ValueError, LookupError) as e:
            self._leave(request.tree)
            return _failure(e)
        if request.tree not in self._mounts:
            record(request.target, "mount", bytes=table.total_bytes(), detail=f"{request.source}, generation {table.generation}")
        self._mounts[request.tree] = _Shown(request, table)
        if self._observer is None or self._observer.done():
            self._observer = asyncio.create_task(self._observe())
        self._in_background(request.tree, self._bring(request.tree, _eager(table, request.fetch), walk=True))
        return table.generation

    def _pin(self, name: str, ids: Collection[bytes]) -> None:
        try:
            self._store.pin(name, ids)
        except OSError as e:
            # A full disk: there is nothing to pin, contents are forwarded.
            _log.warning("the store %s: %s", self._store.folder, e)

    def _join(self, request: OpenRequest) -> int:
        """Takes part in the exchange of the tree; gives the rank of this host."""
        own = self._exchange.peer()
        rank = next((rank for rank, peer in enumerate(request.hosts) if peer.proc == own.proc), None)
        if rank is None:
            raise ValueError("this host is not among the hosts of the mount")
        orders = (upstreams_of(rank, len(request.hosts)), chain_of(rank, len(request.hosts)))
        tree, chain = ([request.client if at < 0 else Peer(*request.hosts[at]) for at in order] for order in orders)
        self._exchange.join(request.tree, tree, chain)
        return rank

    def _leave(self, tree: str) -> None:
        if tree not in self._mounts:
            self._exchange.leave(tree)
            self._store.unpin(tree)
            self._store.unpin(_staged_pin(tree))

    async def _bring(self, tree: str, ids: Sequence[bytes], *, walk: bool = False) -> FetchReport:
        """Fetches chunks into the store, and their pages into the kernel: of inodes that it has, or after a `walk` of all."""
        missing: list[bytes] = []
        stale, unstored, reason = False, False, ""
        for at in range(0, len(ids), _BATCH):
            if tree not in self._mounts:
                # Closed in the meantime: the rest is not needed.
                return FetchReport([], False, False, "")
            batch = ids[at : at + _BATCH]
            absent = await asyncio.to_thread(self._store.missing, batch)
            try:
                fetched = await self._fetched(tree, absent)
            except (LookupError, OSError) as e:
                return FetchReport([*missing, *ids[at:]] if tree in self._mounts else [], stale, unstored, str(e))
            for found in fetched:
                missing += [*found.failed, *found.unstored]
                for failure in found.failed.values():
                    stale, reason = stale or failure.stale, failure.reason
                unstored = unstored or bool(found.unstored)
            if shown := self._mounts.get(tree):
                with suppress(FsError, ValueError):
                    await asyncio.to_thread(self._daemon.push, shown.request.target, batch, walk=walk and not at)
        return FetchReport(missing, stale, unstored, reason)

    async def _fetched(self, tree: str, ids: Sequence[bytes]) -> list[Fetched]:
        """Pieces of large files come down the chain of hosts, and others down the tree."""
        shown = self._mounts.get(tree)
        large = shown.large if shown is not None else frozenset[bytes]()
        parts = [([id for id in ids if id not in large], False), ([id for id in ids if id in large], True)]
        running = [self._exchange.fetch(tree, part, bulk=bulk) for part, bulk in parts if part]
        return [await one for one in running]

    def _in_background(
        self, tree: str, work: Coroutine[Any, Any, FetchReport], port: Port[FetchReport | HostFailure] | None = None
    ) -> None:
        async def run() -> None:
            try:
                report = await work
                if port is not None:
                    port.send(report)
                if report.missing and port is None and tree in self._mounts:
                    paths = await asyncio.to_thread(self._mounts[tree].table.paths_with, set(report.missing), 4)
                    named = ", ".join(map(os.fsdecode, paths[:3])) + (" and others" if len(paths) > 3 else "")
                    # Chunks of an earlier generation are not needed any more.
                    if paths:
                        _log.warning("%s: %d chunks could not be brought: %s", named, len(report.missing), report.reason)
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
            shown.added.update(new_chunks(shown.table, table))
            await asyncio.to_thread(self._pin, _staged_pin(tree), shown.added)
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
                shown.table, shown.large = table, shown.large | table.large_chunk_ids()
                shown.refreshes += 1
        except (OSError, ValueError) as e:
            return _failure(e)
        self._in_background(tree, self._settle(tree, eager))
        return generation

    @endpoint
    async def confirm(self, tree: str, generation: str) -> str | HostFailure:
        """Whether the mount is there and shows this generation, which was committed before."""
        shown = self._mounts.get(tree)
        if shown is None:
            return HostFailure("failed", "it is not mounted", errno.ENOTCONN)
        try:
            await asyncio.to_thread(self._daemon.commit, shown.request.target, generation)
        except (OSError, ValueError) as e:
            return _failure(e)
        return generation

    async def _settle(self, tree: str, eager: list[bytes]) -> FetchReport:
        """After a switch: the changed chunks are brought. When no other switch follows, chunks that are shown no more lose their pin."""
        report = await self._bring(tree, eager)
        shown = self._mounts.get(tree)
        turn = shown.refreshes if shown is not None else 0
        # Pinning all chunks of a large tree costs as much as the rest of a refresh.
        await asyncio.sleep(_PIN_SECONDS)
        if shown is not None and self._mounts.get(tree) is shown and shown.refreshes == turn and not shown.staged:
            shown.added = set()
            await asyncio.to_thread(self._pin, tree, shown.table.chunk_ids())
            if not shown.added and self._mounts.get(tree) is shown:
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
    async def status(self, tree: str, rank: int) -> HostMountStatus:
        """`rank` is that of this host in the mesh of the mount."""
        name = socket.gethostname()
        shown = self._mounts.get(tree)
        if shown is None:
            return HostMountStatus(name, rank, "failed", "", 0, 0, 0, [], "it is not mounted", False, "")
        held, total = await asyncio.to_thread(self._held, shown.table)
        try:
            served = await self._looked(shown.request.target)
        except (OSError, ValueError) as e:
            return HostMountStatus(name, rank, "failed", shown.table.generation, held, total, 0, [], str(e), False, "")
        return HostMountStatus(
            name,
            rank,
            "live",
            served.generation,
            held,
            total,
            served.faults,
            list(served.stale),
            served.last_error,
            served.opens,
            served.reason,
            served.backend,
        )

    # Reports.

    async def _observe(self) -> None:
        """Reports while there are mounts."""
        while self._mounts:
            for target in {shown.request.target for shown in self._mounts.values()}:
                with suppress(OSError, ValueError):
                    await self._looked(target)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _looked(self, target: str) -> ServedStatus:
        """The state of a mount; what is new in it is reported."""
        async with self._looking:
            try:
                served = await asyncio.to_thread(self._daemon.status, target, after=self._observation.seen(target))
            except (OSError, ValueError) as e:
                if any(shown.request.target == target for shown in self._mounts.values()):
                    self._observation.failed(target, e.reason if isinstance(e, FsError) else str(e))
                raise
            self._observation.served(target, served, self._daemon.daemon_pid)
            shown = next((one for one in self._mounts.values() if one.request.target == target), None)
            if shown is not None and is_recording():
                await self._show(shown, served)
            self._observation.relayed(self._exchange.counters(), self._exchange.refusals(), self._target)
            return served

    async def _show(self, shown: _Shown, served: ServedStatus) -> None:
        """Reports a mount. The bytes on the host are counted again if bytes have arrived since, or the tree has changed."""
        counters = self._exchange.counters()
        now = served.generation, counters.get("bytes_from_client", 0) + counters.get("bytes_from_hosts", 0)
        if shown.counted != now:
            shown.held, _ = await asyncio.to_thread(self._held, shown.table)
            shown.counted = now
        # All hosts count the same switches, at any interval of their looks.
        self._observation.mounted(shown.request.target, shown.request.source, shown.refreshes + 1, shown.held, served.faults)

    def _target(self, tree: str) -> str:
        shown = self._mounts.get(tree)
        return shown.request.target if shown is not None else ""

    def _held(self, table: Table) -> tuple[int, int]:
        """The chunks of a table that are in the store, and all of them, in bytes."""
        sizes = table.chunk_sizes()
        total = sum(sizes.values())
        return total - sum(sizes[id] for id in self._store.missing(sizes)), total

    @endpoint
    async def close(self, tree: str) -> list[tuple[int, str]] | HostFailure:
        """Unmounts; pids and commands of the processes that held the mount, if it had to be detached."""
        shown = self._mounts.pop(tree, None)
        if shown is None:
            return []
        if any(other.request.target == shown.request.target for other in self._mounts.values()):
            # Another mount of this job shows the same source there.
            self._leave(tree)
            return []
        target = shown.request.target
        try:
            if not self._looking.locked():
                with suppress(OSError, ValueError):
                    await self._looked(target)
            self._observation.forget(target)
            ended = await asyncio.to_thread(self._daemon.unmount, target)
            held = ", ".join(f"{pid} ({command})" for pid, command in ended.holders)
            record(
                target, "unmount", detail=f"detached while it was in use by {held or 'no process that can be seen'}" if ended.lazy else ""
            )
        except (OSError, ValueError) as e:
            return _failure(e)
        finally:
            self._leave(tree)
        return ended.holders if ended.lazy else []


def _eager(table: Table, fetch: str) -> list[bytes]:
    """The chunks that are brought at once to a host that opens a mount."""
    if fetch == "demand":
        return []
    small = table.small_chunk_ids()
    return small if fetch == "hot" else [*small, *(table.chunk_ids() - set(small))]


def _staged_pin(tree: str) -> str:
    """The name of the pin of what a refresh adds."""
    return f"{tree}.staged"


def _failure(error: Exception) -> HostFailure:
    reason = error.reason if isinstance(error, FsError) else str(error)
    kind = "busy" if isinstance(error, MountBusyError) else "value" if isinstance(error, ValueError) else "failed"
    return HostFailure(kind, reason or type(error).__name__, getattr(error, "errno", None) or errno.EIO)


# Each job has its own service, which ends with the job.
SERVICE = Service(FileService)
