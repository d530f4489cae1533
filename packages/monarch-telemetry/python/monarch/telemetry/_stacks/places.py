"""Procs that have something in common, by mesh: compressed ranks and a count. Unions do not depend on their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from monarch.telemetry._stacks.fields import Fields
from monarch.telemetry._stacks.place import Place
from monarch.telemetry._stacks.ranks import Ranks, parse_ranks, print_ranks, ranks_of, union

# The most meshes that one line shows.
_MOST_MESHES = 4
_MOST_RUNS = 12


class Places(NamedTuple):
    """Procs of the meshes that have this path. Several meshes can have the same one, so `procs` may be larger than the number of ranks."""

    path: str
    mesh: str | None
    ranks: Ranks
    procs: int

    def __str__(self) -> str:
        name = Place(self.path, self.mesh, None).shown
        if not self.ranks:
            return name
        return f"{name}[{print_ranks(self.ranks, _MOST_RUNS)}]"

    def to_json(self) -> dict[str, object]:
        return {"path": self.path, "mesh": self.mesh, "ranks": print_ranks(self.ranks), "procs": self.procs}


def places_of(places: Iterable[Place]) -> tuple[Places, ...]:
    """Procs by mesh; each place is one proc."""
    ranks: dict[tuple[str, str | None], list[int | None]] = {}
    for one in places:
        ranks.setdefault((one.path, one.mesh), []).append(one.rank)
    found = (Places(path, mesh, ranks_of(rank for rank in known if rank is not None), len(known)) for (path, mesh), known in ranks.items())
    return joined(found)


def joined(places: Iterable[Places]) -> tuple[Places, ...]:
    """The union, sorted by path. Procs are added up: a proc is in one of the parts only."""
    by_path: dict[tuple[str, str | None], list[Places]] = {}
    for one in places:
        by_path.setdefault((one.path, one.mesh), []).append(one)
    found: list[Places] = []
    for (path, mesh), parts in by_path.items():
        ranks = parts[0].ranks if len(parts) == 1 else union(run for part in parts for run in part.ranks)
        found.append(Places(path, mesh, ranks, sum(part.procs for part in parts)))
    return tuple(sorted(found, key=lambda one: (one.path, one.mesh or "")))


def count(places: Iterable[Places]) -> int:
    """The number of procs."""
    return sum(one.procs for one in places)


def print_places(places: Sequence[Places]) -> str:
    """The meshes with most procs first; one line of bounded length."""
    ordered = sorted(places, key=lambda one: (-one.procs, one.path))
    more = len(ordered) - _MOST_MESHES
    return ", ".join([*map(str, ordered[:_MOST_MESHES]), *([f"{more:,} more meshes"] if more > 0 else [])])


def parse_places(entry: Fields, name: str) -> tuple[Places, ...]:
    """The list that `Places.to_json` has given."""
    found: list[Places] = []
    for one in entry.objects(name):
        ranks = parse_ranks(one.path("ranks"), one.text("ranks"))
        found.append(Places(one.text("path"), one.text_or_none("mesh"), ranks, one.number("procs", 63)))
    return joined(found)
