"""Lengths of time as people write them."""

from __future__ import annotations

import math
import re

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s|m|h|d|)")
# A year: a longer duration is a mistake.
_LONGEST = 366 * 86400.0


def seconds(text: str) -> float:
    """`10`, `10s`, `500ms`, `2m`, `1.5h` or `3d` in seconds. `ValueError` for another text, for nothing, and beyond a year."""
    found = _DURATION.fullmatch(text.strip())
    value = float(found[1]) * _UNITS[found[2]] if found else math.nan
    if not 0 < value <= _LONGEST:
        raise ValueError(f"{text!r} is no length of time: write a number above 0 and ms, s, m, h or d, such as 10s")
    return value
