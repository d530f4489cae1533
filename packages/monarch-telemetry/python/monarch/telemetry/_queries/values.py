"""The values of an Arrow table as those of Python and JSON, and text that a terminal shows as it is.

Integers stay exact whatever their width. Times, dates and intervals become text, bytes hexadecimal digits; a number that JSON has no form
for, such as NaN, becomes its name. Only tables need pyarrow, whose import takes a quarter of a second: a text is printable without it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

# Rows that are Python objects at the same time.
_ROWS = 4096
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
# Characters that move the cursor, change colours or reorder text: C0, DEL, C1, line separators, direction marks, surrogates, byte order
# marks.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_TIME_NAME = re.compile(r"(?:^|_)(?:us|at|ts|since|as_of)$")
# Microseconds since the epoch of the years 2000 and 2100. A duration of that length does not occur.
_TIMES = range(946_684_800_000_000, 4_102_444_800_000_000)


def names(table: Any) -> list[str]:
    """The names of the columns; a second one of a name gets a number behind it, since rows are found by name."""
    found: list[str] = []
    taken = set[str]()
    for name in cast("list[str]", table.schema.names):
        free, number = name, 1
        while free in taken:
            number += 1
            free = f"{name}_{number}"
        taken.add(free)
        found.append(free)
    return found


def rows(table: Any, start: int = 0, stop: int | None = None) -> Iterator[tuple[object, ...]]:
    """The rows from `start` to before `stop`, a value a column: None, bool, int, finite float, str, list or dict."""
    end: int = table.num_rows if stop is None else min(stop, table.num_rows)
    makers = [_maker(field.type) for field in table.schema]
    for at in range(start, end, _ROWS):
        piece = table.slice(at, min(_ROWS, end - at))
        yield from zip(*(make(piece.column(index)) for index, make in enumerate(makers)), strict=True)


def printable(text: str) -> str:
    """The text with an escape in the place of each character that a terminal would act upon or not show."""
    return _UNSEEN.sub(lambda found: _SHORT.get(found[0]) or _escape(found[0]), text)


def json_printable(text: str) -> str:
    """JSON text with the escapes of JSON in their place; only strings of it have such characters."""
    return _UNSEEN.sub(lambda found: found[0] if found[0] in _SHORT else _pairs(found[0]), text)


def iso(us: int) -> str:
    """Microseconds since the epoch as a time of UTC."""
    return f"{(_EPOCH + timedelta(microseconds=us)).isoformat(timespec='microseconds').removesuffix('+00:00')}Z"


def is_time(name: str, value: object) -> bool:
    """Whether a value of a column of this name is a time in microseconds since the epoch."""
    return type(value) is int and value in _TIMES and _TIME_NAME.search(name) is not None


def _escape(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _pairs(character: str) -> str:
    return "".join(f"\\u{unit:04x}" for unit in memoryview(character.encode("utf-16", "surrogatepass")[2:]).cast("H"))


def _maker(kind: Any) -> Callable[[Any], list[object]]:
    """What makes a list of values of a column of this type."""
    from monarch.telemetry._arrow import pa

    types = pa.types
    if types.is_timestamp(kind):
        return lambda column: [_moment(value, kind.unit, kind.tz) for value in column.cast(pa.int64()).to_pylist()]
    if types.is_temporal(kind):
        return lambda column: [_text(value, str) for value in _temporal(column, kind)]
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_null(kind):
        return lambda column: column.to_pylist()
    return lambda column: [_plain(value) for value in column.to_pylist()]


def _temporal(column: Any, kind: Any) -> list[object]:
    from monarch.telemetry._arrow import pa

    if pa.types.is_interval(kind):
        return column.to_pylist()
    if pa.types.is_duration(kind):
        return [_text(value, lambda number: f"{number} {kind.unit}") for value in column.cast(pa.int64()).to_pylist()]
    return column.cast(pa.string()).to_pylist()


def _moment(value: int | None, unit: str, zone: str | None) -> str | None:
    if value is None:
        return None
    seconds, rest = divmod(value, _PER_SECOND[unit])
    try:
        text = (_EPOCH + timedelta(seconds=seconds)).isoformat().removesuffix("+00:00")
    except OverflowError:
        return f"{value} {unit}"
    digits = {"s": "", "ms": f".{rest:03}", "us": f".{rest:06}", "ns": f".{rest:09}"}[unit]
    return f"{text}{digits}{'' if zone is None else 'Z'}"


def _text(value: object, make: Callable[[Any], str]) -> str | None:
    return None if value is None else make(value)


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in cast("dict[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in cast("list[object]", value)]
    return str(value)
