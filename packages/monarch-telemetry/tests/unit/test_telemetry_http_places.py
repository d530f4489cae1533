"""The connections that a server keeps: which one ends where there are too many."""

from __future__ import annotations

from monarch.telemetry._http.places import Place, Places


class Kept:
    """Places of connections that are still open, by number."""

    def __init__(self, others: int, unproved: int) -> None:
        self._places, self._count = Places(others, unproved), 0
        self.open: dict[int, Place] = {}

    def take(self, count: int = 1, *, is_own: bool = False) -> int:
        """How many of so many connections have got a place."""
        taken = 0
        for number in range(self._count, self._count + count):
            place = self._places.take(is_own=is_own)
            if place is not None:
                place.end = lambda number=number: self.end(number)
                self.open[number] = place
                taken += 1
        self._count += count
        return taken

    def end(self, number: int) -> None:
        self.open.pop(number).leave()


def test_own_connections_are_never_counted() -> None:
    kept = Kept(4, 2)
    assert kept.take(1_000, is_own=True) == 1_000
    assert kept.take(100) == 100
    assert len(kept.open) == 1_002


def test_oldest_without_a_token_ends() -> None:
    kept = Kept(4, 2)
    kept.take(2)
    kept.open[0].proved()
    kept.take(2)
    assert sorted(kept.open) == [0, 2, 3]


def test_connections_with_a_token_are_limited_too() -> None:
    kept = Kept(3, 2)
    for number in range(3):
        assert kept.take() == 1
        kept.open[number].proved()
    assert kept.take() == 0
    kept.end(1)
    assert kept.take() == 1 and sorted(kept.open) == [0, 2, 4]


def test_connection_that_has_ended_proves_nothing() -> None:
    kept = Kept(2, 2)
    kept.take()
    place = kept.open[0]
    kept.end(0)
    place.proved()
    kept.take(2)
    kept.open[1].proved()
    kept.open[2].proved()
    assert kept.take() == 0
