"""Endpoints that answer through a port: kept, passed on, used from threads, and the outcome for callers if it is not used."""

from __future__ import annotations

from typing import Any

import pytest
from answering_actors import BOTH, Sync

from monarch.actor import Accumulator, Channel, SupervisionError, send, this_host

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(scope="module")
def procs(faults):
    mesh = this_host().spawn_procs(per_host={"gpus": 3})
    yield mesh
    mesh.stop().get()


@pytest.fixture
def handle(procs, cls):
    return procs.spawn("work", cls)


@BOTH
def test_port_is_kept_and_answered_later(handle):
    future = handle.later.call(1)
    with pytest.raises(TimeoutError):
        future.get(timeout=0)
    handle.answer_now.call(4).get()
    assert future.get().values() == [4, 4, 4]


@BOTH
def test_port_is_used_from_a_thread(handle):
    assert handle.from_thread.call(10).get().values() == [10, 11, 12]
    assert sorted(f.get() for f in handle.from_thread.stream(10)) == [10, 11, 12]
    assert handle.slice(gpus=1).from_thread.call_one(10).get() == 10
    assert handle.from_thread.choose(10).get() in (10, 11, 12)


@BOTH
def test_port_is_passed_on(procs, handle):
    other = procs.slice(gpus=0).spawn("other", Sync)
    assert handle.pass_on.call(other).get().values() == [("delivered", r) for r in range(3)]


@BOTH
def test_exception_through_the_port(handle):
    """The caller gets the exception itself, not in an `ActorError`: the endpoint has chosen it for its caller."""
    one = handle.slice(gpus=1)
    through_port, receiver = Channel[Any].open_ranked()
    send(handle.fail_through_port, (), {}, through_port)
    calls = [handle.fail_through_port.call(), one.fail_through_port.call_one(), handle.fail_through_port.choose()]
    for future in [*calls, *handle.fail_through_port.stream(), *(receiver.recv() for _ in range(3))]:
        with pytest.raises(KeyError, match="through the port") as caught:
            future.get()
        assert type(caught.value) is KeyError and caught.value is future.exception()
    with pytest.raises(KeyError):
        Accumulator(handle.fail_through_port, 0, lambda a, b: a).accumulate().get()
    # The caller may lack the class: the text is sent.
    with pytest.raises(Exception, match="only here") as caught:
        one.fail_with_own_class.call_one().get()
    assert type(caught.value) is Exception
    assert handle.rank.call().get().values() == [0, 1, 2]


@BOTH
def test_second_message_into_a_port_raises(handle):
    assert handle.twice.call().get().values() == [1, 1, 1]
    assert all("already used" in text for text in handle.refusal.call().get().values())


@BOTH
def test_explicit_port_of_a_broadcast_goes_nowhere(handle):
    handle.twice.broadcast()
    assert handle.rank.call().get().values() == [0, 1, 2]


@BOTH
def test_failure_of_an_actor_fails_its_kept_ports(procs, cls, faults):
    handle = procs.spawn("keeper", cls)
    waiting = handle.later.call(1)
    one = handle.slice(gpus=1).later.call_one(1)
    handle.rank.call().get()
    handle.slice(gpus=1).fail.broadcast("gone")
    with pytest.raises(SupervisionError, match="ValueError: gone"):
        waiting.get()
    with pytest.raises(SupervisionError, match="ValueError: gone"):
        one.get()
    assert faults.get().crashed_ranks == [1]


@BOTH
def test_stop_of_an_actor_fails_its_kept_ports(procs, cls):
    handle = procs.spawn("keeper", cls)
    waiting = handle.later.call(1)
    handle.rank.call().get()
    handle.stop().get()
    with pytest.raises(SupervisionError, match="stopped"):
        waiting.get()
