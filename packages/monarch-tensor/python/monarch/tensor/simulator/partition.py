"""Ranks that do the same at the same times, as groups: one rank of each is simulated."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch.tensor._protocol.commands import Grid, Move, Reduce
from monarch.tensor.simulator.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monarch.tensor._controller.place_base import PlaceBase
    from monarch.tensor.simulator.work import Entry


class Meeting(NamedTuple):
    """Ranks that wait for each other in one command, as their groups.

    `ranks` is what the cost model counts, and `crossing` whether they are on several hosts.
    """

    groups: tuple[int, ...]
    ranks: int
    crossing: bool


class Partition:
    """The groups of ranks for one log.

    A rank's times follow from the commands that it gets, and from the times of the ranks that it meets in collectives and moves. The groups
    are refined until the ranks of each get the same commands and meet ranks of the same groups over the same links.
    """

    def __init__(self, log: Sequence[Entry], hosts: Sequence[Any], ranks_of: Callable[[PlaceBase], tuple[int, ...]]) -> None:
        self._hosts = hosts
        self._ranks_of = ranks_of
        self.of_rank = [0] * len(hosts)
        self._meetings: dict[Any, list[Meeting]] = {}
        sets: dict[tuple[int, ...], None] = {}
        reductions: dict[tuple[Grid, tuple[str, ...]], None] = {}
        moves: dict[tuple[tuple[int, int], ...], None] = {}
        for entry in log:
            sets[self._ranks(entry)] = None
            if isinstance(entry.work, Work):
                definition = entry.work.definition
                if isinstance(definition, Reduce):
                    reductions[definition.grid, definition.dims] = None
                    if definition.result is not None:
                        sets[definition.result] = None
                elif isinstance(definition, Move):
                    moves[definition.routes] = None
        for ranks in sets:
            if len(ranks) < len(hosts):
                members = set(ranks)
                self._refine([r in members for r in range(len(hosts))])
        self._lines = {key: _lines(*key) for key in reductions}
        self._trees = {routes: _trees(routes) for routes in moves}
        count = 0
        while count != self.count:  # polls: no, ends when no group was split
            count = self.count
            for lines in self._lines.values():
                self._refine_by(lines)
            for trees in self._trees.values():
                self._refine_by_trees(trees)
        self.members: list[list[int]] = [[] for _ in range(self.count)]
        for rank, group in enumerate(self.of_rank):
            self.members[group].append(rank)
        self._groups: dict[tuple[int, ...], tuple[int, ...]] = {}

    @property
    def count(self) -> int:
        return max(self.of_rank, default=-1) + 1

    def groups(self, entry: Entry) -> tuple[int, ...]:
        """The groups that execute a command."""
        return self.groups_of(self._ranks(entry))

    def _ranks(self, entry: Entry) -> tuple[int, ...]:
        return self._ranks_of(entry.place) if entry.rank is None else (entry.rank,)

    def groups_of(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        found = self._groups.get(ranks)
        if found is None:
            found = self._groups[ranks] = tuple(sorted({self.of_rank[r] for r in ranks}))
        return found

    def meetings(self, definition: Reduce | Move, group: int) -> list[Meeting]:
        """Where a rank of a group takes part."""
        key = (definition.routes if isinstance(definition, Move) else (definition.grid, definition.dims), group)
        found = self._meetings.get(key)
        if found is None:
            rank = self.members[group][0]
            if isinstance(definition, Reduce):
                lines = [line for line in self._lines[definition.grid, definition.dims] if rank in line]
                found = [Meeting(self._groups_in(line), len(line), self._crosses(line)) for line in lines]
            else:
                trees = [t for t in self._trees[definition.routes].items() if rank == t[0] or rank in t[1]]
                found = [self._tree(source, targets) for source, targets in trees]
            self._meetings[key] = found
        return found

    def _tree(self, source: int, targets: tuple[int, ...]) -> Meeting:
        ranks = (source, *targets)
        return Meeting(self._groups_in(ranks), sum(t != source for t in targets), self._crosses(ranks))

    def _groups_in(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted({self.of_rank[r] for r in ranks}))

    def _crosses(self, ranks: tuple[int, ...]) -> bool:
        return any(self._hosts[r] != self._hosts[ranks[0]] for r in ranks)

    def _refine(self, marks: Sequence[Any]) -> None:
        """Splits the groups by marks of the ranks. Groups are numbered in the order of their first ranks."""
        numbers: dict[Any, int] = {}
        self.of_rank = [numbers.setdefault((old, mark), len(numbers)) for old, mark in zip(self.of_rank, marks, strict=True)]

    def _refine_by(self, lines: list[tuple[int, ...]]) -> None:
        marks: list[Any] = [None] * len(self.of_rank)
        for line in lines:
            mark = (self._groups_in(line), self._crosses(line))
            for rank in line:
                marks[rank] = mark
        self._refine(marks)

    def _refine_by_trees(self, trees: dict[int, tuple[int, ...]]) -> None:
        marks: list[list[Any]] = [[] for _ in self.of_rank]
        for source, targets in trees.items():
            mark = self._tree(source, targets)
            marks[source].append((0, source in targets, mark))
            for target in targets:
                if target != source:
                    marks[target].append((1, False, mark))
        self._refine([tuple(sorted(m)) for m in marks])


def _lines(grid: Grid, dims: tuple[str, ...]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for rank in grid.ranks():
        if rank not in seen:
            found.append(grid.line(rank, dims))
            seen.update(found[-1])
    return found


def _trees(routes: tuple[tuple[int, int], ...]) -> dict[int, tuple[int, ...]]:
    targets: defaultdict[int, list[int]] = defaultdict(list)
    for source, target in routes:
        targets[source].append(target)
    return {source: tuple(t) for source, t in targets.items()}
