"""Procs that have something in common, by mesh: compressed ranks and a count. Unions do not depend on their order.

Sets of ranks are sorted fragments of neighbours, printed as `0,2-5`. Equal sets have equal forms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from monarch.telemetry._stacks.fields import Fields, malformed
from monarch.telemetry._stacks.place import Place

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


# First and last rank of each run of adjacent ranks, in order; at least one rank is between two runs.
Ranks = tuple[tuple[int, int], ...]

_FORM = re.compile(r"(?:\d{1,19}(?:-\d{1,19})?(?:,\d{1,19}(?:-\d{1,19})?)*)?", re.ASCII)


def ranks_of(ranks: Iterable[int]) -> Ranks:
    """The compressed form of ranks in any order, with repetitions or without."""
    return union((rank, rank) for rank in ranks)


def union(runs: Iterable[tuple[int, int]]) -> Ranks:
    """The compressed form of runs that may overlap."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(runs):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def size(ranks: Ranks) -> int:
    """The number of ranks in the set."""
    return sum(last - first + 1 for first, last in ranks)


def print_ranks(ranks: Ranks, most: int | None = None) -> str:
    """`0,2-5`. Runs above `most` are replaced by an ellipsis and the number of all ranks."""
    shown = ranks if most is None else ranks[:most]
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in shown)
    return text if len(shown) == len(ranks) else f"{text},… {size(ranks):,} ranks"


def parse_ranks(path: str, text: str) -> Ranks:
    """The set that `print_ranks` has printed. `path` is the place of the text in its document."""
    if not _FORM.fullmatch(text):
        raise malformed(path, text, "ranks such as '0,2-5'")
    runs: list[tuple[int, int]] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        runs.append((int(first), int(last or first)))
    if any(first > last for first, last in runs):
        raise malformed(path, text, "ranks such as '0,2-5'")
    return union(runs)
