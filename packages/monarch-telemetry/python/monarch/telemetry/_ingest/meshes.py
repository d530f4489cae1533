"""Names and shapes of meshes, as far as a host knows them: of all that have a member on it, and of the last ones that have none.

No event states that a mesh has ended. A mesh without a member on this host may live on others, or may have ended on this one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from monarch.telemetry._store.entities import ENDED


class Meshes:
    """By number. `forgotten` is called with each mesh that is not known any more. Not for several threads at once."""

    def __init__(self, forgotten: Callable[[int], None], *, most: int = ENDED) -> None:
        self._forgotten, self._most = forgotten, most
        self.names: dict[int, str] = {}
        self.shapes: dict[int, str] = {}
        # The number of members on this host, by mesh; and the other meshes, the oldest first.
        self._members: dict[int, int] = {}
        self._without: OrderedDict[int, None] = OrderedDict()

    def made(self, mesh: int, name: str, shape: str) -> None:
        """A process of this host has spawned a mesh."""
        self.names[mesh], self.shapes[mesh] = name, shape
        if mesh not in self._members:
            self._rest(mesh)

    def joined(self, mesh: int, name: str) -> None:
        """A member begins on this host."""
        self.names.setdefault(mesh, name)
        self._members[mesh] = self._members.get(mesh, 0) + 1
        self._without.pop(mesh, None)

    def left(self, mesh: int) -> None:
        """A member that had joined has ended."""
        self._members[mesh] -= 1
        if not self._members[mesh]:
            del self._members[mesh]
            self._rest(mesh)

    def _rest(self, mesh: int) -> None:
        self._without[mesh] = None
        self._without.move_to_end(mesh)
        if len(self._without) > self._most:
            gone, _ = self._without.popitem(last=False)
            self.names.pop(gone, None)
            self.shapes.pop(gone, None)
            self._forgotten(gone)
