"""The arguments of a definition, with tensors and constants in their places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from monarch.tensor.commands import Held, Input, Varying, again

if TYPE_CHECKING:
    from collections.abc import Callable


def filler(
    args: tuple[Any, ...], kwargs: dict[str, Any], held: Callable[[Held], Any] | None = None
) -> Callable[[list[Any], list[Any]], tuple[list[Any], dict[str, Any]]]:
    """Puts tensors and constants into the arguments of a definition."""

    def has_slots(value: Any) -> bool:
        if isinstance(value, Input | Varying | Held):
            return True
        if isinstance(value, list | tuple):
            return any(map(has_slots, value))  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(value, dict):
            return any(map(has_slots, value.values()))  # pyright: ignore[reportUnknownArgumentType]
        return False

    def filled(value: Any, inputs: list[Any], constants: list[Any]) -> Any:
        if isinstance(value, Input):
            return inputs[value.index]
        if isinstance(value, Varying):
            return constants[value.index]
        if isinstance(value, Held):
            assert held is not None
            return held(value)
        if isinstance(value, list | tuple):
            values = cast("Any", value)
            return again(values, (filled(v, inputs, constants) for v in values))
        if isinstance(value, dict):
            return {k: filled(v, inputs, constants) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType]
        return value

    direct = [(place, value.index) for place, value in enumerate(args) if isinstance(value, Input)]
    varying = [(place, value.index) for place, value in enumerate(args) if isinstance(value, Varying)]
    others = [(place, value) for place, value in enumerate(args) if not isinstance(value, Input | Varying) and has_slots(value)]
    named_varying = [(key, value.index) for key, value in kwargs.items() if isinstance(value, Varying)]
    named = [(key, value) for key, value in kwargs.items() if not isinstance(value, Varying) and has_slots(value)]

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
