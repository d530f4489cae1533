"""Cutting, choice of rails, retries and rests: against the contract, with a clock of the test."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.rdma.verbs.slices import LONGEST_REST, REST, SLICE, SMALL, TRIES, RailState, Slices


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def rails(*bandwidths, penalty=1.0):
    return [RailState(f"rail{i}", penalty**i, bandwidth) for i, bandwidth in enumerate(bandwidths)]


def drain(slices):
    """What is taken while there is room."""
    taken = []
    while one := slices.take():
        taken.append(one)
    return taken


@given(st.lists(st.integers(1, 5 * SLICE), max_size=8), st.integers(1, 4), st.randoms())
def test_every_byte_goes_once(sizes, count, random):
    slices = Slices(rails(*[1e9] * count), sizes, Clock())
    seen, under_way = [], []
    while not slices.ended:
        under_way += drain(slices)
        cut, rail = under_way.pop(random.randrange(len(under_way)))
        seen.append((cut.piece, cut.offset, cut.nbytes))
        slices.arrived(cut, rail)
    assert slices.complete and slices.done == sum(sizes) and not list(slices.left())
    seen.sort()
    for piece, size in enumerate(sizes):
        mine = [(offset, nbytes) for p, offset, nbytes in seen if p == piece]
        assert [offset for offset, _ in mine] == [sum(n for _, n in mine[:i]) for i in range(len(mine))]
        assert sum(n for _, n in mine) == size
        assert len(mine) == (1 if size <= SMALL else -(-size // SLICE))


def test_small_goes_to_the_nearest():
    near, far = rails(1e6, 1e12, penalty=2.0)
    slices = Slices([near, far], [SMALL] * 20, Clock())
    assert {rail for _, rail in drain(slices)} == {0}
    large = Slices([near, far], [SMALL + 1], Clock())
    assert large.take()[1] == 1


def test_fast_rail_carries_more_by_measured_speed():
    clock = Clock()
    states = rails(1e9, 1e9)
    slices = Slices(states, [400 * SLICE], clock)
    speed, free, carried, under_way, order = [8e9, 1e9], [0.0, 0.0], [0, 0], [], count()
    while not slices.ended:
        for cut, rail in drain(slices):
            free[rail] = max(free[rail], clock.now) + cut.nbytes / speed[rail]
            under_way.append((free[rail], next(order), cut, rail))
        under_way.sort()
        at, _, cut, rail = under_way.pop(0)
        clock.now = at
        carried[rail] += 1
        slices.arrived(cut, rail)
    assert 5 < carried[0] / carried[1] < 12
    assert states[0].bandwidth == pytest.approx(8e9, rel=0.2) and states[1].bandwidth == pytest.approx(1e9, rel=0.2)
    # No rail waits for the other at the end: the total time is that of both together.
    assert clock.now < 400 * SLICE / 9e9 * 1.15


def test_stalled_rail_is_not_waited_for():
    clock = Clock()
    states = rails(10e9, 1e9)
    slices = Slices(states, [64 * SLICE], clock)
    assert all(rail == 0 for _, rail in drain(slices)[:4])
    clock.now = 1.0
    assert {rail for _, rail in drain(slices)} == {1}


def test_failed_slice_uses_another_rail():
    slices = Slices(rails(1e9, 1e9, 1e9), [SLICE], Clock())
    seen = set()
    for _ in range(TRIES):
        cut, rail = slices.take()
        seen.add(rail)
        slices.failed(cut, rail, "broken")
    assert seen == {0, 1, 2} and slices.ended and not slices.complete and slices.take() is None
    assert list(slices.left()) == [(0, 0, SLICE)] and [one.rail for one in slices.attempts] == ["rail0", "rail1", "rail2"]


def test_returned_slice_costs_no_try():
    slices = Slices(rails(1e9), [SLICE], Clock())
    for _ in range(10):
        cut, rail = slices.take()
        slices.returned(cut, rail)
    cut, rail = slices.take()
    slices.arrived(cut, rail)
    assert slices.complete and not slices.attempts


def test_rests():
    clock = Clock()
    (rail,) = rails(1e9)
    expected = REST
    for _ in range(5):
        for _ in range(2):
            rail.failed(clock.now)
            clock.now += 4
        assert not rail.resting(clock.now)
        rail.failed(clock.now)
        assert rail.resting(clock.now)
        slices = Slices([rail], [1], clock)
        assert slices.take() is None and slices.ended and not slices.complete
        clock.now += expected - 1
        assert rail.resting(clock.now)
        clock.now += 1
        assert not rail.resting(clock.now)
        expected = min(2 * expected, LONGEST_REST)
    # Errors with long intervals cause no rest.
    for _ in range(9):
        rail.failed(clock.now)
        clock.now += 5.1
        assert not rail.resting(clock.now)
    # After a long time without errors, it begins with the short rest.
    clock.now += LONGEST_REST + 1
    for _ in range(3):
        rail.failed(clock.now)
    assert rail.rests_until == clock.now + REST


def test_rail_without_a_queue_is_waited_for():
    states = rails(1e9, 1e9)
    slices = Slices(states, [SLICE], Clock())
    states[0].ready = states[1].ready = False
    assert slices.take() is None and not slices.ended
    states[1].ready = True
    assert slices.take()[1] == 1


@given(st.data())
@settings(deadline=None)
def test_model(data):
    """Whatever happens: it ends, what is done and what is left are all, and no rail is asked too often."""
    clock = Clock()
    states = rails(*data.draw(st.lists(st.sampled_from([1e8, 1e9, 1e10]), min_size=1, max_size=3)))
    sizes = data.draw(st.lists(st.integers(1, 3 * SLICE), min_size=1, max_size=5))
    slices = Slices(states, sizes, clock)
    under_way, arrived, tries = [], [], {}
    for _ in range(1000):
        for cut, rail in drain(slices):
            assert not states[rail].resting(clock.now)
            under_way.append((cut, rail))
        if slices.ended:
            break
        cut, rail = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
        clock.now += data.draw(st.sampled_from([0.0, 0.001, 1.0, 20.0]))
        key = cut.piece, cut.offset
        outcome = data.draw(st.sampled_from(["arrived"] * 5 + ["failed", "returned"]))
        if outcome == "arrived":
            arrived.append((cut.piece, cut.offset, cut.nbytes))
            slices.arrived(cut, rail)
        elif outcome == "returned":
            slices.returned(cut, rail)
        else:
            tries[key] = tries.get(key, 0) + 1
            states[rail].failed(clock.now)
            slices.failed(cut, rail, "broken")
    assert slices.ended and not under_way and all(state.under_way == 0 for state in states)
    assert max(tries.values(), default=0) <= TRIES
    left = list(slices.left())
    assert slices.complete == (not left)
    for piece, size in enumerate(sizes):
        ranges = sorted((offset, nbytes) for p, offset, nbytes in arrived + left if p == piece)
        end = 0
        for offset, nbytes in ranges:
            assert offset == end
            end += nbytes
        assert end == size
