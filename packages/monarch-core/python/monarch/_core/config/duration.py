"""Durations as text, in the form that settings take and return.

A duration is one or more `number unit` pairs that add up: `"90s"`, `"1h 30m"`, `"1.5h"`. Numbers are decimal and may have a
fraction as long as the sum of it is a whole number of nanoseconds; spaces are ignored everywhere. A bare `"0"` is zero. Months and
years are the mean Gregorian ones (30.44 and 365.25 days), accepted because 0.7 accepted them.

The normal form lists the units from large to small, each once, without units of value zero; weeks are converted to days.
"""

from __future__ import annotations

_SECOND = 1_000_000_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_MONTH = 2_630_016 * _SECOND
_YEAR = 31_557_600 * _SECOND

# The limit of the runtime, which keeps seconds in 64 bits.
_LIMIT = (1 << 64) * _SECOND

_SPELLINGS = (
    (1, ("ns", "nsec", "nanos")),
    (1_000, ("us", "µs", "usec")),
    (1_000_000, ("ms", "msec", "millis")),
    (_SECOND, ("s", "sec", "secs", "second", "seconds")),
    (_MINUTE, ("m", "min", "mins", "minute", "minutes")),
    (_HOUR, ("h", "hr", "hrs", "hour", "hours")),
    (_DAY, ("d", "day", "days")),
    (7 * _DAY, ("w", "wk", "wks", "week", "weeks")),
    (_MONTH, ("M", "month", "months")),
    (_YEAR, ("y", "yr", "yrs", "year", "years")),
)
_UNITS = {name: size for size, names in _SPELLINGS for name in names}

# Each unit: nanoseconds, singular name, whether its plural has an `s`.
_NORMAL = (
    (_YEAR, "year", True),
    (_MONTH, "month", True),
    (_DAY, "day", True),
    (_HOUR, "h", False),
    (_MINUTE, "m", False),
    (_SECOND, "s", False),
    (1_000_000, "ms", False),
    (1_000, "us", False),
    (1, "ns", False),
)

_DIGITS = frozenset("0123456789")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZµ")


def parse_duration(text: str) -> int:
    """Nanoseconds of a duration such as `"1h 30m"`.

    Raises `ValueError`, starting with `Invalid duration format`, if the text is no duration, is finer than a nanosecond, or does
    not fit 64 bits of seconds.
    """
    if text.strip() == "0":
        return 0
    total = 0
    position = _skip(text, 0)
    if position == len(text):
        raise _invalid(text, "value was empty")
    while position < len(text):
        if text[position] not in _DIGITS:
            raise _invalid(text, f"expected number at {position}")
        digits, position = _run(text, position, _DIGITS)
        fraction = ""
        if position < len(text) and text[position] == ".":
            point = position
            fraction, position = _run(text, _skip(text, position + 1), _DIGITS)
            if not fraction:
                raise _invalid(text, f"invalid character at {point}")
        unit, end = _run(text, position, _LETTERS)
        if not unit:
            if end < len(text):
                raise _invalid(text, f"invalid character at {end}")
            number = f"{digits}.{fraction}" if fraction else digits
            raise _invalid(text, f"time unit needed, for example {number}sec or {number}ms")
        size = _UNITS.get(unit)
        if size is None:
            raise _invalid(text, f'unknown time unit "{unit}", supported units: ns, us, ms, s, m, h, day, w')
        total += _amount(text, digits, fraction, size)
        position = end
    if total >= _LIMIT:
        raise _invalid(text, "number is too large")
    return total


def format_duration(nanoseconds: int) -> str:
    """Normal form of a duration given in nanoseconds: `90 * 10**9` gives `"1m 30s"`, zero gives `"0s"`.

    Raises `ValueError` for a negative number.
    """
    if nanoseconds < 0:
        raise ValueError(f"negative duration: {nanoseconds} ns")
    parts: list[str] = []
    rest = nanoseconds
    for size, name, plural in _NORMAL:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{name}{'s' if plural and count > 1 else ''}")
    return " ".join(parts) or "0s"


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _run(text: str, position: int, alphabet: frozenset[str]) -> tuple[str, int]:
    """The characters of one alphabet from `position` on, and the position after them and the following space.

    Space inside a number separates groups of digits; space inside a word ends it.
    """
    taken: list[str] = []
    while position < len(text) and text[position] in alphabet:
        taken.append(text[position])
        position += 1
        if alphabet is _DIGITS:
            position = _skip(text, position)
    return "".join(taken), _skip(text, position)


def _amount(text: str, digits: str, fraction: str, size: int) -> int:
    # Python refuses to convert very long digit strings, and a number of that length exceeds the limit.
    if len(digits) + len(fraction) > 64:
        raise _invalid(text, "number is too large")
    whole, rest = divmod(int(digits + fraction) * size, 10 ** len(fraction))
    if rest:
        raise _invalid(text, "values below 1ns are not supported")
    return whole


def _invalid(text: str, reason: str) -> ValueError:
    return ValueError(f"Invalid duration format {text!r}: {reason}")
