"""Reducers of a program's own types, and parts that are taken out of a pickle."""

from __future__ import annotations

from collections.abc import Iterator
from pickle import PicklingError, UnpicklingError
from types import FunctionType
from typing import Any

import pytest

from monarch.extension.pickling import dumps, dumps_for_same_program, flatten, loads, register, unflatten


class Handle:
    """A type that pickles by reference and refuses to be pickled."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        raise TypeError("a handle has no state of its own")


def revived(number: int) -> Handle:
    return Handle(number)


@pytest.fixture
def registered() -> Iterator[None]:
    register(Handle, lambda handle: (revived, (handle.number,)))
    yield
    register(Handle, None)


@pytest.mark.parametrize("dump", [dumps, dumps_for_same_program])
def test_reducer_precedes_the_type(registered: None, dump: Any) -> None:
    assert [one.number for one in loads(*dump([Handle(1), Handle(2)]))] == [1, 2]


def test_reducer_holds_beside_objects_by_value(registered: None) -> None:
    class Local:
        def __init__(self) -> None:
            self.handle = Handle(4)

    assert loads(*dumps(Local())).handle.number == 4


def test_reducer_of_a_class_by_value() -> None:
    class Local:
        value = 1

    register(Local, lambda _: (int, ("7",)))
    try:
        assert loads(*dumps({"a": Local()})) == {"a": 7}
    finally:
        register(Local, None)


def test_removed_reducer_has_no_effect(registered: None) -> None:
    register(Handle, None)
    with pytest.raises(TypeError, match="no state of its own"):
        dumps(Handle(1))


@pytest.mark.parametrize("kind", [int, dict, type(None), type, FunctionType])
def test_register_refuses_types_of_the_pickler(kind: type) -> None:
    with pytest.raises(TypeError, match=f"^register: the pickler writes a {kind.__name__} itself"):
        register(kind, lambda value: (kind, ()))


@pytest.mark.parametrize(("kind", "reduce", "text"), [(3, len, "3 is not a class"), (Handle, 3, "3 is not a function")])
def test_register_names_the_wrong_argument(kind: Any, reduce: Any, text: str) -> None:
    with pytest.raises(TypeError, match=f"^register: {text}$"):
        register(kind, reduce)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "NoneType, and no tuple"),
        ((revived,), "a tuple of 1, and not of 2 to 6"),
        ((1, ()), "a tuple that begins with int, and no function"),
        ((revived, [1]), "list as arguments, and no tuple"),
    ],
)
@pytest.mark.parametrize("beside", [None, lambda: None], ids=["by name", "by value"])
def test_reducer_with_a_wrong_result_is_named(registered: None, result: Any, text: str, beside: Any) -> None:
    def my_reducer(handle: Handle) -> Any:
        return result

    register(Handle, my_reducer)
    with pytest.raises(PicklingError, match=f"^the reducer .*my_reducer of .*test_reducers.Handle returned {text}; see register"):
        dumps([beside, Handle(1)])


def test_flatten_takes_parts_in_order() -> None:
    first, second = b"x" * 1000, b"y"
    parts, data = flatten([first, {"k": second}, first], lambda part: type(part) is bytes)
    assert parts == [first, second]
    assert first not in data
    assert unflatten(data, iter(["a", "b", "ignored"])) == ["a", {"k": "b"}, "a"]


def test_flatten_uses_reducers(registered: None) -> None:
    parts, data = flatten([Handle(5), b"z"], lambda part: part == b"z")
    assert parts == [b"z"]
    assert unflatten(data, parts)[0].number == 5


def test_unflatten_with_too_few_values() -> None:
    parts, data = flatten([b"a", b"b"], lambda part: type(part) is bytes)
    with pytest.raises(ValueError, match=r"^unflatten: 1 values, and the pickle has a part 1$"):
        unflatten(data, parts[:1])


def test_unflatten_refuses_foreign_numbers() -> None:
    with pytest.raises(UnpicklingError, match="'x' is not the number of a part"):
        unflatten(b"\x80\x05\x8c\x01xQ.", [])
