"""The hosts of the procs of a mesh as runs: neighbours are mostly on one host."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias


# Pairs of a host and the number of consecutive procs on it.
if TYPE_CHECKING:
    Runs: TypeAlias = tuple[tuple[int, int], ...]


def runs_of(agents: Iterable[int]) -> Runs:
    found: list[list[int]] = []
    for agent in agents:
        if found and found[-1][0] == agent:
            found[-1][1] += 1
        else:
            found.append([agent, 1])
    return tuple((agent, count) for agent, count in found)


def each_of(runs: Runs) -> list[int]:
    """The host of each proc."""
    return [agent for agent, count in runs for _ in range(count)]
