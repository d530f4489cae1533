"""Clocks of hosts, by the times in their answers."""

from __future__ import annotations

import pytest

from monarch.spmd.clocks import Reading, offsets


def test_ranks_of_a_host_share_one_clock():
    assert offsets([Reading("a", 10.0, 10.1, 13.0), Reading("a", 10.0, 12.9, 13.0)]) == {"a": 0.0}


@pytest.mark.parametrize("wrong", [100.0, -100.0])
def test_clock_offset_is_bounded_by_all_answers(wrong):
    found = offsets([Reading("a", 10.0, 10.1 + wrong, 13.0), Reading("a", 10.0, 12.9 + wrong, 13.0), Reading("b", 10.0, 11.0, 13.0)])
    assert found["b"] == 0.0
    assert abs(found["a"] - wrong) <= 0.1 + 1e-9


def test_clock_set_between_answers_gives_a_number():
    assert offsets([Reading("a", 10.0, 10.5, 11.0), Reading("a", 10.0, 20.5, 11.0)])["a"] == pytest.approx(9.5)
