"""The connections that a server keeps: those of its own user first, then those that have shown a token.

Every user of a machine can connect to a port of its loopback interface, and other machines to other ports. A connection costs a descriptor
of the process that serves, which is the script of the user. So the server keeps few connections of other users and machines, and of these
few that have not shown a token: one more ends the oldest of them. A client sends its token with its first bytes, so that it needs such a
place for a moment only.
"""

from __future__ import annotations

from collections.abc import Callable

# The key of the place of a connection in the state of a request.
STATE = "place"
# The most connections of other users and machines, and of those without a token so far. The rest of `CONNECTIONS` is for the user.
OTHERS, UNPROVED = 256, 128


class Place:
    """The place of one connection. `end` ends the connection."""

    __slots__ = ("_places", "end")

    def __init__(self, places: Places, end: Callable[[], object]) -> None:
        self._places, self.end = places, end

    def proved(self) -> None:
        """A request with a token of this server came by the connection."""
        self._places.prove(self)

    def leave(self) -> None:
        """The connection has ended."""
        self._places.leave(self)


class Places:
    """The places of all connections of a server; for its event loop."""

    def __init__(self, others: int = OTHERS, unproved: int = UNPROVED) -> None:
        self._most, self._most_unproved = others, unproved
        # The oldest first.
        self._unproved: dict[Place, None] = {}
        self._proved: set[Place] = set()

    def take(self, *, is_own: bool) -> Place | None:
        """A place, for which another connection may have ended; None where all others have shown a token."""
        place = Place(self, lambda: None)
        if is_own:
            return place
        is_full = len(self._unproved) + len(self._proved) >= self._most
        if is_full or len(self._unproved) >= self._most_unproved:
            oldest = next(iter(self._unproved), None)
            if oldest is None:
                return None
            del self._unproved[oldest]
            oldest.end()
        self._unproved[place] = None
        return place

    def prove(self, place: Place) -> None:
        if place in self._unproved:
            del self._unproved[place]
            self._proved.add(place)

    def leave(self, place: Place) -> None:
        self._unproved.pop(place, None)
        self._proved.discard(place)
