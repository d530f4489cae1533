"""The pause of an observer: long while there are few events, short before a ring wraps around."""

from __future__ import annotations

from monarch._core.extension.pace import FULL, SHORTEST, Pace


def test_pause_is_longest_at_low_load():
    pace = Pace(0.2)
    for _ in range(10):
        pace.looked(0.01)
    assert pace.pause == 0.2


def test_filling_ring_shortens_the_pause():
    pace = Pace(0.2)
    pace.looked(FULL + 0.01)
    assert pace.pause == 0.1
    # The ring has wrapped around four times: seven eighths of the pause were too much.
    pace.looked(4.0)
    assert pace.pause == 0.1 / 8


def test_pause_has_a_lower_bound():
    pace = Pace(0.2)
    for _ in range(20):
        pace.looked(100.0)
    assert pace.pause == SHORTEST
    # An observer that requests a shorter pause gets it.
    pace = Pace(0.001)
    pace.looked(100.0)
    assert pace.pause == 0.001


def test_pause_grows_again_after_the_load():
    pace = Pace(0.2)
    for _ in range(20):
        pace.looked(1.0)
    looks = 0
    while pace.pause < 0.2:
        pace.looked(0.0)
        looks += 1
    assert looks < 10


def test_between_the_bounds_the_pause_stays():
    pace = Pace(0.2)
    pace.looked(0.6)
    before = pace.pause
    pace.looked(FULL * 0.75)
    assert pace.pause == before
