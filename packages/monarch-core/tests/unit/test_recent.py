"""Collections that forget their oldest items, also while several threads add."""

from __future__ import annotations

import sys
import threading

from monarch._core.process.recent import Recent, RecentMap


def test_oldest_entries_are_forgotten():
    found = RecentMap(3)
    found.update((n, str(n)) for n in range(5))
    assert found.keys() == [2, 3, 4] and found.get(1) is None and found.get(4) == "4" and len(found) == 3
    assert found.pop(3) == "3" and found.pop(3) is None and 3 not in found


def test_set_forgets_its_oldest_entries():
    seen = Recent()
    for n in range(10_000):
        seen.add(n)
    assert 9_999 in seen and 0 not in seen
    seen.discard_all([9_999, 0])
    assert 9_999 not in seen


def test_threads_may_add_at_once():
    found = RecentMap(10)
    raised: list[BaseException] = []

    def add(first: int) -> None:
        try:
            for n in range(first, first + 40_000):
                found.update([(n, n)])
        except BaseException as e:
            raised.append(e)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=add, args=(n * 1_000_000,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not raised and len(found) == 10
