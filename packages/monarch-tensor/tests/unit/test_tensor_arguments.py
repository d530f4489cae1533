"""Operators that are called with the tensors and the constants of a command."""

from __future__ import annotations

import traceback
from typing import Any, NamedTuple

import pytest

from monarch.tensor._protocol.commands import Held, Input, Varying
from monarch.tensor._worker.arguments import caller, filler


class Pair(NamedTuple):
    one: Any
    other: Any


def echo(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((Input(0), Input(1)), {}),
        ((Input(1), Varying(1)), {"alpha": Varying(0)}),
        (([Input(0), Input(1)], (Input(1),), 3, "text", None), {"dim": [0, 1]}),
        (([[Input(0)], Varying(0)],), {"out": (Input(0), Input(1))}),
        ((Pair(1, 2), {"a": 1}), {"names": Pair("a", "b")}),
    ],
)
def test_both_forms_of_a_call_are_the_same(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    inputs, constants = ["t0", "t1"], ["c0", "c1"]
    called = caller("aten.echo", echo, args, kwargs)
    assert called is not None
    given, named = filler(args, kwargs)(inputs, constants)
    assert called(inputs, ["before", *constants, "after"], 1) == (tuple(given), named)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((Input(0),), {"from": 1}),
        ((Input(0),), {"not a name": 1}),
        ((Pair(Input(0), 1),), {}),
        (({"a": Input(0)},), {}),
        ((Held("group", ()),), {}),
    ],
)
def test_value_without_source_form_is_not_generated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert caller("aten.echo", echo, args, kwargs) is None


def test_constants_are_the_objects_themselves() -> None:
    shared = [1, 2]
    called = caller("aten.echo", echo, (Input(0), shared), {"text": "'); raise SystemExit("})
    assert called is not None
    (_, given), named = called(["t"], [], 0)
    assert given is shared and named == {"text": "'); raise SystemExit("}


def test_tracebacks_name_the_operator() -> None:
    def fails(tensor: Any) -> None:
        raise ValueError(tensor)

    called = caller("aten.fails.default", fails, (Input(0),), {})
    assert called is not None
    with pytest.raises(ValueError, match="t0") as caught:
        called(["t0"], [], 0)
    frame = traceback.extract_tb(caught.value.__traceback__)[1]
    assert (frame.filename, frame.name) == ("<aten.fails.default>", "operator")
