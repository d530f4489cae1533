"""The keeper of a host: an actor in a proc that outlives attempts, with the states of the host's ranks and copies for others."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

from monarch.actor import Actor, concurrent_endpoint
from monarch.spmd.errors import SPMDError
from monarch.spmd.snapshot_choice import Held, Key, stale
from monarch.spmd.snapshot_file import SnapshotFile, check_memory

# Bytes of one message, and how many of them are on their way: enough to keep a link busy, few enough to need little memory.
PIECE = 32 << 20
WINDOW = 3
# Snapshots of one rank that are not complete in all ranks.
_MOST_INCOMPLETE = 4


class Keeper(Actor):
    """Holds files by rank and key. A file that is being written is not there for anyone until it is whole."""

    _is_system_actor = True

    def __init__(self) -> None:
        self._files: dict[int, dict[Key, tuple[Held, SnapshotFile]]] = {}
        self._coming: dict[tuple[int, Key], tuple[Held, SnapshotFile, int]] = {}
        self._complete: list[Key] = []
        self._keep = 1
        # Files of copies that were dropped. Their pages exist: the next copies are written several times as fast.
        self._unused: list[SnapshotFile] = []
        self._copied: set[int] = set()

    @concurrent_endpoint
    async def hold(self, held: Held, path: str, keep: int) -> list[int]:
        """Holds the file of a rank of this host; the steps of that rank's attempt that are held now."""
        self._add(held, SnapshotFile.at(path), keep)
        return [key.step for key in self._files[held.rank] if key.attempt == held.key.attempt]

    @concurrent_endpoint
    async def begin(self, held: Held) -> None:
        """A copy is about to come; `SPMDError` where this host has no room for it."""
        file = self._unused.pop() if self._unused else SnapshotFile()
        more = held.nbytes - file.nbytes
        if more > 0:
            check_memory(more, f"the snapshot of rank {held.rank}, step {held.key.step},", f"the memory of {socket.gethostname()}")
        file.resize(held.nbytes)
        self._coming[held.rank, held.key] = held, file, 0

    @concurrent_endpoint
    async def put(self, rank: int, key: Key, offset: int, data: Any, keep: int) -> None:
        """A piece of a copy, in any order; with the last one the copy is whole."""
        held, file, written = self._coming[rank, key]
        view = memoryview(data).cast("B")
        file.view()[offset : offset + view.nbytes] = view
        written += view.nbytes
        if written < held.nbytes:
            self._coming[rank, key] = held, file, written
            return
        del self._coming[rank, key]
        self._copied.add(rank)
        self._add(held, file, keep)

    @concurrent_endpoint
    async def complete(self, key: Key) -> None:
        """All ranks have saved this one: older ones may go."""
        self._complete.append(key)
        for rank in self._files:
            self._clean(rank)
        del self._complete[: -self._keep]

    @concurrent_endpoint
    async def held(self) -> list[Held]:
        return [held for files in self._files.values() for held, _ in files.values()]

    @concurrent_endpoint
    async def path(self, rank: int, key: Key) -> str:
        """Of the file, for a process of this host."""
        return self._file(rank, key).path

    @concurrent_endpoint
    async def get(self, rank: int, key: Key, offset: int) -> bytes:
        """A piece of a file, for a process of another host."""
        return os.pread(self._file(rank, key).fd, PIECE, offset)

    def _file(self, rank: int, key: Key) -> SnapshotFile:
        found = self._files.get(rank, {}).get(key)
        if found is None:
            raise SPMDError(f"step {key.step} of rank {rank} is not held on {socket.gethostname()} any more", code="snapshot_failed")
        return found[1]

    def _add(self, held: Held, file: SnapshotFile, keep: int) -> None:
        self._keep = max(self._keep, keep)
        files = self._files.setdefault(held.rank, {})
        files[held.key] = held, file
        self._clean(held.rank)

    def _clean(self, rank: int) -> None:
        files = self._files[rank]
        for key in stale(files, self._complete, self._keep, self._keep + _MOST_INCOMPLETE):
            _, file = files.pop(key)
            # The file of a rank of this host is written again by that rank.
            if rank in self._copied and len(self._unused) < len(self._copied):
                self._unused.append(file)


def pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    """Offsets and sizes."""
    for offset in range(0, nbytes, PIECE):
        yield offset, min(PIECE, nbytes - offset)
