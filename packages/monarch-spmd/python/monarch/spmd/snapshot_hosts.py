"""The keepers of the hosts of a run, as the actor of the run knows them: started on first use, ended with the run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch.actor import MonarchError, Point
from monarch.spmd.host_pool import HostPool
from monarch.spmd.snapshot_choice import MOST_INCOMPLETE, Chosen, Dropped, Held, Key, Reports, choose, neighbours, stale

if TYPE_CHECKING:
    from monarch.actor import ProcMesh

# Seconds for a host to report its snapshots; a host without an answer has none.
_ANSWER_S = 10.0


class Found(NamedTuple):
    """What a rank restores: the part of `rank`, `own` the keeper of its host if that has it, and by host the others that have it.

    `digest` is that of the bytes that the rank has saved; empty if it has not reported one.
    """

    key: Key
    rank: int
    nbytes: int
    digest: bytes
    own: Any
    others: dict[int, Any]


class SnapshotHosts:
    """Keepers by the numbers of their hosts."""

    def __init__(self, pool: HostPool) -> None:
        self._pool = pool
        self._starting = asyncio.Lock()
        self._meshes: list[ProcMesh] = []
        self._keepers: dict[int, Any] = {}
        self._reports = Reports()
        # By rank: the digests of the parts that keepers may hold, as the ranks have reported them. A host knows only what it copied.
        self._digests: dict[int, dict[Key, bytes]] = {}
        # The snapshot with which the current attempt begins.
        self._chosen: Chosen | None = None

    async def keepers(self, group: int, copies: int, *, renewed: bool = False) -> list[Any]:
        """That of a host, the `group`-th of those that are left, and those of the hosts that get its copies.

        `renewed`: one of them has failed. Keepers that have ended are started anew, without contents.
        """
        left = self._pool.left
        host = left[group]
        numbers = (host, *neighbours(host, left, copies))
        async with self._starting:
            if renewed:
                await asyncio.gather(*(self._held(number) for number in numbers if number in self._keepers))
            await self._start(left)
        return [self._keepers[number] for number in numbers]

    def saved(self, held: Held, digest: bytes, keep: int) -> Dropped | None:
        """A rank has saved its part, and the copies are whole. The first part of all that went in vain, once."""
        self._note_digest(held, digest, keep)
        had = self._reports.dropped
        if not self._reports.add(held, keep):
            return self._reports.dropped if had is None else None
        for keeper in self._keepers.values():
            try:
                keeper.complete.broadcast(held.key)
            except MonarchError:  # its host is lost
                continue
        return self._reports.dropped if had is None else None

    def _note_digest(self, held: Held, digest: bytes, keep: int) -> None:
        digests = self._digests.setdefault(held.rank, {})
        digests[held.key] = digest
        pinned = None if self._chosen is None else self._chosen.key
        for key in stale(digests, (), 0, 2 * keep + MOST_INCOMPLETE):
            if key != pinned:
                del digests[key]

    def lose(self, numbers: set[int]) -> None:
        """These hosts are gone, with what they held."""
        for number in numbers:
            self._keepers.pop(number, None)

    async def begin(self, attempt: int, world_size: int) -> None:
        """Chooses what the ranks of an attempt restore, before they start; keepers hold that until the next attempt."""
        self._chosen = None
        if not self._keepers:
            return
        numbers = list(self._keepers)
        parts = await asyncio.gather(*(self._held(number) for number in numbers))
        self._chosen = choose(dict(zip(numbers, parts, strict=True)), world_size, attempt)
        key = None if self._chosen is None else self._chosen.key
        await asyncio.gather(*(_pinned(keeper, key) for keeper in list(self._keepers.values())))

    def found(self, rank: int, group: int) -> Found | None:
        """What a rank of the current attempt restores: all ranks the same step, however late they ask."""
        chosen = self._chosen
        if chosen is None:
            return None
        part = chosen.parts[rank]
        host = self._pool.left[group]
        # A keeper that was lost since is missing.
        there = {number: self._keepers[number] for number in part.hosts if number in self._keepers}
        others = {number: keeper for number, keeper in there.items() if number != host}
        digest = self._digests.get(part.rank, {}).get(chosen.key, b"")
        return Found(chosen.key, part.rank, part.nbytes, digest, there.get(host), others)

    async def _held(self, number: int) -> list[Held]:
        """The contents of the keeper of a host. A keeper that has ended has none and is forgotten: the next question starts another one."""
        keeper = self._keepers[number]
        try:
            return await asyncio.wait_for(keeper.held.call_one(), _ANSWER_S)
        except TimeoutError:
            return []
        except MonarchError:
            if self._keepers.get(number) is keeper:
                del self._keepers[number]
            return []

    async def close(self) -> None:
        await asyncio.gather(*(_stopped(mesh) for mesh in self._meshes))

    async def _start(self, numbers: list[int]) -> None:
        from monarch.spmd.snapshot_keeper import Keeper

        missing = [number for number in numbers if number not in self._keepers]
        for part in self._pool.parts(missing):
            procs = part.hosts.spawn_procs(name="snapshots")
            self._meshes.append(procs)
            actors: Any = procs.spawn("keeper", Keeper)
            for index in range(procs.extent.nelements):
                self._keepers[missing[part.first + index]] = actors.slice(**Point(index, procs.extent))


async def _pinned(keeper: Any, key: Key | None) -> None:
    try:
        await asyncio.wait_for(keeper.pin.call_one(key), _ANSWER_S)
    except (MonarchError, TimeoutError):  # other hosts have its parts
        return


async def _stopped(procs: Any) -> None:
    try:
        await asyncio.wait_for(procs.stop("the run has ended"), _ANSWER_S)
    except (MonarchError, TimeoutError):  # its procs are gone already, or their host is
        return
