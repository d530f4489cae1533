"""Fields of JSON documents of other programs. An error names the field by its path in the document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from monarch.telemetry.errors import TelemetryError


class Fields:
    """A JSON object and its path, such as `stack_traces[3].frames[0]`."""

    __slots__ = ("_object", "_path")

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, Mapping):
            raise malformed(path, value, "an object")
        self._object = cast("Mapping[str, Any]", value)
        self._path = path

    def __contains__(self, name: str) -> bool:
        return self._object.get(name) is not None

    def path(self, name: str) -> str:
        """The path of a field of this object."""
        return f"{self._path}.{name}" if self._path else name

    def raw(self, name: str) -> object:
        """The value as it is, None where the field is missing."""
        return self._object.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        value = self._object.get(name, default)
        if not isinstance(value, str):
            raise malformed(self.path(name), value, "a text")
        return whole(value)

    def text_or_none(self, name: str) -> str | None:
        return self.text(name) if name in self else None

    def number(self, name: str, bits: int, *, signed: bool = False, default: int | None = None) -> int:
        value = self._object.get(name)
        return integer(self.path(name), default if value is None else value, bits, signed=signed)

    def number_or_none(self, name: str, bits: int, *, signed: bool = False) -> int | None:
        return self.number(name, bits, signed=signed) if name in self else None

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._object.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise malformed(self.path(name), value, "true or false")
        return value

    def items(self, name: str) -> list[object]:
        """The values of a list; none where the field is missing or null."""
        return items(self.path(name), self._object[name]) if name in self else []

    def objects(self, name: str) -> list[Fields]:
        """The objects of a list."""
        return [Fields(one, f"{self.path(name)}[{index}]") for index, one in enumerate(self.items(name))]

    def texts(self, name: str) -> tuple[str, ...]:
        """The texts of a list."""
        found = self.items(name)
        for index, one in enumerate(found):
            if not isinstance(one, str):
                raise malformed(f"{self.path(name)}[{index}]", one, "a text")
        return tuple(whole(cast("str", one)) for one in found)


def items(path: str, value: object) -> list[object]:
    """The values of a list."""
    if not isinstance(value, list | tuple):
        raise malformed(path, value, "a list")
    return list(cast("list[object]", value))


def integer(path: str, value: object, bits: int, *, signed: bool = False) -> int:
    """A whole number of so many bits."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise malformed(path, value, "a whole number")
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not least <= value <= most:
        raise malformed(path, value, f"within {least} to {most}")
    return value


def whole(value: str) -> str:
    """The text without the surrogates that JSON can have and Arrow cannot."""
    return value if value.isascii() else value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def malformed(path: str, value: object, wanted: str) -> TelemetryError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return TelemetryError(f"malformed stacks: {path or 'the document'} is {'missing' if value is None else shown}, not {wanted}")
