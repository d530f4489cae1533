"""The keeper of a host: an actor in a proc that outlives attempts, with the states of the host's ranks and copies for others."""

from __future__ import annotations

import socket

from monarch.actor import Actor, concurrent_endpoint
from monarch.spmd.errors import SPMDError
from monarch.spmd.snapshot_choice import MOST_INCOMPLETE, Held, Key, stale
from monarch.spmd.snapshot_file import SnapshotFile, check_memory
from monarch.spmd.snapshot_memory import Offer, OfferedFile, pull

# Spare files for the next copies of each rank: reports of complete snapshots come a step or two late, and then free several at once.
_SPARE = 2


class Keeper(Actor):
    """Holds files by rank and key. A copy is held once it is whole."""

    _is_system_actor = True

    def __init__(self) -> None:
        self._files: dict[int, dict[Key, tuple[Held, SnapshotFile]]] = {}
        self._offers: dict[SnapshotFile, OfferedFile] = {}
        self._complete: list[Key] = []
        self._keep = 1
        # The snapshot with which the current attempt begins.
        self._pinned: Key | None = None
        # Files of dropped copies. Their pages exist: the next copies are written several times as fast.
        self._unused: list[SnapshotFile] = []
        # Files that no other process has mapped, and the ranks of their copies.
        self._private: dict[SnapshotFile, int] = {}

    @concurrent_endpoint
    async def hold(self, held: Held, path: str, keep: int) -> list[int]:
        """Holds the file of a rank of this host; the steps of that rank's attempt that are held now."""
        self._add(held, SnapshotFile.at(path), keep)
        return [key.step for key in self._files[held.rank] if key.attempt == held.key.attempt]

    @concurrent_endpoint
    async def copy(self, held: Held, offer: Offer, keep: int) -> None:
        """Copies what a rank of another host offers; `SPMDError` where this host has no room for it."""
        file = self._unused.pop() if self._unused else SnapshotFile()
        more = held.nbytes - file.nbytes
        if more > 0:
            check_memory(more, f"the snapshot of rank {held.rank}, step {held.key.step},", f"the memory of {socket.gethostname()}")
        await pull(offer, file, held.nbytes)
        self._private[file] = held.rank
        self._add(held, file, keep)

    @concurrent_endpoint
    async def complete(self, key: Key) -> None:
        """All ranks have saved this one: older ones may go."""
        self._complete.append(key)
        for rank in self._files:
            self._clean(rank)
        del self._complete[: -self._keep]

    @concurrent_endpoint
    async def pin(self, key: Key | None) -> None:
        """This one stays until the next call: an attempt begins with it, and its ranks may ask late."""
        self._pinned = key

    @concurrent_endpoint
    async def held(self) -> list[Held]:
        return [held for files in self._files.values() for held, _ in files.values()]

    @concurrent_endpoint
    async def path(self, rank: int, key: Key) -> str:
        """Of the file, for a process of this host, which maps it: from now on it is not written."""
        file = self._file(rank, key)
        self._private.pop(file, None)
        return file.path

    @concurrent_endpoint
    async def offer(self, rank: int, key: Key) -> Offer:
        """A file, for a process of another host, until it is dropped."""
        file = self._file(rank, key)
        if file not in self._offers:
            self._offers[file] = OfferedFile(file)
        return self._offers[file].offer

    def _file(self, rank: int, key: Key) -> SnapshotFile:
        found = self._files.get(rank, {}).get(key)
        if found is None:
            raise SPMDError(f"step {key.step} of rank {rank} is not held on {socket.gethostname()} any more", code="snapshot_failed")
        return found[1]

    def _add(self, held: Held, file: SnapshotFile, keep: int) -> None:
        self._keep = max(self._keep, keep)
        files = self._files.setdefault(held.rank, {})
        if held.key in files:  # it was saved twice
            self._private.pop(files[held.key][1], None)
            offered = self._offers.pop(files[held.key][1], None)
            if offered is not None:
                offered.end()
        files[held.key] = held, file
        self._clean(held.rank)

    def _clean(self, rank: int) -> None:
        files = self._files[rank]
        for key in stale(files, self._complete, self._keep, self._keep + MOST_INCOMPLETE):
            if key == self._pinned:
                continue
            _, file = files.pop(key)
            # Files that processes of this host have mapped, or write themselves, are not written here.
            is_private = self._private.pop(file, None) is not None
            offered = self._offers.pop(file, None)
            if offered is not None:
                # A reader may be using it.
                offered.end()
            elif is_private and len(self._unused) < _SPARE * len(set(self._private.values()) | {rank}):
                self._unused.append(file)
