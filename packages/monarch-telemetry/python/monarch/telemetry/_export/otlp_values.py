"""Attributes and ids of OTLP: from the JSON and the numbers of rows to values that the SDK encodes.

Rows come from programs: what is malformed in one of them is left out and counted, and the row is exported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from json import dumps, loads
from typing import Any

_INT64 = 1 << 63
# Deeper values become JSON text: messages of protobuf may be nested 100 deep, two for each level.
_DEPTH = 8
_CACHED = 10_000
_DIGITS = re.compile("[0-9a-fA-F]*")


def clean(text: str) -> str:
    """Text that protobuf takes: JSON can have half of a surrogate pair, UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def span_id(process: int, span: int) -> int:
    """The W3C id of a span. Ids below 2**32 are numbers that a process counts: their id is made of process and number.

    Ids of messages have come over the wire, or go over it: they are what they are.
    """
    if span >> 32:
        return span
    text = process.to_bytes(8, "big") + span.to_bytes(8, "big")
    return int.from_bytes(blake2b(text, digest_size=8, person=b"monarch-span").digest(), "big")


def made_trace_id(process: int, span: int, began_us: int) -> int:
    """The trace of a span that belongs to none: that of its outermost span."""
    text = b"".join(one.to_bytes(8, "big", signed=one < 0) for one in (process, span, began_us))
    return int.from_bytes(blake2b(text, digest_size=16, person=b"monarch-trace").digest(), "big") or 1


def trace_id(text: Any) -> int:
    """The number of 32 hexadecimal digits; 0, which is no trace, for all else."""
    return hexadecimal(text, 32)


def hexadecimal(text: Any, digits: int) -> int:
    """The number of so many hexadecimal digits; 0 for all else."""
    return int(text, 16) if isinstance(text, str) and len(text) == digits and _DIGITS.fullmatch(text) else 0


def parsed_object(text: str) -> dict[str, Any]:
    """The object of a JSON text; an empty one for all else."""
    try:
        found: Any = loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]


class Attributes:
    """Makes attributes, within the limits of the variables. `malformed` counts JSON that is no object."""

    def __init__(self, count: int = 128, length: int | None = None) -> None:
        self.malformed = 0
        self._count = count
        self._length = length
        self._texts: dict[str, dict[str, Any]] = {}

    def parsed(self, text: str) -> dict[str, Any]:
        """The object of a JSON text; not to be changed. Rows of one series have equal texts, so the last ones are kept."""
        if not text or text == "{}":
            return {}
        known = self._texts.get(text)
        if known is not None:
            return known
        try:
            found: Any = loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            self.malformed += 1
            return {}
        if len(text) <= 1000:
            if len(self._texts) >= _CACHED:
                self._texts.clear()
            self._texts[text] = found
        return found  # pyright: ignore[reportUnknownVariableType]

    def limited(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """Attributes, at most as many as the limit, and the number of others; what is None is left out."""
        found = {clean(key): self.value(value) for key, value in values.items() if value is not None}
        if len(found) <= self._count:
            return found, 0
        return dict([*found.items()][: self._count]), len(found) - self._count

    def value(self, value: Any, depth: int = 0) -> Any:
        """A value that the SDK encodes: protobuf refuses larger integers, halves of surrogate pairs, and deep values."""
        if isinstance(value, str):
            return clean(value if self._length is None else value[: self._length])
        if value is None or isinstance(value, bool | float):
            return value
        if isinstance(value, int):
            return value if -_INT64 <= value < _INT64 else _digits(value)
        if depth >= _DEPTH:
            return self.value(dumps(value, ensure_ascii=False, default=str))
        if isinstance(value, Mapping):
            pairs: Any = value.items()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            return {clean(str(key)): self.value(one, depth + 1) for key, one in pairs}
        if isinstance(value, (list, tuple)):
            items: Any = value  # pyright: ignore[reportUnknownVariableType]
            return [self.value(one, depth + 1) for one in items]
        return self.value(str(value))


def _digits(value: int) -> str:
    """Decimal, or hexadecimal where Python makes no decimal text of so many digits."""
    return str(value) if value.bit_length() <= 4096 else hex(value)
