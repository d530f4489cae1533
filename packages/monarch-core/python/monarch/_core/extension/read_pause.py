"""The pause of an observer between two reads of the rings.

A read costs the same for one new event or thousands, so reads are rare; but a ring that wraps around between two reads loses
events. The pause is halved while the fullest ring has filled by more than `FULL` since the last read, and doubled up to the longest one
while it has filled by less than half of that. No event wakes an observer.
"""

from __future__ import annotations

# The fraction of a ring that may fill in a pause; the rest is reserve for a longer pause.
FULL = 0.5
# The shortest pause in seconds. A ring of 16,384 events wraps around in it at three million events a second.
SHORTEST = 0.005


class ReadPause:
    """The pause in seconds, at most `longest`."""

    __slots__ = ("_longest", "pause")

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self.pause = longest

    def looked(self, filled: float) -> None:
        """Adapts the pause after a read. `filled` is the largest fraction of a ring since the last read; more than 1: events were lost."""
        if filled > FULL:
            # A ring that has wrapped around several times needs more than one halving.
            self.pause = max(min(SHORTEST, self._longest), self.pause / max(2.0, filled / FULL))
        elif filled < FULL / 2:
            self.pause = min(self._longest, 2 * self.pause)
