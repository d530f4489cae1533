"""The pause of an observer: long while there are few events, short before a ring wraps around."""

from __future__ import annotations

from monarch._core.extension.read_pause import FULL, SHORTEST, ReadPause


def test_pause_is_longest_at_low_load():
    pause = ReadPause(0.2)
    for _ in range(10):
        pause.looked(0.01)
    assert pause.pause == 0.2


def test_filling_ring_shortens_the_pause():
    pause = ReadPause(0.2)
    pause.looked(FULL + 0.01)
    assert pause.pause == 0.1
    # The ring has wrapped around four times: seven eighths of the pause were too much.
    pause.looked(4.0)
    assert pause.pause == 0.1 / 8


def test_pause_has_a_lower_bound():
    pause = ReadPause(0.2)
    for _ in range(20):
        pause.looked(100.0)
    assert pause.pause == SHORTEST
    # An observer that requests a shorter pause gets it.
    pause = ReadPause(0.001)
    pause.looked(100.0)
    assert pause.pause == 0.001


def test_pause_grows_again_after_the_load():
    pause = ReadPause(0.2)
    for _ in range(20):
        pause.looked(1.0)
    looks = 0
    while pause.pause < 0.2:
        pause.looked(0.0)
        looks += 1
    assert looks < 10


def test_between_the_bounds_the_pause_stays():
    pause = ReadPause(0.2)
    pause.looked(0.6)
    before = pause.pause
    pause.looked(FULL * 0.75)
    assert pause.pause == before
