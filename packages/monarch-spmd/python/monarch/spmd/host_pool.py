"""The hosts of a run, some of which may be lost: those that run ranks, as meshes, and those that take the place of others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from monarch.actor import Point

if TYPE_CHECKING:
    from monarch.actor import HostMesh


class Part(NamedTuple):
    """Hosts side by side, and the index of the first one among those that were asked for."""

    hosts: HostMesh
    first: int


class HostPool:
    """The hosts of a mesh by their numbers in it, in row-major order. The first `most` of them run ranks, the others are spare."""

    def __init__(self, hosts: HostMesh, most: int) -> None:
        self.mesh = hosts
        self._lost: set[int] = set()
        # The host at each place of the run, None if it is lost. A replacement gets the ranks of the lost host, and the others keep theirs.
        self._places: list[int | None] = list(range(most))

    @property
    def left(self) -> list[int]:
        """The numbers of the hosts that run ranks, in the order of these."""
        return [number for number in self._places if number is not None]

    @property
    def missing(self) -> int:
        """How many hosts the run lacks."""
        return self._places.count(None)

    @property
    def spares(self) -> list[int]:
        """The numbers of the hosts that run no ranks and are not known to be lost."""
        return [number for number in range(self.mesh.extent.nelements) if number not in self._lost and number not in self._places]

    def lost_text(self) -> str:
        numbers = ", ".join(map(str, sorted(self._lost)))
        return f"host {numbers} is lost" if len(self._lost) == 1 else f"hosts {numbers} are lost"

    def lose(self, numbers: Iterable[int]) -> None:
        self._lost.update(numbers)
        self._places = [None if number in self._lost else number for number in self._places]

    def use(self, spare: int) -> None:
        """A spare host takes the first place that has none."""
        self._places[self._places.index(None)] = spare

    def replace(self, hosts: HostMesh, missing: Iterable[int]) -> None:
        """The hosts are these now, all but the missing ones: a host that is there again has its place, or is spare if that is taken."""
        self.mesh, self._lost = hosts, set()
        self.lose(missing)
        spares = self.spares
        for place, number in enumerate(self._places):
            if number is None and spares:
                self._places[place] = spares.pop(spares.index(place) if place in spares else 0)

    def parts(self, numbers: Sequence[int]) -> list[Part]:
        """These hosts, as few meshes: the mesh itself, spans of one dimension, or single hosts of several dimensions."""
        extent = self.mesh.extent
        if list(numbers) == list(range(extent.nelements)):
            return [Part(self.mesh, 0)]
        if len(extent.labels) != 1:
            return [Part(self.mesh.slice(**Point(number, extent)), index) for index, number in enumerate(numbers)]
        found: list[Part] = []
        begin = 0
        for index, number in enumerate(numbers):
            if index + 1 == len(numbers) or numbers[index + 1] != number + 1:
                found.append(Part(self.mesh.slice(**{extent.labels[0]: slice(numbers[begin], number + 1)}), begin))
                begin = index + 1
        return found
