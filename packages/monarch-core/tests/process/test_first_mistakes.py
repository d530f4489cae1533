"""Mistakes of newcomers, and the errors that name them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, ActorError, Port, concurrent_endpoint, endpoint, this_host, this_proc

pytestmark = pytest.mark.usefixtures("fresh")


class Greeter(Actor):
    def __init__(self, name: str = "greeter") -> None:
        self.name = name

    @endpoint
    def hello(self, word: str, times: int = 2) -> str:
        return word * times

    @endpoint(explicit_response_port=True)
    def answer(self, port: Port[Any], word: str) -> None:
        port.send(word)

    def plain(self) -> None:
        """A method that is no endpoint."""


class Empty(Actor):
    pass


@pytest.fixture(scope="module")
def procs(faults: Any) -> Any:
    mesh = this_host().spawn_procs(per_host={"gpus": 2})
    yield mesh
    mesh.stop().get()


@pytest.fixture(scope="module")
def greeter(procs: Any) -> Any:
    return procs.spawn("greeter", Greeter)


def test_unknown_endpoint_lists_the_known_ones(procs: Any, greeter: Any) -> None:
    with pytest.raises(AttributeError, match=r"actor class \S*Greeter has no attribute 'helo'; its endpoints: hello, answer$"):
        _ = greeter.helo
    with pytest.raises(AttributeError, match=r"Empty has no attribute 'hello'; its endpoints: none$"):
        _ = procs.spawn("empty", Empty).hello


def test_plain_method_with_an_adverb_names_the_decorator(greeter: Any) -> None:
    for adverb in ("call", "call_one", "broadcast"):
        with pytest.raises(AttributeError, match=r"Actor Greeter\.plain is not annotated as an endpoint\. Decorate it with @endpoint"):
            getattr(greeter.plain, adverb)()


def test_wrong_arguments_name_endpoint_and_signature(procs: Any, greeter: Any) -> None:
    for call, text in (
        (lambda: greeter.hello.call("a", 2, 3), r"^greeter\.hello\(word, times=2\): too many positional arguments$"),
        (lambda: greeter.hello.broadcast(), r"^greeter\.hello\(word, times=2\): missing a required argument: 'word'$"),
        (lambda: greeter.hello.choose("a", time=3), r"^greeter\.hello\(word, times=2\): got an unexpected keyword argument 'time'$"),
        (lambda: greeter.answer.call_one("a", "b"), r"^greeter\.answer\(word\): too many positional arguments$"),
        (lambda: procs.spawn("other", Greeter, 1, 2), r"^Greeter\(name='greeter'\): too many positional arguments$"),
        (lambda: procs.spawn("other", Empty, 1), r"^Empty: the class has no __init__ and takes no arguments$"),
        (lambda: this_proc().spawn("other", Greeter, nam=1), r"^Greeter\(name='greeter'\): got an unexpected keyword argument 'nam'$"),
    ):
        part = greeter.slice(gpus=0)
        assert part.hello.call_one("a").get() == "aa"
        with pytest.raises(TypeError, match=text):
            call() if "answer" not in text else part.answer.call_one("a", "b")


def test_unknown_dimensions_list_those_of_the_mesh(procs: Any, greeter: Any) -> None:
    values = greeter.hello.call("a").get()
    mesh = r"\{gpus: 2\}"
    for call, error, text in (
        (lambda: procs.slice(gpu=0), TypeError, f"no dimension 'gpu' in {mesh}"),
        (lambda: greeter.slice(gpu=0), TypeError, f"no dimension 'gpu' in {mesh}"),
        (lambda: procs.rename(gpu="tp"), ValueError, f"no dimension 'gpu' in {mesh}"),
        (lambda: procs.size("gpu"), KeyError, f"no dimension 'gpu' in {mesh}"),
        (lambda: procs.split(gpu=("a", "b")), ValueError, f"no dimension 'gpu' in {mesh}; a new one is given an int as its size"),
        (
            lambda: procs.split(gpus=("a", "b"), c=2),
            ValueError,
            rf"sizes of unknown dimensions: \['c'\]; {mesh} is split into \['a', 'b'\]",
        ),
        (lambda: values.item(gpu=0), KeyError, f"item needs a coordinate of 'gpus', and got {{'gpu': 0}}: the mesh is {mesh}"),
        (lambda: values.item(gpus=0, c=1), KeyError, rf"item has extra dimensions: \['c'\]; the mesh is {mesh}"),
    ):
        with pytest.raises(error, match=text):
            call()


class Locked(Actor):
    """Its results cannot be pickled."""

    @endpoint
    def plain(self) -> Any:
        return {"model": [1, threading.Lock()]}

    @endpoint
    def raised(self) -> Any:
        return [Refusing()]


class AsyncLocked(Actor):
    @endpoint
    async def plain(self) -> Any:
        return {"model": [1, threading.Lock()]}

    @concurrent_endpoint
    async def concurrent(self) -> Any:
        return {"model": [1, threading.Lock()]}


class Refusing:
    def __reduce__(self) -> Any:
        raise RuntimeError("not this one")


def test_unpicklable_result_names_endpoint_and_part(procs: Any) -> None:
    part = procs.slice(gpus=0)
    locked, late = part.spawn("locked", Locked), part.spawn("late", AsyncLocked)
    for target, name in ((locked, "plain"), (late, "plain"), (late, "concurrent")):
        with pytest.raises(ActorError) as caught:
            getattr(target, name).call_one().get()
        first, header, frame, line, *end = str(caught.value).splitlines()
        assert first.startswith(
            f"Actor call {'late' if target is late else 'locked'}.{name} failed. TypeError: the result cannot be pickled, "
            "in dict object -> ['model'] -> [1]: cannot pickle '_thread.lock' object at <root>.<"
        )
        assert header.lstrip().startswith("Traceback of where")
        assert f'{Path(__file__).name}", line ' in frame and frame.endswith(f", in {name}") and f"def {name}(self) -> Any:" in line
        assert end == ["TypeError: cannot pickle '_thread.lock' object", "in dict object -> ['model'] -> [1]"]
        assert isinstance(caught.value.exception, TypeError)


def test_user_code_that_refuses_a_result_is_shown(procs: Any) -> None:
    locked = procs.slice(gpus=0).spawn("locked", Locked)
    with pytest.raises(ActorError, match=r"RuntimeError: the result cannot be pickled, in list object -> \[0\]: not this one") as caught:
        locked.raised.call_one().get()
    frames = [line for line in str(caught.value).splitlines() if line.startswith("  File")]
    assert [frame.rpartition(", in ")[2] for frame in frames] == ["raised", "__reduce__"]


def test_names_of_ray_lead_to_those_here(greeter: Any) -> None:
    adverbs = r"use \.call\(\), \.call_one\(\), \.choose\(\), \.stream\(\) or \.broadcast\(\)$"
    with pytest.raises(AttributeError, match=rf"^endpoint greeter\.hello\(\) has no attribute 'remote': {adverbs}"):
        greeter.hello.remote("a")
    for name in ("remote", "options"):
        with pytest.raises(AttributeError, match=rf"^actor class Greeter has no attribute '{name}': procs\.spawn\(NAME, Greeter, \.\.\.\)"):
            getattr(Greeter, name)
        with pytest.raises(AttributeError, match=rf"actor class \S*Greeter has no attribute '{name}'; its endpoints: hello, answer$"):
            getattr(greeter, name)
        assert not hasattr(Greeter(), name)
    with pytest.raises(AttributeError, match=r"^Greeter\.hello is an endpoint, and this object is no handle"):
        getattr(Greeter.hello, "remote")  # noqa: B009
    future = greeter.hello.call("a")
    for name in ("wait", "done", "values"):
        with pytest.raises(AttributeError, match=rf"^'Future' object has no attribute '{name}': \.get\(timeout=\.\.\.\) waits"):
            getattr(future, name)


def test_base_behind_actor_may_have_names_of_ray() -> None:
    class Options:
        options = {"size": 1}

        def remote(self) -> str:
            return "remote"

    class Both(Actor, Options):
        pass

    assert (Both.options, Both().options, Both().remote()) == ({"size": 1}, {"size": 1}, "remote")


def test_async_for_names_the_loop_to_write(greeter: Any) -> None:
    async def read(found: Any) -> None:
        async for _ in found:
            pass

    for found, text in (
        (greeter.hello.stream("a"), r"with a stream: `for future in stream:` gives the futures as they arrive, and `await future`"),
        (greeter.hello.call("a"), r"with a Future: \.get\(timeout=\.\.\.\) waits for the result, as `await` does"),
        (greeter.hello.call("a").get(), r"with a ValueMesh: it has all values, which `for point, value in values\.items\(\):` gives$"),
    ):
        with pytest.raises(TypeError, match=f"^'async for' does not work {text}"):
            asyncio.run(read(found))


def test_stream_is_an_iterator(greeter: Any) -> None:
    stream = greeter.hello.stream("a")
    assert [next(stream).get(), *(future.get() for future in stream)] == ["aa", "aa"]
    assert next(stream, None) is None
