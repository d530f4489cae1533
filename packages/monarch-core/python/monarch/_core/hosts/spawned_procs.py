"""The proc meshes that were spawned through a host mesh. Its `stop` ends them, and they have to end before its agents do."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from monarch._core.process.owner import OwningProcess
    from monarch._core.process.parts import Owned


class SpawnedProcs:
    """The proc meshes of one host mesh object, shared with its slices. A copy has its own list, with that of the original as `parent`.

    `stop` ends the procs of one object, `shutdown` also the procs of its copies. So the lists of all parents have each mesh too.
    """

    __slots__ = ("_entries", "_is_shut_down", "_parent")

    def __init__(self, parent: Self | None = None) -> None:
        self._entries: list[tuple[SpawnedProcs, Owned]] = []
        self._is_shut_down = False
        self._parent = parent

    @property
    def is_shut_down(self) -> bool:
        return self._is_shut_down or (self._parent is not None and self._parent.is_shut_down)

    def shut_down(self) -> None:
        self._is_shut_down = True

    def add(self, mesh: Owned) -> None:
        record: SpawnedProcs | None = self
        while record is not None:
            record._entries = [entry for entry in record._entries if entry[1].is_owned()]
            record._entries.append((self, mesh))
            record = record._parent

    def take(self) -> list[Owned]:
        """Removes and returns the meshes of this object."""
        taken = [mesh for origin, mesh in self._entries if origin is self]
        self._entries = [entry for entry in self._entries if entry[0] is not self]
        return taken

    def __iter__(self) -> Iterator[Owned]:
        """Iterates over the meshes of this object and its copies."""
        return iter([mesh for _, mesh in self._entries])

    def __len__(self) -> int:
        return len(self._entries)


def procs_on(process: OwningProcess, agents: set[int]) -> list[Owned]:
    """Proc meshes of this process that have no other hosts than these."""
    meshes = [mesh for mesh in list(process.meshes.owned.values()) if not mesh.is_actors]
    return [mesh for mesh in meshes if agents.issuperset(agent for agent, _ in mesh.info.agents)]
