"""The hosts of a run, some of which may be lost: what is left of the mesh, as meshes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from monarch.actor import Point

if TYPE_CHECKING:
    from monarch.actor import HostMesh


class Part(NamedTuple):
    """Hosts side by side, and the number of the first one among those that are left."""

    hosts: HostMesh
    first: int


class HostPool:
    """The hosts of a mesh by their numbers in it, in row-major order."""

    def __init__(self, hosts: HostMesh) -> None:
        self.mesh = hosts
        self._lost: set[int] = set()

    @property
    def left(self) -> list[int]:
        """The numbers of the hosts that are not lost."""
        return [number for number in range(self.mesh.extent.nelements) if number not in self._lost]

    @property
    def missing(self) -> int:
        """How many hosts are lost."""
        return len(self._lost)

    def lost_text(self) -> str:
        numbers = ", ".join(map(str, sorted(self._lost)))
        return f"host {numbers} is lost" if len(self._lost) == 1 else f"hosts {numbers} are lost"

    def lose(self, numbers: Iterable[int]) -> None:
        self._lost.update(numbers)

    def replace(self, hosts: HostMesh) -> None:
        """All hosts are there again: these."""
        self.mesh, self._lost = hosts, set()

    def parts(self) -> list[Part]:
        """The hosts that are left, as few meshes: the whole one, spans of one dimension, or single hosts of several dimensions."""
        if not self._lost:
            return [Part(self.mesh, 0)]
        left = self.left
        extent = self.mesh.extent
        if len(extent.labels) != 1:
            return [Part(self.mesh.slice(**Point(number, extent)), index) for index, number in enumerate(left)]
        found: list[Part] = []
        begin = 0
        for index, number in enumerate(left):
            if index + 1 == len(left) or left[index + 1] != number + 1:
                found.append(Part(self.mesh.slice(**{extent.labels[0]: slice(left[begin], number + 1)}), begin))
                begin = index + 1
        return found
