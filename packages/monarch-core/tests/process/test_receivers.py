"""Objects that query the receivers of their message, and endpoint calls with a function around the method."""

import copy
import pickle
import threading
import time
from typing import Any

import pytest

from monarch.actor import Actor, ActorError, Channel, Port, SupervisionError, as_endpoint, endpoint, this_host
from monarch.extension.mesh import EndpointCall, mesh_view
from monarch.extension.pickling import Receivers, dumps, receivers


class Addressed:
    """Is replaced by the number of its receivers. Records each time it is pickled."""

    def __init__(self) -> None:
        self.asked: list[Receivers] = []
        self.undone = 0

    def __reduce_ex__(self, protocol: Any) -> Any:
        found = receivers("an Addressed goes to actors only")
        self.asked.append(found)
        if found.notes.setdefault("times", 0) == 0:
            found.not_sent.append(self._undo)
        found.notes["times"] += 1
        return len, (found.procs,)

    def _undo(self) -> None:
        self.undone += 1


class Echo(Actor):
    """Returns its argument."""

    def __init__(self, *_: Any) -> None:
        self.state = 1

    @endpoint
    def echo(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    @endpoint
    def set(self, state: int) -> None:
        self.state = state

    @endpoint
    def add(self, value: int, *, times: int = 1) -> int:
        return (self.state + value) * times

    @endpoint(explicit_response_port=True)
    def by_port(self, port: Port[Any], value: Any) -> None:
        port.send(value)

    def method(self, value: Any) -> Any:
        return value


class AsyncEcho(Actor):
    @endpoint
    async def echo(self, value: Any) -> Any:
        return value


@pytest.fixture(scope="module")
def procs():
    found = this_host().spawn_procs({"gpus": 2})
    yield found
    found.stop().get()


@pytest.fixture(scope="module")
def echo(procs: Any) -> Any:
    return procs.spawn("echo", Echo)


def test_every_adverb_gives_the_receivers(echo: Any) -> None:
    value = Addressed()
    assert [a for a, _ in echo.echo.call(value).get().values()] == [(2,), (2,)]
    assert value.asked[0].procs == mesh_view(echo).procs
    assert echo.slice(gpus=1).echo.call_one(value).get() == ((1,), {})
    assert value.asked[-1].procs == mesh_view(echo).procs[1:]
    assert echo.echo.choose([value], key={"a": value}).get() == (([1],), {"key": {"a": 1}})
    assert [f.get() for f in echo.echo.stream(value)] == [((2,), {})] * 2
    assert list(as_endpoint(echo.method).call(value).get().values()) == [2, 2]
    assert list(echo.by_port.call(value).get().values()) == [2, 2]
    echo.echo.broadcast(value)
    assert value.undone == 0


def test_async_actors_are_receivers_too(procs: Any) -> None:
    assert list(procs.spawn("async_echo", AsyncEcho).echo.call(Addressed()).get().values()) == [2, 2]


def test_notes_last_over_attempts(echo: Any) -> None:
    value = Addressed()
    # A function of this module's `__main__` or a lambda is sent by value: the message is pickled once more.
    assert echo.echo.call(value, lambda: 3).get().item(gpus=0)[0][0] == 2
    assert value.asked[-1].notes["times"] == 2 and len({id(found.notes) for found in value.asked}) == 1


def test_unsent_message_is_undone(echo: Any) -> None:
    value = Addressed()
    with pytest.raises(TypeError, match="lock"):
        echo.echo.call(value, threading.Lock())
    assert value.undone == 1


def test_error_of_the_object_reaches_the_caller(echo: Any) -> None:
    class Refuses:
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise ValueError(f"not for {len(receivers('').procs)}")

    with pytest.raises(ValueError, match="not for 2"):
        echo.echo.call(Refuses())


class Followed:
    """Runs a function in its receivers after the message."""

    def __init__(self) -> None:
        self.futures: list[Any] = []

    def __reduce_ex__(self, protocol: Any) -> Any:
        found = receivers("a Followed goes to actors only")
        if not found.notes:
            found.notes["asked"] = True
            found.sent.append(lambda then: self.futures.append(then(_follow, 7)))
        return int, (1,)


_followed: list[int] = []


def _follow(value: int) -> list[int]:
    _followed.append(value)
    return _followed


class Slow(Actor):
    @endpoint
    def late(self, value: int) -> None:
        time.sleep(0.05)  # sleeps: until what comes after it would have run
        _followed.append(value)

    @endpoint
    def fails(self, value: int) -> None:
        raise ValueError("not today")


class AsyncSlow(Actor):
    @endpoint
    async def late(self, value: int) -> None:
        time.sleep(0.05)  # sleeps: until what comes after it would have run
        _followed.append(value)


@pytest.mark.parametrize("kind", [Slow, AsyncSlow])
def test_action_after_a_message_runs_after_it(kind: type[Any]) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    actors = procs.spawn("slow", kind)
    value = Followed()
    actors.late.call(value)
    assert list(value.futures[0].get().values()) == [[1, 7]] * 2
    actors.late.broadcast(value)
    assert list(value.futures[1].get().values()) == [[1, 7, 1, 7]] * 2
    actors.slice(gpus=1).late.choose(value)
    assert value.futures[2].get() == [1, 7, 1, 7, 1, 7]
    procs.stop().get()


def test_futures_of_a_failed_call_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", lambda failure: None)
    procs = this_host().spawn_procs({"gpus": 1})
    actors = procs.spawn("slow", Slow)
    value = Followed()
    with pytest.raises(ActorError, match="not today"):
        actors.fails.call(value).get()
    assert list(value.futures[0].get().values()) == [[7]]
    actors.fails.broadcast(value)
    with pytest.raises(SupervisionError, match="not today"):
        value.futures[1].get()
    procs.stop().get()


@pytest.mark.parametrize("use", [pickle.dumps, copy.copy, copy.deepcopy, dumps])
def test_there_are_no_receivers_elsewhere(use: Any) -> None:
    with pytest.raises(TypeError, match="goes to actors only"):
        use(Addressed())


class Constructed(Actor):
    """Returns its constructor's arguments, and the functions that ran after it."""

    def __init__(self, *given: Any) -> None:
        _followed.clear()
        self.given = given

    @endpoint
    def read(self) -> tuple[Any, list[Any]]:
        return self.given, list(_followed)


def test_constructed_actors_are_receivers() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    plain, value = Addressed(), Followed()
    actors = procs.spawn("constructed", Constructed, value, plain)
    assert list(value.futures[0].get().values()) == [[7]] * 2
    assert [(given[1], followed) for given, followed in actors.read.call().get().values()] == [(2, [7])] * 2
    assert procs.slice(gpus=1).spawn("one", Constructed, plain).read.call_one().get()[0] == (1,)
    assert plain.undone == 0
    with pytest.raises(TypeError, match="generator"):
        procs.spawn("unsent", Constructed, plain, (i for i in range(3)))
    assert plain.undone == 1
    procs.stop().get()


def test_messages_of_other_kinds_have_no_receivers(procs: Any) -> None:
    port, _receiver = Channel[Any].open()
    with pytest.raises(TypeError, match="goes to actors only"):
        port.send(Addressed())


# A function around a method


def around(given: int, method: Any, *args: Any, **kwargs: Any) -> tuple[int, Any]:
    return given, method(*args, **kwargs)


async def around_async(given: int, method: Any, *args: Any, **kwargs: Any) -> tuple[int, Any]:
    return given, await method(*args, **kwargs)


def call_of(mesh: Any, name: str, *args: Any, **kwargs: Any) -> EndpointCall:
    return EndpointCall(getattr(mesh, name), mesh, name, None, args, kwargs)


def test_function_around_a_method_keeps_the_order(echo: Any) -> None:
    echo.set.broadcast(5)
    first = call_of(echo, "add", 1, times=2).through(around, around_async, 7)
    echo.set.broadcast(1)
    assert list(first.get().values()) == [(7, 12), (7, 12)]
    assert list(call_of(echo, "add", 1).through(around, around_async, 7).get().values()) == [(7, 2), (7, 2)]


def test_function_around_an_async_method_works(procs: Any) -> None:
    mesh = procs.spawn("async_echo", AsyncEcho)
    assert list(call_of(mesh, "echo", Addressed()).through(around, around_async, 7).get().values()) == [(7, 2), (7, 2)]


def test_error_of_the_function_reaches_the_caller(echo: Any) -> None:
    with pytest.raises(ActorError, match="unsupported operand"):
        call_of(echo, "add", "text").through(around, around_async, 7).get()


def test_endpoint_with_an_explicit_port_is_refused(echo: Any) -> None:
    with pytest.raises(TypeError, match="answers by a port"):
        call_of(echo, "by_port", 1).through(around, around_async)
