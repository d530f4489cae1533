"""Which target reads from which other: a tree of those that need the same boxes, kept by the first rank of a source. Without I/O.

The source and each target have a number of places for readers. A target that joins gets one on its own host where there is one, else the
one that is nearest to the source, so that the tree is shallow and few bytes cross hosts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

# A process, and the number of a target in it.
Key = tuple[int, int]


@dataclass(slots=True)
class Reader:
    """A target; `places` is for how many others it is a source. A parent of None is the source."""

    needs: str
    host: int
    places: int
    parent: Key | None = None
    children: set[Key] = field(default_factory=set[Key])


class ReaderTree:
    """The targets of one source, a tree for each set of boxes. `host` is that of the source."""

    def __init__(self, host: int) -> None:
        self._host = host
        self._readers: dict[Key, Reader] = {}

    def join(self, key: Key, needs: str, host: int, places: tuple[int, int], refused: Collection[Key] = ()) -> tuple[Key, int] | None:
        """The target to read from, with its host; None for the source.

        Args:
            key: who joins; who joins again gets another place, and keeps its readers.
            needs: the same for targets that need the same boxes.
            host: where it is.
            places: how many targets read from the source, and from this target.
            refused: targets that it does not read from.
        """
        joining = self._readers.setdefault(key, Reader(needs, host, places[1]))
        self._detach(key)
        direct = sum(r.parent is None and r.needs == needs and other != key for other, r in self._readers.items())
        # Other host, distance to the source, readers: the least is taken.
        best: tuple[bool, int, int] | None = (host != self._host, 0, direct) if direct < places[0] else None
        found: Key | None = None
        for other, reader in self._readers.items():
            if reader.needs != needs or len(reader.children) >= reader.places or other in refused:
                continue
            above = self._above(other)
            if key in above:
                continue
            rank = (host != reader.host, len(above), len(reader.children))
            if best is None or rank < best:
                best, found = rank, other
        if found is None:
            return None
        joining.parent = found
        self._readers[found].children.add(key)
        return found, self._readers[found].host

    def leave(self, key: Key) -> None:
        """The target has ended. Its readers join again; until then they count as readers of the source."""
        if key in self._readers:
            self._detach(key)
            for child in self._readers.pop(key).children:
                self._readers[child].parent = None

    def leave_all(self, proc: int) -> None:
        """The process has ended."""
        for key in [key for key in self._readers if key[0] == proc]:
            self.leave(key)

    def _above(self, key: Key) -> list[Key]:
        """The target, and those between it and the source."""
        found: list[Key] = []
        at: Key | None = key
        while at is not None:
            found.append(at)
            at = self._readers[at].parent
        return found

    def _detach(self, key: Key) -> None:
        parent = self._readers[key].parent
        if parent is not None:
            self._readers[parent].children.discard(key)
            self._readers[key].parent = None
