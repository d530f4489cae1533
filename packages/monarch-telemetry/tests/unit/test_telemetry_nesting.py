"""Slices of any times and parents: each track is well nested, and a slice that fits is on top of its parent."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch.telemetry._export.nesting import Nesting


class Slice(NamedTuple):
    number: int
    begin: int
    end: int
    parent: int | None = None


def shown(slices: list[Slice]) -> tuple[dict[int, int], dict[int, list[tuple[str, int]]]]:
    """The track of each slice, and what was written to each track."""
    written: dict[int, list[tuple[str, int]]] = {}
    nesting = Nesting(lambda us, track: written[track].append(("end", us)))
    tracks: dict[int, int] = {}
    for one in slices:
        tracks[one.number] = nesting.place(one.number, one.begin, one.end, one.parent)
        written.setdefault(tracks[one.number], []).append((str(one.number), one.begin))
    nesting.finish()
    return tracks, written


def slices(drawn: list[tuple[int, int, int | None]]) -> list[Slice]:
    ordered = sorted(((min(pair), -max(pair)) for *pair, _ in drawn))
    parents = [None if parent is None else parent % (len(drawn) + 1) for *_, parent in drawn]
    return [Slice(number, begin, -end, parent) for number, ((begin, end), parent) in enumerate(zip(ordered, parents, strict=True))]


# Drawn at once, and no more than this: hypothesis takes the time limit of a test for a failure of one example, which is then flaky.
TIMES = st.integers(0, 12)
DRAWN = st.lists(st.tuples(TIMES, TIMES, st.none() | TIMES), max_size=12).map(slices)


@pytest.mark.timeout(100)
@given(DRAWN)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_track_is_well_nested(given: list[Slice]) -> None:
    by_number = {str(one.number): one for one in given}
    tracks, written = shown(given)
    assert len(tracks) == len(given)
    for events in written.values():
        assert [time for _, time in events] == sorted(time for _, time in events)
        stack: list[Slice] = []
        for what, time in events:
            if what != "end":
                one = by_number[what]
                assert not stack or (one.parent == stack[-1].number and one.end <= stack[-1].end)
                stack.append(one)
            else:
                assert stack.pop().end == time
        assert not stack


def test_children_are_on_their_parents() -> None:
    given = [Slice(1, 0, 10), Slice(2, 0, 10, 1), Slice(3, 0, 4, 2), Slice(4, 4, 10, 2), Slice(5, 5, 5, 4), Slice(6, 5, 5, 5)]
    assert set(shown(given)[0].values()) == {0}


def test_overlapping_slices_are_on_separate_tracks() -> None:
    assert shown([Slice(1, 0, 5), Slice(2, 3, 8), Slice(3, 5, 9), Slice(4, 9, 10)])[0] == {1: 0, 2: 1, 3: 0, 4: 0}
    # A child that outlives its parent, and one with a sibling on its track.
    assert shown([Slice(1, 0, 5), Slice(2, 1, 6, 1)])[0] == {1: 0, 2: 1}
    assert shown([Slice(1, 0, 9), Slice(2, 1, 6, 1), Slice(3, 2, 4, 1)])[0] == {1: 0, 2: 0, 3: 1}
    # Within another in time, but not a child of it.
    assert shown([Slice(1, 0, 9), Slice(2, 1, 2)])[0] == {1: 0, 2: 1}
