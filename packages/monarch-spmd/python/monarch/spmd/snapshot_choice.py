"""Decisions about snapshots, without clocks and processes: the snapshots that stay, and the snapshot of an attempt.

A snapshot is complete when every rank of its world has saved it. Its key is the attempt and the step: the steps of an attempt that has
restored an older state are not those of the attempt before, even where they have the same number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

# The incomplete snapshots of one rank that a keeper holds beyond `keep`.
MOST_INCOMPLETE = 4


class Key(NamedTuple):
    """One snapshot of all ranks; larger ones are newer."""

    attempt: int
    step: int


class Held(NamedTuple):
    """The part of a snapshot that one rank has saved, as a keeper holds it."""

    key: Key
    rank: int
    world_size: int
    nbytes: int
    replicated: bool


class Part(NamedTuple):
    """What one rank restores: the part that `rank` has saved, which the keepers of these hosts have."""

    rank: int
    nbytes: int
    hosts: Sequence[int]


class Chosen(NamedTuple):
    """The snapshot that an attempt begins with, and the part of each rank."""

    key: Key
    parts: Mapping[int, Part]


def choose(held: Mapping[int, Iterable[Held]], world_size: int, before: int) -> Chosen | None:
    """The newest snapshot of earlier attempts than `before` that fits a world of this size; `held` is by number of host.

    It needs the parts of all ranks, and a world of the same size. Where all parts that are held are `replicated`, one is enough for any
    world. A rank gets the part of another one only then.
    """
    found: dict[Key, dict[int, Part]] = {}
    partial: dict[Key, set[int]] = {}
    for host in sorted(held):
        for one in held[host]:
            if one.key.attempt < before:
                parts = found.setdefault(one.key, {})
                others = parts[one.rank].hosts if one.rank in parts else ()
                parts[one.rank] = Part(one.rank, one.nbytes, (*others, host))
                sizes = partial.setdefault(one.key, set())
                if not one.replicated:
                    sizes.add(one.world_size)
    for key in sorted(found, reverse=True):
        parts = found[key]
        if not partial[key]:
            any_part = parts[min(parts)]
            return Chosen(key, {rank: parts.get(rank, any_part) for rank in range(world_size)})
        if partial[key] == {world_size} and parts.keys() == set(range(world_size)):
            return Chosen(key, parts)
    return None


def stale(held: Iterable[Key], complete: Iterable[Key], keep: int, most: int) -> list[Key]:
    """What a keeper drops of one rank: all but the `keep` newest complete ones, and of those that are newer, all but the `most` newest.

    Ranks that save different steps complete none; without a bound they would fill the memory.
    """
    there = list(held)
    finished = sorted(set(complete).intersection(there), reverse=True)[:keep]
    newest = finished[0] if finished else None
    newer = sorted(key for key in there if newest is None or key > newest)
    kept = {*finished, *newer[max(0, len(newer) - most) :]}
    return [key for key in there if key not in kept]


class Dropped(NamedTuple):
    """A part that went before all ranks had saved that step; `missing` are ranks that had not."""

    key: Key
    rank: int
    missing: tuple[int, ...]

    def __str__(self) -> str:
        ranks = f"rank {self.missing[0]}" if len(self.missing) == 1 else f"ranks {', '.join(map(str, self.missing[:8]))}"
        more = f" and {len(self.missing) - 8} more" if len(self.missing) > 8 else ""
        return f"the snapshot of step {self.key.step} of rank {self.rank} was dropped: {ranks}{more} had not saved this step"


class Reports:
    """Which ranks have saved what, from their reports, and what is complete: only what keepers hold of every rank still."""

    def __init__(self) -> None:
        # The newest snapshot that all ranks have saved.
        self.complete: Key | None = None
        # The first part that was dropped before its snapshot was complete.
        self.dropped: Dropped | None = None
        self._ranks: dict[Key, set[int]] = {}
        self._keys: dict[int, list[Key]] = {}

    def add(self, held: Held, keep: int) -> bool:
        """Whether the snapshot of this part is complete now."""
        key = held.key
        if self.complete is not None and key <= self.complete:
            return False
        keys = self._keys.setdefault(held.rank, [])
        if key not in keys:
            keys.append(key)
        self._ranks.setdefault(key, set()).add(held.rank)
        # The rule is that of keepers, which may hold one part more than the reports show: a keeper has dropped the older ones of this rank.
        most = keep + MOST_INCOMPLETE - 1
        for old in keys[:-most]:
            # Parts of an earlier attempt were dropped with that attempt.
            if self.dropped is None and old.attempt == key.attempt:
                there = self._ranks[old]
                self.dropped = Dropped(old, held.rank, tuple(rank for rank in range(held.world_size) if rank not in there))
            self._ranks[old].discard(held.rank)
        del keys[:-most]
        if not held.replicated and len(self._ranks[key]) < held.world_size:
            return False
        self.complete = key
        # Older incomplete snapshots can never become complete.
        self._ranks = {other: ranks for other, ranks in self._ranks.items() if other > key}
        self._keys = {rank: [other for other in keys if other > key] for rank, keys in self._keys.items()}
        return True


def neighbours(host: int, hosts: Sequence[int], copies: int) -> list[int]:
    """The hosts that get copies of the states of a host: the next ones, around the end."""
    at = hosts.index(host)
    return [hosts[(at + distance) % len(hosts)] for distance in range(1, min(copies, len(hosts) - 1) + 1)]
