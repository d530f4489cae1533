"""Attributes and ids of OTLP: from the JSON and the numbers of rows to protobuf.

Rows come from programs: what is malformed in one of them is left out and counted, and the row is exported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from importlib import import_module
from json import dumps, loads
from typing import Any, cast

_INT64 = 1 << 63
# Deeper values become JSON text: messages of protobuf may be nested 100 deep, two for each level.
_DEPTH = 8
_CACHED = 10_000
_DIGITS = re.compile("[0-9a-fA-F]*")


@cache
def messages(name: str) -> Any:
    """A module of opentelemetry-proto, such as `trace.v1.trace`."""
    return import_module(f"opentelemetry.proto.{name}_pb2")


def clean(text: str) -> str:
    """Text that protobuf takes: JSON can have half of a surrogate pair, UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def span_id(process: int, span: int) -> bytes:
    """The W3C id of a span. Ids below 2**32 are numbers that a process counts: their id is made of process and number.

    Ids of messages have come over the wire, or go over it: they are what they are.
    """
    if span >> 32:
        return span.to_bytes(8, "big")
    return blake2b(process.to_bytes(8, "big") + span.to_bytes(8, "big"), digest_size=8, person=b"monarch-span").digest()


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
        self._common = messages("common.v1.common")
        self._texts: dict[str, dict[str, Any]] = {}
        self._pairs: dict[tuple[str, type, Any], Any] = {}

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

    def pairs(self, values: Mapping[str, Any]) -> list[Any]:
        """`KeyValue` messages, at most as many as the limit; what is None is left out."""
        found = [self.pair(key, value) for key, value in values.items() if value is not None]
        return found if len(found) <= self._count else found[: self._count]

    def pair(self, key: str, value: Any) -> Any:
        """A `KeyValue` message, not to be changed. Names, small numbers and short texts come again, so those are kept."""
        kind = cast("type[object]", type(value))
        if not (kind is str and len(value) <= 100 or kind is bool or kind is int and -1000 <= value <= 100_000):
            return self._common.KeyValue(key=clean(key), value=self.value(value))
        known = self._pairs.get((key, kind, value))
        if known is None:
            if len(self._pairs) >= _CACHED:
                self._pairs.clear()
            known = self._pairs[key, kind, value] = self._common.KeyValue(key=clean(key), value=self.value(value))
        return known

    def dropped(self, values: Mapping[str, Any]) -> int:
        """How many of them `pairs` leaves out for the limit."""
        return 0 if len(values) <= self._count else max(0, sum(value is not None for value in values.values()) - self._count)

    def value(self, value: Any, depth: int = 0) -> Any:
        """An `AnyValue`."""
        made = self._common.AnyValue
        if isinstance(value, str):
            return made(string_value=clean(value if self._length is None else value[: self._length]))
        if isinstance(value, bool):
            return made(bool_value=value)
        if isinstance(value, int):
            return made(int_value=value) if -_INT64 <= value < _INT64 else made(string_value=_digits(value))
        if isinstance(value, float):
            return made(double_value=value)
        if value is None:
            return made()
        if depth >= _DEPTH:
            return self.value(dumps(value, ensure_ascii=False, default=str))
        if isinstance(value, Mapping):
            pairs: Any = value.items()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            listed = [self._common.KeyValue(key=clean(str(key)), value=self.value(one, depth + 1)) for key, one in pairs]
            return made(kvlist_value=self._common.KeyValueList(values=listed))
        if isinstance(value, (list, tuple)):
            items: Any = value  # pyright: ignore[reportUnknownVariableType]
            return made(array_value=self._common.ArrayValue(values=[self.value(one, depth + 1) for one in items]))
        return self.value(str(value))


def _digits(value: int) -> str:
    """Decimal, or hexadecimal where Python makes no decimal text of so many digits."""
    return str(value) if value.bit_length() <= 4096 else hex(value)
