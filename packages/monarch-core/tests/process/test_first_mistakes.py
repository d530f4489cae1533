"""Mistakes of newcomers, and the errors that name them."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.actor import Actor, Port, endpoint, this_host, this_proc

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
