"""The text of a timeout: the endpoint, and the ranks without an answer."""

from __future__ import annotations

import threading

import pytest

from monarch.actor import Actor, current_rank, endpoint, this_host


class Slow(Actor):
    @endpoint
    def wait(self, ranks: list[int]) -> int:
        rank = current_rank().rank
        if rank in ranks:
            threading.Event().wait(20)
        return rank


@pytest.fixture
def slow():
    with this_host().spawn_procs({"procs": 3}) as procs:
        yield procs.spawn("slow", Slow)


def test_timeout_names_endpoint_and_ranks(slow: Slow) -> None:
    future = slow.wait.call([0, 2])
    with pytest.raises(TimeoutError, match=r"^no result after 0 s: slow\.wait\(\) has no answer from \d of 3 actors of slow: ranks? "):
        future.get(timeout=0)
    part = slow.slice(procs=1)
    assert part.wait.call_one([]).get() == 0
    with pytest.raises(TimeoutError, match=r"from 2 of 3 actors of slow: ranks 0, 2$"):
        future.get(timeout=0)


def test_timeout_of_one_actor_names_its_rank(slow: Slow) -> None:
    with pytest.raises(TimeoutError, match=r"slow\.wait\(\) has no answer from an actor of slow: rank 2$"):
        slow.slice(procs=2).wait.call_one([0]).get(timeout=0)
    with pytest.raises(TimeoutError, match=r"from an actor of slow: rank [012]$"):
        slow.wait.choose([0, 1, 2]).get(timeout=0)
