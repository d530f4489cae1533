"""Checks of arguments before any operation starts. The `TypeError` or `ValueError` names the argument and its value."""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def check_seconds(name: str, seconds: object, least: str = "", positive: bool = False) -> None:
    """Refuses a value that is not a finite number from 0 on, or above 0 with `positive`. `least` names the other permitted values."""
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        raise TypeError(f"{name}={seconds!r}: expected a number of seconds{least}, not {type(seconds).__name__}")
    if not math.isfinite(seconds) or seconds < 0 or (positive and seconds == 0):
        raise ValueError(f"{name}={seconds!r}: expected a finite number of seconds, {'more than 0' if positive else '0 or more'}{least}")


def check_count(name: str, count: object, most: int | None = None, least: int = 0) -> None:
    """Refuses a value that is not an int from `least` to `most`."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"{name}={count!r}: expected an int, not {type(count).__name__}")
    if count < least or (most is not None and count > most):
        raise ValueError(f"{name}={count}: expected {f'{least} or more' if most is None else f'{least} to {most}'}")


def check_counts(name: str, counts: Any, length: int, most: int | None = None) -> None:
    """Refuses a value that is not a tuple of `length` such ints."""
    found: tuple[object, ...] = counts if isinstance(counts, tuple) else ()  # pyright: ignore[reportUnknownVariableType]
    if len(found) != length:
        raise TypeError(f"{name}={counts!r}: expected a tuple of {length} ints")
    for index, count in enumerate(found):
        check_count(f"{name}[{index}]", count, most)
