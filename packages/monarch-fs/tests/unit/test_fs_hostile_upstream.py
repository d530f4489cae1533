"""Upstreams that answer without a content, or with a failure in the name of the client: others are asked, and the client decides."""

from __future__ import annotations

import pytest

from monarch.fs._relay.chunk_protocol import ChunkAnswer, ChunkProtocolError, decode_answer, encode_answer
from monarch.fs._relay.failure import FetchFailure
from monarch.fs._relay.relay import KEEPALIVE, SILENCE, Relay

TREE = "t"
ID = b"i" * 32
OTHER = b"o" * 32
FAILURE = FetchFailure(5, "changed", stale=True, final=True)


def relay_of(*upstreams: str) -> Relay:
    relay = Relay()
    relay.join(TREE, upstreams)
    return relay


def asked(relay: Relay, now: float) -> list[tuple[int, object]]:
    return [(ask.number, ask.upstream) for ask in relay.ready(now)]


def pending(relay: Relay, upstream: str, *, urgent: bool = True, until: float = 1000.0) -> float:
    """Until when an upstream is asked that has nothing yet."""
    relay.want(TREE, [ID], "w", urgent=urgent)
    now = 0.0
    while now < until:
        [(number, found)] = asked(relay, now)
        if found != upstream:
            return now
        now += KEEPALIVE
        relay.answered(number, {}, {}, now)
    return now


def test_client_decides_what_is_unavailable() -> None:
    relay = relay_of("parent", "sibling", "client")
    relay.want(TREE, [ID], "w", urgent=True)
    [(number, _)] = asked(relay, 0.0)
    relay.answered(number, {}, {ID: FAILURE}, 0.0)
    assert relay.finished() == []
    [(number, upstream)] = asked(relay, 0.0)
    assert upstream == "client"
    relay.answered(number, {ID: 1}, {}, 0.0)
    [done] = relay.finished()
    assert done.failure is None


def test_failure_of_the_client_is_cached_briefly() -> None:
    relay = relay_of("client")
    relay.want(TREE, [ID], "w", urgent=True)
    [(number, _)] = asked(relay, 0.0)
    relay.answered(number, {}, {ID: FAILURE}, 0.0)
    relay.want(TREE, [ID], "x", urgent=True)
    assert asked(relay, 1.0) == []
    assert [(done.waiters, done.failure) for done in relay.finished()] == [(["w"], FAILURE), (["x"], FAILURE)]
    relay.want(TREE, [ID], "y", urgent=True)
    assert len(asked(relay, 3.0)) == 1


def test_failure_of_a_host_counts_without_client() -> None:
    relay = relay_of("parent", "client")
    relay.ended("client")
    relay.want(TREE, [ID], "w", urgent=True)
    [(number, _)] = asked(relay, 0.0)
    relay.answered(number, {}, {ID: FAILURE}, 0.0)
    assert asked(relay, 0.0) == []
    [done] = relay.finished()
    assert done.failure == FAILURE


@pytest.mark.parametrize(("urgent", "seconds"), [(True, 10.0), (False, 60.0)])
def test_upstream_that_never_has_it_is_passed(urgent: bool, seconds: float) -> None:
    relay = relay_of("parent", "client")
    now = pending(relay, "parent", urgent=urgent)
    assert seconds <= now < seconds + 2 * KEEPALIVE
    assert relay.withheld == [(TREE, "parent")]
    # Others are asked first from here on.
    relay.want(TREE, [OTHER], "w", urgent=True)
    assert [upstream for _, upstream in asked(relay, now)] == ["client"]


def test_upstream_with_progress_gets_more_time() -> None:
    relay = relay_of("parent", "client")
    relay.want(TREE, [ID], "w", urgent=True)
    now = 0.0
    while now < 20.0:
        [(number, upstream)] = asked(relay, now)
        assert upstream == "parent"
        relay.want(TREE, [OTHER], "w", urgent=True)
        [(other, _)] = asked(relay, now)
        relay.answered(other, {OTHER: 1}, {}, now + 0.1)
        now += KEEPALIVE
        relay.answered(number, {}, {}, now)
    assert relay.withheld == []


def test_client_is_waited_for_without_limit() -> None:
    assert pending(relay_of("client"), "client", until=500.0) >= 500.0


def test_hosts_are_asked_again_after_the_clients_return() -> None:
    relay = relay_of("parent", "client")
    now = pending(relay, "parent")
    # The connection to the client is cut: this is why the parent had nothing.
    relay.want(TREE, [OTHER], "w", urgent=True)
    assert [upstream for _, upstream in asked(relay, now + SILENCE)] == ["parent"]
    relay.progressed("client", now + SILENCE)
    relay.want(TREE, [b"n" * 32], "w", urgent=True)
    assert [upstream for _, upstream in asked(relay, now + SILENCE)] == ["parent"]


def test_failure_of_this_host_reaches_its_waiters() -> None:
    relay = relay_of("parent", "client")
    relay.want(TREE, [ID], "w", urgent=True)
    asked(relay, 0.0)
    relay.failed(TREE, ID, FAILURE)
    [done] = relay.finished()
    assert (done.waiters, done.failure) == (["w"], FAILURE)


@pytest.mark.parametrize("number", [0, 5000])
def test_failure_without_an_errno_is_malformed(number: int) -> None:
    with pytest.raises(ChunkProtocolError, match="errno"):
        decode_answer(encode_answer(ChunkAnswer({}, {ID: FetchFailure(number, "x")})))
