"""Slices that are well nested on every track: a slice lies within the slice below it, or does not touch it.

Slices come in the order of their begins, the longer one first where they begin together. A slice goes on top of its parent where it ends
within it and no sibling is in the way; else it goes to the first track of its group that is empty at that time. Two calls that an actor
handles at the same time are therefore on two tracks, which a viewer shows as one group.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple


class _Open(NamedTuple):
    slice_id: int
    end_us: int


class Nesting:
    """The open slices of one group of tracks. `end` is called with time and number of a track for each slice that has ended, in order."""

    def __init__(self, end: Callable[[int, int], None]) -> None:
        self._end = end
        self._stacks: list[list[_Open]] = []
        # The track of each open slice.
        self._tracks: dict[int, int] = {}
        # The tracks in use by the end of their lowest slice, and the empty ones.
        self._used: list[tuple[int, int]] = []
        self._free: list[int] = []

    def place(self, slice_id: int, begin_us: int, end_us: int, parent_id: int | None = None) -> int:
        """The number of the track on which this slice begins, from 0. The end is known, and not before the begin."""
        track = None if parent_id is None else self._on_parent(parent_id, begin_us, end_us)
        if track is None:
            while self._used and self._used[0][0] <= begin_us:
                self._clear(heapq.heappop(self._used)[1])
            track = self._empty()
            heapq.heappush(self._used, (end_us, track))
        self._stacks[track].append(_Open(slice_id, end_us))
        self._tracks[slice_id] = track
        return track

    def finish(self) -> None:
        """Ends all slices."""
        for _, track in sorted(self._used):
            self._clear(track)
        self._used.clear()

    def _on_parent(self, parent_id: int, begin_us: int, end_us: int) -> int | None:
        track = self._tracks.get(parent_id)
        if track is None:
            return None
        stack = self._stacks[track]
        while stack[-1].slice_id != parent_id and stack[-1].end_us <= begin_us:
            self._pop(track)
        top = stack[-1]
        return track if top.slice_id == parent_id and begin_us <= top.end_us and end_us <= top.end_us else None

    def _empty(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._stacks.append([])
        return len(self._stacks) - 1

    def _clear(self, track: int) -> None:
        while self._stacks[track]:
            self._pop(track)
        heapq.heappush(self._free, track)

    def _pop(self, track: int) -> None:
        ended = self._stacks[track].pop()
        if self._tracks.get(ended.slice_id) == track:
            del self._tracks[ended.slice_id]
        self._end(ended.end_us, track)
