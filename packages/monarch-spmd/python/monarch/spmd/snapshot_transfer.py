"""Snapshots of one rank, beside its program: a state goes to the keepers of its host and of the next ones, and comes back from them.

A copy that comes back from another host has the bytes that the rank has saved, or is not restored: while the copies are made, the digest of
the bytes goes to the actor of the run, which no host can change. The rank's own host made the state, and its file has no digest.
"""

from __future__ import annotations

import asyncio
from typing import Any

from monarch.actor import MonarchError
from monarch.extension.directory_tree import blake3
from monarch.spmd.environment import RankPlace
from monarch.spmd.errors import SPMDError
from monarch.spmd.program_requests import Request
from monarch.spmd.snapshot_choice import Held, Key
from monarch.spmd.snapshot_file import SnapshotFile
from monarch.spmd.snapshot_hosts import Found
from monarch.spmd.snapshot_memory import OfferedFile, pull

# Files that stay open here. A program has as many as it keeps snapshots, and a few more.
_MOST_FILES = 16


class RankSnapshots:
    """Answers the requests of the rank's program. `control` is the actor of the run."""

    def __init__(self, place: RankPlace, attempt: int, control: Any) -> None:
        self._place = place
        self._attempt = attempt
        self._control = control
        # Saves run one after the other, in the order of the program.
        self._saving = asyncio.Lock()
        self._keepers: dict[int, list[Any]] = {}
        # The program writes the same files again and again: mapping one takes longer than copying from it.
        self._files: dict[int, SnapshotFile] = {}
        # The file is kept until the program has opened it.
        self._restored: SnapshotFile | None = None

    async def answer(self, request: Request) -> dict[str, Any]:
        if request["do"] == "restore":
            return await self._restore(bool(request["replicated"]))
        return await self._save(request)

    async def _save(self, request: Request) -> dict[str, Any]:
        # The file is opened now: the program may end before its turn comes.
        file = self._file(request["path"])
        key = Key(self._attempt, int(request["step"]))
        held = Held(key, self._place.rank, self._place.world_size, file.nbytes, bool(request["replicated"]))
        keep, copies = int(request["keep"]), int(request["copies"])
        async with self._saving:
            try:
                kept, digest = await self._give(await self._keepers_for(copies), held, file, keep)
            except SPMDError:
                raise
            except MonarchError:
                kept, digest = await self._give_again(copies, held, file, keep)
            self._control.saved.broadcast(held, digest, keep)
        return {"kept": kept}

    async def _give_again(self, copies: int, held: Held, file: SnapshotFile, keep: int) -> tuple[list[int], bytes]:
        """After the end of a keeper, which the system kills first where memory lacks: with another one in its place."""
        self._keepers.clear()
        try:
            return await self._give(await self._keepers_for(copies, renewed=True), held, file, keep)
        except SPMDError:
            raise
        except MonarchError as error:
            raise SPMDError(
                f"step {held.key.step} of rank {held.rank} was not saved: the proc that keeps snapshots has ended, twice; {_reason(error)}",
                code="snapshot_failed",
            ) from None

    async def _give(self, keepers: list[Any], held: Held, file: SnapshotFile, keep: int) -> tuple[list[int], bytes]:
        """The steps that this host holds, and the digest of the bytes, empty without copies."""
        own, *others = keepers
        kept: list[int] = await own.hold.call_one(held, file.path, keep)
        return kept, await self._copy(others, held, file, keep) if others else b""

    async def _copy(self, keepers: list[Any], held: Held, file: SnapshotFile, keep: int) -> bytes:
        offered = OfferedFile(file)
        try:
            copies = (keeper.copy.call_one(held, offered.offer, keep) for keeper in keepers)
            digest, *_ = await asyncio.gather(asyncio.to_thread(blake3, file.view()), *copies)
        finally:
            await offered.end()
        return digest

    def _file(self, path: str) -> SnapshotFile:
        file = SnapshotFile.at(path)
        known = self._files.pop(file.inode, file)
        self._files[file.inode] = known
        if len(self._files) > _MOST_FILES:
            del self._files[next(iter(self._files))]
        return known

    async def _keepers_for(self, copies: int, *, renewed: bool = False) -> list[Any]:
        if copies not in self._keepers:
            self._keepers[copies] = await self._control.keepers.call_one(self._place.group_rank, copies, renewed)
        return self._keepers[copies]

    async def _restore(self, replicated: bool) -> dict[str, Any]:
        found: Found | None = await self._control.snapshot.call_one(self._place.rank, self._place.group_rank)
        if found is None:
            return {"path": None}
        if found.rank != self._place.rank and not replicated:
            raise SPMDError(
                f"step {found.key.step} is held of rank {found.rank} only, which has saved it with replicated=True; "
                f"rank {self._place.rank} restores without",
                code="snapshot_failed",
            )
        if found.own is not None:
            try:
                return {"path": await found.own.path.call_one(found.rank, found.key), "step": found.key.step}
            except MonarchError:  # another host may have it
                pass
        problems: list[str] = []
        is_altered = False
        for host, keeper in found.others.items():
            try:
                self._restored = file = SnapshotFile()
                await pull(await keeper.offer.call_one(found.rank, found.key), file, found.nbytes)
            except MonarchError as error:
                problems.append(str(error).split("\n")[0])
                continue
            if found.digest in (b"", await asyncio.to_thread(blake3, file.view())):
                return {"path": file.path, "step": found.key.step}
            self._control.altered.broadcast(found.rank, found.key, host)
            problems.append(f"the copy on host {host} has other bytes than were saved")
            is_altered = True
        raise SPMDError(
            f"step {found.key.step} of rank {found.rank} cannot be had: {'; '.join(problems) or 'no host has it any more'}",
            code="snapshot_altered" if is_altered else "snapshot_failed",
        )


def _reason(error: MonarchError) -> str:
    """The end of the first line, without the names of actors that the program does not know."""
    return str(error).split("\n", 1)[0].rpartition(": ")[2]
