"""The pause of an observer between two looks at the rings.

A look costs the same whether there is one new event or thousands, so looks are rare; but a ring that goes round between two looks loses
events. The pause is halved while the fullest ring has filled by more than `FULL` since the last look, and doubled up to the longest one
while it has filled by less than half of that. No event wakes an observer.
"""

from __future__ import annotations

# The part of a ring that may fill in a pause; the rest is for a pause that takes longer than it should.
FULL = 0.5
# Seconds. So many looks a second are the most there are, and a ring of 16,384 events goes round in it at three million events a second.
SHORTEST = 0.005


class Pace:
    """The pause in seconds, at most `longest`."""

    __slots__ = ("_longest", "pause")

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self.pause = longest

    def looked(self, filled: float) -> None:
        """A look has found the fullest ring filled by such a part since the last one; more than 1: events were lost."""
        if filled > FULL:
            # A ring that has gone round several times calls for more than half.
            self.pause = max(min(SHORTEST, self._longest), self.pause / max(2.0, filled / FULL))
        elif filled < FULL / 2:
            self.pause = min(self._longest, 2 * self.pause)
