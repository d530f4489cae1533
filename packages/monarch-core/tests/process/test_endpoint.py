"""Calls: the adverbs, the content of their messages, ports of explicit-port endpoints, and calls to failed or stopped actors."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from answering_actors import BOTH, Async, Sync

from monarch.actor import (
    Accumulator,
    Actor,
    ActorError,
    Channel,
    EndpointProperty,
    Port,
    SupervisionError,
    ValueMesh,
    as_endpoint,
    current_rank,
    endpoint,
    send,
    this_host,
    this_proc,
)

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(scope="module")
def procs(faults):
    mesh = this_host().spawn_procs(per_host={"gpus": 3})
    yield mesh
    mesh.stop().get()


class Unloadable:
    """Can be pickled, and raises when it is unpickled."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> Any:
    raise LookupError("cannot be loaded here")


@pytest.fixture
def handle(procs, cls):
    return procs.spawn("work", cls)


# ---- the decorator


def test_decorator_makes_a_property():
    def method(self: Any) -> None: ...

    for prop in (endpoint(method), endpoint()(method), endpoint(method=method)):
        assert isinstance(prop, EndpointProperty)
        assert (prop._method, prop._propagator, prop._explicit_response_port, prop._instrument) == (method, None, False, True)
    prop = endpoint(propagate="cached", explicit_response_port=True, instrument=False)(method)
    assert (prop._propagator, prop._explicit_response_port, prop._instrument) == ("cached", True, False)
    cls = type("Holder", (Actor,), {"method": prop})
    assert cls.method is prop and cls().method is prop
    with pytest.raises(TypeError):
        cls().method()


# ---- adverbs


@BOTH
def test_call_has_the_shape_of_the_called_mesh(handle):
    assert isinstance(handle.rank.call().get(), ValueMesh)
    assert dict(handle.rank.call().get().extent) == {"gpus": 3}
    part = handle.slice(gpus=slice(1, 3)).rank.call().get()
    assert dict(part.extent) == {"gpus": 2} and part.values() == [0, 1]
    assert [point.rank for point, _ in part] == [0, 1]
    one = handle.slice(gpus=2).rank.call().get()
    assert dict(one.extent) == {} and one.values() == [0]
    assert dict(handle.rename(gpus="r").flatten("x").rank.call().get().extent) == {"x": 3}
    every_other = handle.slice(gpus=slice(0, 3, 2)).rank.call().get()
    assert every_other.values() == [0, 1]


@BOTH
def test_call_one_wants_exactly_one(handle):
    with pytest.raises(ValueError, match="call_one requires exactly 1 actor, but mesh has 3"):
        handle.rank.call_one()
    with pytest.raises(ValueError, match="call_one requires exactly 1 actor, but mesh has 0"):
        handle.slice(gpus=slice(0, 0)).rank.call_one()
    assert handle.slice(gpus=1).rank.call_one().get() == 0


@BOTH
def test_choose_picks_every_rank_in_the_end(handle):
    seen = set()
    while len(seen) < 3:
        seen.add(handle.rank.choose().get())
    assert seen == {0, 1, 2}
    assert handle.slice(gpus=slice(1, 3)).rank.choose().get() in (0, 1)


@BOTH
def test_stream_gives_each_rank_once(handle):
    futures = list(handle.rank.stream())
    assert len(futures) == 3
    assert sorted(f.get() for f in reversed(futures)) == [0, 1, 2]


@BOTH
def test_stream_is_in_the_order_of_arrival(procs, cls):
    handle = procs.spawn("work", cls)
    stream = iter(handle.later.stream(0))
    arrived = []
    for rank in (2, 0, 1):
        part = handle.slice(gpus=rank)
        part.answer_now.call_one(rank).get()
        arrived.append(next(stream).get())
    assert arrived == [2, 0, 1] and next(stream, None) is None


@BOTH
def test_broadcast_reaches_all_in_order(handle):
    for i in range(20):
        assert handle.put.broadcast(i) is None
    assert handle.put.call(20).get().values() == [list(range(21))] * 3


@BOTH
def test_calls_to_no_rank(handle):
    nobody = handle.slice(gpus=slice(0, 0))
    assert nobody.rank.call().get().values() == []
    assert list(nobody.rank.stream()) == []
    assert nobody.rank.broadcast() is None
    assert Accumulator(nobody.rank, 7, lambda a, b: a + b).accumulate().get() == 7
    with pytest.raises(ValueError):
        nobody.rank.choose()


def test_rref_names_the_wheel(procs):
    with pytest.raises(NotImplementedError, match="monarch-tensor"):
        procs.spawn("work", Sync).rank.rref()


@BOTH
def test_accumulator_folds(handle):
    sums = Accumulator(handle.rank, 100, lambda a, b: a + b)
    assert sums.accumulate().get() == 103
    assert asyncio.run(_awaited(sums.accumulate())) == 103


async def _awaited(future: Any) -> Any:
    return await future


@BOTH
def test_accumulator_sends_when_called(handle):
    unobserved = Accumulator(handle.put, [], lambda a, b: [*a, b]).accumulate("first")
    assert handle.put.call("second").get().values() == [["first", "second"]] * 3
    assert unobserved.get() == [["first"]] * 3


@BOTH
def test_accumulator_passes_errors_on(handle):
    future = Accumulator(handle.fail, 0, lambda a, b: a).accumulate("no")
    with pytest.raises(ActorError, match="ValueError: no"):
        future.get()


@BOTH
def test_send_with_a_port(handle):
    port, receiver = Channel.open_ranked()
    send(handle.rank, (), {}, port)
    assert sorted(receiver.recv().get() for _ in range(3)) == [(0, 0), (1, 1), (2, 2)]
    port, receiver = Channel.open()
    send(handle.put, ("x",), {"times": 2}, port, selection="choose")
    assert receiver.recv().get() == ["x", "x"]
    send(handle.fail, ("through",), {}, port, selection="choose")
    with pytest.raises(ActorError, match="through"):
        receiver.recv().get()


@BOTH
def test_send_to_no_endpoint_is_refused(handle):
    for target in (print, handle):
        with pytest.raises(TypeError, match=r"send\(.*\): expected an endpoint"):
            send(target, (), {})


@BOTH
def test_send_without_a_port(handle):
    send(handle.put, (1,), {"twice": True})
    assert handle.put.call(2).get().values() == [[1, 1, 2]] * 3
    send(handle.put, (3,), {}, selection="choose")
    assert sorted(map(len, handle.put.call(4).get().values())) == [4, 4, 5]
    with pytest.raises(ValueError, match="selection"):
        send(handle.put, (1,), {}, selection="some")
    with pytest.raises(TypeError):
        send(handle.put, (), {})


# ---- the message is made at call time


@BOTH
@pytest.mark.parametrize("adverb", ["call", "choose", "stream", "broadcast"])
def test_arguments_are_bound_in_the_caller(handle, adverb):
    for args, kwargs in [((), {}), ((1, 2, 3), {}), ((1,), {"other": 1}), ((), {"item": 1}), ((1,), {"twice": 1, "times": 2, "x": 3})]:
        with pytest.raises(TypeError):
            getattr(handle.put, adverb)(*args, **kwargs)
    assert handle.put.call(1, 2, twice=True).get().values() == [[1] * 4] * 3


@BOTH
@pytest.mark.parametrize("adverb", ["call", "choose", "stream", "broadcast"])
def test_pickling_error_names_the_path_to_the_object(handle, adverb):
    with pytest.raises(TypeError, match="lock") as caught:
        getattr(handle.put, adverb)({"a": [1, threading.Lock()]})
    assert any("'a'" in note and "[1]" in note for note in caught.value.__notes__)
    assert handle.put.call(1).get().values() == [[1]] * 3


@BOTH
def test_arguments_are_a_snapshot(handle):
    items = [1]
    data = bytearray(b"x" * 100_000)
    future, large = handle.put.call(items), handle.change.call([data])
    items.append(2)
    data[:] = b"y" * len(data)
    assert future.get().values() == [[[1]]] * 3
    assert [v[0] for v in large.get().values()] == [b"x" * 100_000] * 3


@BOTH
def test_arguments_are_copied_in_the_client_process(cls):
    handle = this_proc().spawn("local", cls)
    items = [1]
    result = handle.change.call_one(items).get()
    assert result == [1, 99] and items == [1]
    result.append(5)
    kept = handle.put.call_one(items).get()
    kept[0].append(6)
    assert handle.put.call_one(0).get() == [[1], 0]
    handle.stop().get()


@BOTH
def test_first_error_ends_a_call(procs, cls):
    handle = procs.spawn("work", cls)
    with pytest.raises(ActorError, match="rank 1"):
        handle.fail_on.call(1).get()
    assert handle.fail_on.call().get().values() == [0, 1, 2]
    # The others answer only later: the call does not wait for them.
    waiting = handle.later.call(0)
    handle.slice(gpus=1).answer_now.call_one(1).get()
    mixed = handle.fail_on.stream(2)
    outcomes = sorted(type(f.exception()).__name__ for f in mixed)
    assert outcomes == ["ActorError", "NoneType", "NoneType"]
    handle.answer_now.call(5).get()
    assert waiting.get().values() == [5, 1, 5]


@BOTH
def test_call_ends_at_the_first_error(procs, cls):
    class OneFails(cls):
        @endpoint(explicit_response_port=True)
        def some(self, port: Port[int]) -> None:
            if current_rank().rank == 1:
                port.exception(ValueError("early"))
            else:
                self.ports.append(port)

    if cls is Async:

        class OneFailsAsync(cls):
            @endpoint(explicit_response_port=True)
            async def some(self, port: Port[int]) -> None:
                if current_rank().rank == 1:
                    port.exception(ValueError("early"))
                else:
                    self.ports.append(port)

        handle = procs.spawn("work", OneFailsAsync)
    else:
        handle = procs.spawn("work", OneFails)
    with pytest.raises(ValueError, match="early"):
        handle.some.call().get()
    # Answers on their way are discarded, the actors keep running.
    handle.answer_now.call(1).get()
    assert handle.rank.call().get().values() == [0, 1, 2]


# ---- calls to failed or stopped actors


@BOTH
def test_dead_rank_fails_exactly_one_of_a_stream(procs, cls, faults):
    handle = procs.spawn("work", cls)
    outcomes = [f.exception() for f in handle.exit_on.stream(1)]
    assert [type(e) for e in outcomes if e is not None] == [SupervisionError]
    assert faults.get().crashed_ranks == [1]


@BOTH
def test_failed_mesh_refuses_at_once(procs, cls, faults):
    handle = procs.spawn("work", cls)
    with pytest.raises(SupervisionError):
        handle.exit_on.call(2).get()
    assert faults.get().crashed_ranks == [2]
    for future in (handle.rank.call(), handle.rank.choose(), handle.slice(gpus=2).rank.call_one(), *handle.rank.stream()):
        with pytest.raises(SupervisionError, match="SystemExit: 3") as caught:
            future.get()
        assert caught.value.endpoint == "work.rank()" and caught.value.failure.crashed_ranks == [2]
    with pytest.raises(SupervisionError, match="SystemExit: 3"):
        handle.rank.broadcast()
    with pytest.raises(SupervisionError, match="SystemExit: 3"):
        send(handle.rank, (), {})
    # Misuse is still reported first, and other ranks work.
    with pytest.raises(TypeError):
        handle.rank.call(1)
    assert handle.slice(gpus=slice(0, 2)).rank.call().get().values() == [0, 1]


@BOTH
def test_stopped_mesh_refuses_at_once(procs, cls):
    handle = procs.spawn("work", cls)
    handle.stop("enough").get()
    for future in (handle.rank.call(), handle.slice(gpus=0).rank.call_one(), *handle.rank.stream()):
        with pytest.raises(SupervisionError, match=r"Endpoint call work.rank\(\) failed, Supervision event: actor .* stopped: enough"):
            future.get()
    with pytest.raises(SupervisionError):
        handle.rank.broadcast()


@BOTH
def test_actor_survives_broadcast_to_a_dead_mesh(procs, cls, faults):
    class Sender(Actor):
        @endpoint
        def try_it(self, target: Any) -> str:
            try:
                target.rank.broadcast()
            except SupervisionError:
                return "refused"
            return "sent"

        @endpoint
        def ping(self) -> int:
            return 1

    target = procs.slice(gpus=0).spawn("target", cls)
    target.fail.broadcast("dead")
    faults.get()
    sender = procs.slice(gpus=1).spawn("sender", Sender)
    assert sender.try_it.call_one(target).get() in ("refused", "sent")
    assert sender.ping.call_one().get() == 1


@BOTH
def test_reply_to_a_dropped_call_is_discarded(procs, cls):
    handle = procs.spawn("work", cls)
    handle.later.call(1)  # dropped at once
    handle.answer_now.call(1).get()
    assert handle.rank.call().get().values() == [0, 1, 2]


def test_arguments_that_cannot_be_unpickled(procs):
    handle = procs.spawn("work", Sync)
    with pytest.raises(ActorError, match="cannot be loaded here"):
        handle.put.call(Unloadable()).get()
    assert handle.put.call(1).get().values() == [[1]] * 3


def test_as_endpoint_takes_adverbs(procs):
    plain = as_endpoint(procs.spawn("work", Sync).plain)
    assert plain.choose().get() == 1 and sorted(f.get() for f in plain.stream()) == [1, 1, 1]
    assert plain.broadcast() is None


class SelfNamed(Actor):
    """Its endpoint has a parameter called `self` behind one with another name."""

    def __init__(this, self: int = 0) -> None:
        this.start = self

    @endpoint
    def add(this, self: int) -> int:
        return this.start + self


def test_parameter_named_self_is_passed_by_keyword() -> None:
    for mesh in (this_proc(), this_host().spawn_procs()):
        actor: Any = mesh.spawn("named", SelfNamed, self=1)
        assert actor.add.call(self=1).get().item() == 2
        assert actor.add.call_one(self=2).get() == 3
        assert actor.add.choose(self=3).get() == 4
        assert [future.get() for future in actor.add.stream(self=4)] == [5]
        actor.add.broadcast(self=5)
        assert Accumulator(actor.add, 10, lambda a, b: a + b).accumulate(self=6).get() == 17
        actor.stop().get()
