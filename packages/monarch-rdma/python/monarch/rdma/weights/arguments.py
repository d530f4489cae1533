"""The arguments of the public calls, which are checked before anything starts. The errors name the argument and its value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, cast

from monarch.actor import deadline_left
from monarch.rdma._buffers.arguments import check_timeout

# Seconds, 30 years: locks take no longer time-out than about 290 years.
_LONGEST = 1e9


def check_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be a text that is not empty, got {name!r}")
    return name


def check_tensors(argument: str, state: object) -> dict[str, Any]:
    """A state dict, whose values are not checked."""
    if not isinstance(state, Mapping):
        raise TypeError(f"{argument} must be a mapping of names to tensors, got {_short(state)}")
    return dict(cast("Mapping[str, Any]", state))


def check_buffers(buffers: object) -> int:
    number = check_number("buffers", buffers)
    if number not in (1, 2):
        raise ValueError(f"buffers must be 1 or 2, got {number}")
    return number


def check_cast(cast: object, buffers: int) -> bool:
    if not isinstance(cast, bool):
        raise TypeError(f"cast must be True or False, got {cast!r}")
    if cast and buffers == 1:
        raise ValueError("cast=True converts on the way from a second buffer: it needs buffers=2")
    return cast


def check_columns(columns: object, buffers: int) -> int:
    number = check_number("columns", columns)
    if number < 1:
        raise ValueError(f"columns must be 1 or more, got {number}")
    if number > 1 and buffers == 1:
        raise ValueError(f"columns={number} is the layout of copies, and with buffers=1 readers read the tensors: publish with buffers=2")
    return number


def check_number(argument: str, value: Any) -> int:
    """`TypeError` unless it is a whole number."""
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise TypeError(f"{argument} must be a whole number, got {value!r}")


def check_fan_out(fan_out: object) -> int:
    number = check_number("fan_out", fan_out)
    if number < 0:
        raise ValueError(f"fan_out must not be negative, got {fan_out!r}")
    return number


def check_numbers(argument: str, values: Sequence[int]) -> tuple[int, ...]:
    """The numbers of a box."""
    try:
        return tuple(map(index, values))
    except TypeError:
        raise TypeError(f"{argument} must be whole numbers, one for each dimension, got {_short(values)}") from None


def time_limit(timeout: Any) -> float:
    """Seconds, until the deadline at most."""
    seconds, left = min(check_timeout(timeout), _LONGEST), deadline_left()
    return seconds if left is None else min(seconds, left)


def _short(value: object) -> str:
    """The value in a text, or its type where the value is as large as a model."""
    text = repr(value)
    return text if len(text) <= 80 else type(value).__name__
