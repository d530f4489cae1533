"""Times and sizes as people read them."""

from __future__ import annotations

import datetime

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_BARS = "▁▂▃▄▅▆▇█"


def size(count: float | None) -> str:
    """Bytes."""
    if count is None:
        return "?"
    place = 0
    while abs(count) >= 1024 and place < len(_UNITS) - 1:
        count, place = count / 1024, place + 1
    return f"{count:.0f} B" if place == 0 else f"{count:.1f} {_UNITS[place]}"


def duration(seconds: float) -> str:
    """A length of time with two units at most."""
    if seconds < 0.001:
        return f"{max(seconds, 0) * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.{1 if seconds < 0.01 else 0}f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"


def number(value: float | int | None) -> str:
    """A measured value with at most four digits after those that count."""
    if value is None:
        return "?"
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"


def epoch(text: str | None) -> float | None:
    """An RFC 3339 text in seconds since the epoch; None for no such text."""
    try:
        return None if not text else datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def moment(seconds: float) -> str:
    """Seconds since the epoch as date and time in the zone of this machine."""
    try:
        return datetime.datetime.fromtimestamp(int(seconds)).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def clock_time(us: int) -> str:
    """Microseconds since the epoch as the time of the day in the zone of this machine, with milliseconds."""
    try:
        return datetime.datetime.fromtimestamp(us // 1_000_000).strftime("%H:%M:%S") + f".{us % 1_000_000 // 1000:03}"
    except (ValueError, OverflowError, OSError):
        return str(us)


def sparkline(values: list[float]) -> str:
    """Values as bars between their least and their largest."""
    if not values:
        return ""
    least, most = min(values), max(values)
    if most <= least:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(int((value - least) / (most - least) * len(_BARS)), len(_BARS) - 1)] for value in values)
