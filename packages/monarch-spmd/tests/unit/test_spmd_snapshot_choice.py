"""Which snapshot an attempt begins with, and which ones stay: for small worlds, all that may have been saved when they ended."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.spmd.snapshot_choice import MOST_INCOMPLETE, Held, Key, Reports, choose, neighbours, stale


def held(attempt: int, step: int, rank: int, world: int = 2, replicated: bool = False) -> Held:
    return Held(Key(attempt, step), rank, world, 10, replicated)


def test_newest_step_that_all_ranks_have() -> None:
    found = choose({0: [held(0, 1, 0), held(0, 2, 0), held(0, 3, 0)], 1: [held(0, 1, 1), held(0, 2, 1)]}, 2, before=1)
    assert found is not None and found.key == Key(0, 2)
    assert {rank: (part.rank, part.hosts) for rank, part in found.parts.items()} == {0: (0, (0,)), 1: (1, (1,))}


def test_copies_stand_in_for_a_lost_host() -> None:
    found = choose({1: [held(0, 1, 1), held(0, 1, 0)]}, 2, before=1)
    assert found is not None and [found.parts[rank].hosts for rank in (0, 1)] == [(1,), (1,)]


def test_step_of_a_later_attempt_is_newer() -> None:
    parts = [held(attempt, step, rank) for rank in (0, 1) for attempt, step in ((0, 9), (1, 7))]
    found = choose({0: parts}, 2, before=2)
    assert found is not None and found.key == Key(1, 7)


def test_snapshots_of_the_own_attempt_do_not_count() -> None:
    parts = [held(attempt, step, rank) for rank in (0, 1) for attempt, step in ((0, 1), (1, 2))]
    found = choose({0: parts}, 2, before=1)
    assert found is not None and found.key == Key(0, 1)
    assert choose({0: parts}, 2, before=0) is None


@pytest.mark.parametrize("world", [1, 3])
def test_world_of_another_size(world: int) -> None:
    parts = [held(0, 1, rank) for rank in (0, 1)]
    assert choose({0: parts}, world, before=1) is None
    same = [held(0, 1, 1, replicated=True)]
    found = choose({4: same}, world, before=1)
    assert found is not None and [found.parts[rank].rank for rank in range(world)] == [1] * world


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 2), st.booleans()), max_size=12), st.integers(1, 3))
def test_part_of_another_rank_is_a_replicated_one(saved: list[tuple[int, int, int, bool]], world: int) -> None:
    """Whatever hosts hold, of ranks that agree on `replicated` or not: a rank gets its own part, or all that is held is the same."""
    parts: dict[int, list[Held]] = {}
    for host, step, rank, replicated in saved:
        parts.setdefault(host, []).append(held(0, step, rank, 3, replicated))
    found = choose(parts, world, before=1)
    if found is not None:
        of_step = [one for ones in parts.values() for one in ones if one.key == found.key]
        assert all(part.rank == rank for rank, part in found.parts.items()) or all(one.replicated for one in of_step)
        for part in found.parts.values():
            assert all(any(one.rank == part.rank for one in parts[host] if one.key == found.key) for host in part.hosts)


def test_choice_without_a_complete_snapshot_is_none() -> None:
    assert choose({}, 2, before=5) is None and choose({0: [], 1: [held(0, 1, 1)]}, 2, before=5) is None


def test_neighbours_go_around_the_end() -> None:
    assert neighbours(4, [0, 2, 4], 1) == [0]
    assert neighbours(0, [0, 2, 4], 5) == [2, 4]
    assert neighbours(3, [3], 1) == []


@given(st.integers(1, 3), st.lists(st.integers(0, 1), min_size=1, max_size=24))
def test_lost_host_leaves_a_complete_snapshot(keep: int, order: list[int]) -> None:
    """Two ranks on two hosts save in any order, each its next step; the other host has copies. At every moment each host may be lost."""
    next_step = [0, 0]
    hosts: list[dict[int, set[Key]]] = [{0: set(), 1: set()}, {0: set(), 1: set()}]
    complete: list[Key] = []
    for rank in order:
        # A rank is at most one step before the others: a training step needs all of them.
        if next_step[rank] > next_step[1 - rank]:
            continue
        key = Key(0, next_step[rank])
        next_step[rank] += 1
        for host in hosts:
            host[rank].add(key)
        if next_step[0] == next_step[1]:
            complete.append(key)
        for host, one in itertools.product(hosts, (0, 1)):
            host[one] -= set(stale(host[one], complete, keep, keep + 4))
        for lost in (0, 1):
            left = {1 - lost: [held(key.attempt, key.step, one) for one in (0, 1) for key in hosts[1 - lost][one]]}
            found = choose(left, 2, before=1)
            assert (found.key if found else None) == (complete[-1] if complete else None)
        assert all(len(host[one]) <= keep + 1 for host in hosts for one in (0, 1))


def test_diverging_ranks_do_not_fill_the_memory() -> None:
    keys = [Key(0, step) for step in range(10)]
    assert stale(keys, [], keep=2, most=4) == keys[:6]


def test_rank_far_ahead_completes_no_dropped_step() -> None:
    reports = Reports()
    assert not reports.add(held(0, 3, 0), keep=2) and reports.add(held(0, 3, 1), keep=2) and reports.complete == Key(0, 3)
    for step in range(4, 64):
        assert not reports.add(held(0, step, 0), keep=2)
        assert (reports.dropped is None) == (step < 9)
    text = "the snapshot of step 4 of rank 0 was dropped: rank 1 had not saved this step"
    assert str(reports.dropped) == text
    # The part of the other rank that belongs to this one was dropped long ago.
    assert not reports.add(held(0, 4, 1), keep=2) and reports.complete == Key(0, 3)
    assert reports.add(held(0, 63, 1), keep=2) and reports.complete == Key(0, 63) and str(reports.dropped) == text


def test_parts_of_an_earlier_attempt_need_no_report() -> None:
    reports = Reports()
    for step in range(5):
        assert not reports.add(held(0, step, 0), keep=1)
    for step in range(3):
        assert not reports.add(held(1, step, 0), keep=1)
    assert reports.dropped is not None and reports.dropped.key == Key(0, 0)
    reports = Reports()
    for step in range(4):
        assert not reports.add(held(0, step, 0), keep=1)
    for step in range(3):
        assert not reports.add(held(1, step, 0), keep=1)
    assert reports.dropped is None


def test_many_ranks_that_lack_are_counted() -> None:
    reports = Reports()
    for step in range(6):
        reports.add(held(0, step, 1, world=12), keep=1)
    assert str(reports.dropped).endswith("ranks 0, 2, 3, 4, 5, 6, 7, 8 and 3 more had not saved this step")


@given(st.integers(1, 3), st.lists(st.integers(0, 2), max_size=120))
def test_complete_snapshot_is_held_of_all_ranks(keep: int, order: list[int]) -> None:
    """Three ranks save, however far one is ahead; keepers have one part more than was reported."""
    reports, complete = Reports(), list[Key]()
    steps, parts = [0, 0, 0], [set[Key](), set[Key](), set[Key]()]
    late: list[Key | None] = [None, None, None]
    for rank in order:
        key = Key(0, steps[rank])
        steps[rank] += 1
        parts[rank].add(key)
        parts[rank] -= set(stale(parts[rank], complete, keep, keep + MOST_INCOMPLETE))
        before, late[rank] = late[rank], key
        if before is not None and reports.add(held(before.attempt, before.step, rank, world=3), keep):
            assert all(before in one for one in parts)
            complete.append(before)
            for one in parts:
                one -= set(stale(one, complete, keep, keep + MOST_INCOMPLETE))
        assert reports.complete is None or all(reports.complete in one for one in parts)
