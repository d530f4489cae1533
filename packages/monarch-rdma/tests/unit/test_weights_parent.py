"""For how long a target waits for the one that it reads from: by a feed whose looks are scripted, without processes."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from monarch.rdma import RDMATimeoutError
from monarch.rdma.weights import parent as module
from monarch.rdma.weights.parent import Parent


class Feed:
    """Each look sees the next version of the script, and the last one again and again."""

    values = (0, 0)

    def __init__(self):
        self.script, self.error = [], None

    def look(self, timeout):
        self.now = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return SimpleNamespace(get=lambda: None)

    def fetch(self, version, until):
        def get():
            if self.error is not None:
                raise self.error

        return SimpleNamespace(get=get)

    def versions(self):
        return {self.now}

    def has(self, version):
        return self.now == version


@pytest.fixture
def following(monkeypatch):
    monkeypatch.setattr(module, "extension", SimpleNamespace(member=lambda: SimpleNamespace(host=1)))
    # A pull that waits, waits for the whole script.
    monkeypatch.setattr(module, "_BEGIN", 3600.0)
    found, feed = Parent("policy", 1, "all", (2, 2), 1), Feed()
    found._settled.set()
    found._feed = feed

    def take(oldest, *script, error=None):
        feed.script, feed.error = list(script), error
        return found.take(oldest, time.monotonic() + 3600, lambda _: feed, lambda _: None)

    return take


LATE = RDMATimeoutError("late")


def test_version_that_comes_later_is_taken(following):
    assert following(1, 0, 0, 1) == 1


def test_late_parent_is_awaited_again(following):
    assert following(1, 1, error=LATE) is None
    assert following(2, 1, 2) is None
    assert following(3, 2, 3) == 3


def test_parent_that_is_late_twice_is_skipped_twice(following):
    assert following(1, 1, error=LATE) is None
    assert following(2, 1, 2) is None
    assert following(3, 3, error=LATE) is None
    assert [following(4, 3, 4), following(5, 4, 5)] == [None, None]
    assert following(6, 5, 6) == 6


def test_parent_that_fell_behind_is_not_awaited(following):
    assert following(1, 1, error=LATE) is None
    assert [following(step, 0, step) for step in range(2, 6)] == [None] * 4
    assert following(6, 6) == 6
    assert following(7, 6, 7) == 7
