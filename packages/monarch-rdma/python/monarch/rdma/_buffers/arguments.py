"""Arguments that several calls take, checked before anything starts."""

from __future__ import annotations

import operator
from typing import Any

_U64 = 1 << 64


def check_timeout(timeout: Any) -> float:
    """Seconds: `TypeError` unless a number, `ValueError` for a negative one or NaN, `OverflowError` beyond 64 bits."""
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool):
        raise TypeError(f"timeout must be a number of seconds, got {type(timeout).__name__}")
    if not timeout >= 0:
        raise ValueError(f"timeout must not be negative, got {timeout}")
    if timeout >= _U64:
        raise OverflowError(f"timeout of {timeout} s is beyond 64 bits")
    return float(timeout)


def check_lease(lease: Any) -> float | None:
    if lease is None:
        return None
    if not isinstance(lease, (int, float)) or isinstance(lease, bool):
        raise TypeError(f"lease must be a number of seconds, got {type(lease).__name__}")
    if not lease > 0:
        raise ValueError(f"lease must be longer than 0 s, got {lease}")
    if lease >= _U64:
        raise OverflowError(f"lease of {lease} s is beyond 64 bits")
    return float(lease)


def check_offset(offset: Any, size: int) -> int:
    """A place in a buffer of `size` bytes."""
    offset = operator.index(offset)
    if not 0 <= offset < size:
        raise ValueError(f"offset {offset:,} is outside the buffer of {size:,} bytes")
    return offset


def check_word(name: str, value: Any) -> int:
    value = operator.index(value)
    if not 0 <= value < _U64:
        raise OverflowError(f"{name} must be an unsigned 64-bit number, got {value}")
    return value
