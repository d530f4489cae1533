"""Concurrent endpoints: their bodies run as tasks while the actor handles further messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import monarch.actor
from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    Port,
    SupervisionError,
    concurrent_endpoint,
    context,
    current_rank,
    endpoint,
    this_host,
)

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(scope="module")
def procs(faults):
    mesh = this_host().spawn_procs(per_host={"gpus": 2})
    yield mesh
    mesh.stop().get()


class Base(Actor):
    def __init__(self, report: Port[Any] | None = None) -> None:
        self.seen: list[Any] = []
        self.gate = asyncio.Event()
        self.report = report
        self.running = 0

    @concurrent_endpoint
    async def wait_for_gate(self, name: str) -> str:
        self.seen.append(name)
        self.running += 1
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        return name

    @concurrent_endpoint
    async def where(self) -> tuple[int, str]:
        before = current_rank().rank
        await asyncio.sleep(0)
        assert current_rank().rank == before
        return before, str(context().actor_instance)

    @concurrent_endpoint
    async def fail(self, text: str) -> None:
        await asyncio.sleep(0)
        raise ValueError(text)

    @concurrent_endpoint
    async def exit(self) -> None:
        await asyncio.sleep(0)
        raise SystemExit(4)

    @concurrent_endpoint
    async def cancel_itself(self) -> None:
        raise asyncio.CancelledError("by the user")

    @concurrent_endpoint(explicit_response_port=True)
    async def through_port(self, port: Port[int], value: int) -> None:
        await asyncio.sleep(0)
        port.send(value)

    @concurrent_endpoint(explicit_response_port=True)
    async def fail_with_port(self, port: Port[int]) -> None:
        await asyncio.sleep(0)
        raise ValueError("nobody to tell")

    @concurrent_endpoint
    async def unpicklable(self) -> Any:
        import threading

        return threading.Lock()

    @concurrent_endpoint
    async def abort(self) -> str:
        context().actor_instance.abort("enough")
        await asyncio.sleep(0)
        return "last words"

    @concurrent_endpoint
    async def stubborn(self, port: Port[Any]) -> str:
        port.send("begun")
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.seen.append("cancelled")
            raise
        return "never"


class Work(Base):
    """Adds plain endpoints to inherited concurrent ones."""

    @endpoint
    async def open(self) -> list[Any]:
        self.gate.set()
        return self.seen

    @endpoint
    async def state(self) -> tuple[list[Any], int]:
        return self.seen, self.running

    @concurrent_endpoint
    async def ask(self, other: Any) -> Any:
        return await other.relay.call_one()

    @concurrent_endpoint
    async def answer(self) -> str:
        return "from a cycle"

    @endpoint
    async def set_peer(self, peer: Any) -> None:
        self.peer = peer

    @endpoint
    async def relay(self) -> Any:
        return await self.peer.answer.call_one()

    async def __cleanup__(self, exc: Exception | None) -> None:
        if self.report is not None:
            self.report.send((list(self.seen), self.running, exc is None))


@pytest.fixture
def one(procs):
    return procs.slice(gpus=0).spawn("work", Work)


def test_only_async_methods_can_be_concurrent():
    with pytest.raises(ValueError, match="can only wrap async endpoints"):

        @concurrent_endpoint
        def method(self) -> None: ...

    async def body(self: Any) -> None: ...

    with pytest.raises(ValueError, match="does not wrap @endpoint"):
        concurrent_endpoint(endpoint(body))
    with pytest.raises(ValueError, match="does not wrap @endpoint"):
        concurrent_endpoint(explicit_response_port=True)(endpoint(body))
    assert monarch.actor.concurrent.concurrent_endpoint is concurrent_endpoint


def test_actor_goes_on_while_bodies_wait(one):
    waiting = [one.wait_for_gate.call_one(str(i)) for i in range(10)]
    assert one.state.call_one().get() == ([str(i) for i in range(10)], 10)
    assert one.open.call_one().get() == [str(i) for i in range(10)]
    assert [f.get() for f in reversed(waiting)] == [str(i) for i in reversed(range(10))]
    assert one.state.call_one().get()[1] == 0


def test_concurrent_bodies_start_in_order(one):
    for i in range(50):
        one.wait_for_gate.broadcast(i)
    last = one.wait_for_gate.call_one(50)
    one.open.call_one().get()
    last.get()
    assert one.state.call_one().get()[0] == list(range(51))


def test_completion_order_is_free(one):
    blocked = one.wait_for_gate.call_one("blocked")
    assert one.where.call_one().get()[0] == 0
    with pytest.raises(TimeoutError):
        blocked.get(timeout=0)
    one.open.call_one().get()
    assert blocked.get() == "blocked"


def test_context_of_each_body_is_its_own(procs):
    handle = procs.spawn("work", Work)
    whole, part = handle.where.call(), handle.slice(gpus=1).where.call_one()
    assert [rank for rank, _ in whole.get().values()] == [0, 1]
    assert part.get() == (0, whole.get().values()[1][1])


def test_exception_is_an_answer(one):
    with pytest.raises(ActorError, match="ValueError: not so bad") as caught:
        one.fail.call_one("not so bad").get()
    assert type(caught.value.exception) is ValueError
    with pytest.raises(ActorError, match="lock"):
        one.unpicklable.call_one().get()
    assert one.state.call_one().get() == ([], 0)


@pytest.mark.parametrize(
    ("method", "text"),
    [("exit", "SystemExit: 4"), ("cancel_itself", "CancelledError: by the user"), ("fail_with_port", "ValueError: nobody to tell")],
)
def test_fatal_exception_ends_the_actor(one, faults, method, text):
    others = one.wait_for_gate.call_one("other")
    with pytest.raises(SupervisionError, match=text):
        getattr(one, method).call_one().get()
    with pytest.raises(SupervisionError, match=text):
        others.get()
    assert text in str(faults.get())
    with pytest.raises(SupervisionError, match=text):
        one.state.call_one().get()


def test_broadcast_that_raises_kills_the_actor(one, faults):
    one.fail.broadcast("unheard")
    assert "ValueError: unheard" in str(faults.get())
    with pytest.raises(SupervisionError, match="ValueError: unheard"):
        one.state.call_one().get()


def test_explicit_port(procs):
    handle = procs.spawn("work", Work)
    assert handle.through_port.call(3).get().values() == [3, 3]


def test_abort_comes_after_the_answer(one, faults):
    other = one.wait_for_gate.call_one("other")
    assert one.abort.call_one().get() == "last words"
    with pytest.raises(SupervisionError, match="actor explicitly aborted due to: enough"):
        other.get()
    assert "enough" in str(faults.get())


def test_stop_cancels_and_awaits_bodies_before_cleanup(procs, faults):
    report, reports = Channel.open()
    handle = procs.slice(gpus=0).spawn("work", Work, report)
    begun, begins = Channel.open()
    pending = [handle.stubborn.call_one(begun) for _ in range(3)]
    for _ in pending:
        begins.recv().get()
    handle.stop().get()
    assert reports.recv().get() == (["cancelled"] * 3, 0, True)
    for future in pending:
        with pytest.raises(SupervisionError, match="stopped"):
            future.get()
    assert faults.empty()


def test_waiting_actor_answers_a_call_back(procs):
    a, b = procs.slice(gpus=0).spawn("a", Work), procs.slice(gpus=1).spawn("b", Work)
    b.set_peer.call_one(a).get()
    # `ask` runs beside the dispatcher, so the actor can handle the call back of `answer`.
    assert a.ask.call_one(b).get() == "from a cycle"
