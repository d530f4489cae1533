"""The arguments of a definition, with tensors and constants in their places."""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING, Any, cast

from monarch.extension.pickling import loads
from monarch.tensor._protocol.commands import Held, Input, Nested, Packed, Varying, again

if TYPE_CHECKING:
    from collections.abc import Callable


def caller(
    name: str, op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[list[Any], list[Any], int], Any] | None:
    """Calls an operator with its tensors, and with constants from a place of a list on, as code that is compiled once.

    None where a name or a value has no form in code. The code has names and numbers only: each other value is the value of a name.
    Tracebacks show the name of the operator.
    """
    if not all(key.isidentifier() and not keyword.iskeyword(key) for key in kwargs):
        return None
    names: dict[str, Any] = {"op": op}

    def form(value: Any) -> str:
        if isinstance(value, Input):
            return f"i[{value.index:d}]"
        if isinstance(value, Varying):
            return f"c[at + {value.index:d}]" if value.index else "c[at]"
        if _has_slots(value):
            if type(value) is list:
                return f"[{', '.join(map(form, cast('list[Any]', value)))}]"
            if type(value) is tuple:
                return f"({''.join(f'{form(v)}, ' for v in cast('tuple[Any, ...]', value))})"
            raise LookupError
        constant = f"k{len(names)}"
        names[constant] = value
        return constant

    try:
        given = ", ".join([*map(form, args), *(f"{key}={form(value)}" for key, value in kwargs.items())])
    except LookupError:
        return None
    made = eval(compile(f"lambda i, c, at: op({given})", f"<{name}>", "eval"), names)
    made.__code__ = made.__code__.replace(co_name="operator", co_qualname="operator")
    return made


def _has_slots(value: Any) -> bool:
    if isinstance(value, Input | Varying | Held | Nested):
        return True
    if isinstance(value, list | tuple):
        return any(map(_has_slots, cast("Any", value)))
    if isinstance(value, dict):
        return any(map(_has_slots, cast("Any", value.values())))
    return False


def unpacked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with what is in those that are packed."""

    def unpack(value: Any) -> Any:
        return loads(value.pickled, list(value.parts)) if isinstance(value, Packed) else value

    return tuple(map(unpack, args)), {key: unpack(value) for key, value in kwargs.items()}


def held_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Held]:
    """What the arguments name instead of tensors."""
    found: list[Held] = []

    def look(value: Any) -> Any:
        if isinstance(value, Held):
            found.append(value)
        elif isinstance(value, Nested):
            value.filled(look)
        elif isinstance(value, list | tuple):
            for item in cast("Any", value):
                look(item)
        elif isinstance(value, dict):
            for item in cast("Any", value).values():
                look(item)

    look([*args, kwargs])
    return found


def filler(
    args: tuple[Any, ...], kwargs: dict[str, Any], held: Callable[[Held], Any] | None = None
) -> Callable[[list[Any], list[Any]], tuple[list[Any], dict[str, Any]]]:
    """Puts tensors and constants into the arguments of a definition."""

    def filled(value: Any, inputs: list[Any], constants: list[Any]) -> Any:
        if isinstance(value, Input):
            return inputs[value.index]
        if isinstance(value, Varying):
            return constants[value.index]
        if isinstance(value, Held):
            assert held is not None
            return held(value)
        if isinstance(value, Nested):
            return value.filled(lambda slot: filled(slot, inputs, constants))
        if isinstance(value, list | tuple):
            values = cast("Any", value)
            return again(values, (filled(v, inputs, constants) for v in values))
        if isinstance(value, dict):
            return {k: filled(v, inputs, constants) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType]
        return value

    direct = [(place, value.index) for place, value in enumerate(args) if isinstance(value, Input)]
    varying = [(place, value.index) for place, value in enumerate(args) if isinstance(value, Varying)]
    others = [(place, value) for place, value in enumerate(args) if not isinstance(value, Input | Varying) and _has_slots(value)]
    named_varying = [(key, value.index) for key, value in kwargs.items() if isinstance(value, Varying)]
    named = [(key, value) for key, value in kwargs.items() if not isinstance(value, Varying) and _has_slots(value)]

    def fill(inputs: list[Any], constants: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        given = list(args)
        for place, index in direct:
            given[place] = inputs[index]
        for place, index in varying:
            given[place] = constants[index]
        for place, value in others:
            given[place] = filled(value, inputs, constants)
        if not named and not named_varying:
            return given, kwargs
        given_named = dict(kwargs)
        for key, index in named_varying:
            given_named[key] = constants[index]
        for key, value in named:
            given_named[key] = filled(value, inputs, constants)
        return given, given_named

    return fill
