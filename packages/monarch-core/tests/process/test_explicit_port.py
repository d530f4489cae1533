"""Endpoints that answer through a port: kept, passed on, used from threads, and the outcome for callers if it is not used."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from monarch.actor import Accumulator, Actor, Channel, Port, SupervisionError, current_rank, endpoint, send, this_host

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(scope="module")
def procs(faults):
    mesh = this_host().spawn_procs(per_host={"gpus": 3})
    yield mesh
    mesh.stop().get()


def own_class() -> Any:
    class Stubborn(Exception):
        def __reduce__(self) -> Any:
            raise TypeError("stays here")

    return Stubborn


class Sync(Actor):
    def __init__(self) -> None:
        self.items: list[Any] = []
        self.ports: list[Port[Any]] = []
        self.refused: str | None = None

    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def fail(self, text: str) -> None:
        raise ValueError(text)

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[int], n: int) -> str:
        self.ports.append(port)
        return "ignored"

    @endpoint
    def answer_now(self, value: int) -> None:
        for port in self.ports:
            port.send(value)
        self.ports.clear()

    @endpoint(explicit_response_port=True)
    def from_thread(self, port: Port[int], n: int) -> None:
        threading.Thread(target=port.send, args=(n + current_rank().rank,)).start()

    @endpoint(explicit_response_port=True)
    def fail_through_port(self, port: Port[int]) -> None:
        port.exception(KeyError("through the port"))

    @endpoint(explicit_response_port=True)
    def fail_with_own_class(self, port: Port[int]) -> None:
        port.exception(own_class()("only here"))

    @endpoint(explicit_response_port=True)
    def pass_on(self, port: Port[Any], other: Any) -> None:
        other.deliver.broadcast(port, current_rank().rank)

    @endpoint
    def deliver(self, port: Port[Any], value: Any) -> None:
        port.send(("delivered", value))

    @endpoint(explicit_response_port=True)
    def twice(self, port: Port[int]) -> None:
        port.send(1)
        try:
            port.send(2)
        except RuntimeError as e:
            self.refused = str(e)

    @endpoint
    def refusal(self) -> str | None:
        return self.refused


class Async(Actor):
    def __init__(self) -> None:
        self.items: list[Any] = []
        self.ports: list[Port[Any]] = []
        self.refused: str | None = None

    @endpoint
    async def rank(self) -> int:
        return current_rank().rank

    @endpoint
    async def fail(self, text: str) -> None:
        raise ValueError(text)

    @endpoint(explicit_response_port=True)
    async def later(self, port: Port[int], n: int) -> str:
        self.ports.append(port)
        return "ignored"

    @endpoint
    async def answer_now(self, value: int) -> None:
        for port in self.ports:
            port.send(value)
        self.ports.clear()

    @endpoint(explicit_response_port=True)
    async def from_thread(self, port: Port[int], n: int) -> None:
        threading.Thread(target=port.send, args=(n + current_rank().rank,)).start()

    @endpoint(explicit_response_port=True)
    async def fail_through_port(self, port: Port[int]) -> None:
        port.exception(KeyError("through the port"))

    @endpoint(explicit_response_port=True)
    async def fail_with_own_class(self, port: Port[int]) -> None:
        port.exception(own_class()("only here"))

    @endpoint(explicit_response_port=True)
    async def pass_on(self, port: Port[Any], other: Any) -> None:
        other.deliver.broadcast(port, current_rank().rank)

    @endpoint
    async def deliver(self, port: Port[Any], value: Any) -> None:
        port.send(("delivered", value))

    @endpoint(explicit_response_port=True)
    async def twice(self, port: Port[int]) -> None:
        port.send(1)
        try:
            port.send(2)
        except RuntimeError as e:
            self.refused = str(e)

    @endpoint
    async def refusal(self) -> str | None:
        return self.refused


BOTH = pytest.mark.parametrize("cls", [Sync, Async])


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
