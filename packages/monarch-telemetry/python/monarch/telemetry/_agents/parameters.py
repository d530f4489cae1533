"""The parameters of a tool, as a JSON schema, and the check of what an agent sends for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from monarch.telemetry.errors import QueryError

Kind = Literal["string", "integer"]
# The most characters of a text; a statement has at most 16 KiB.
_LONGEST = 20_000


class Parameter(NamedTuple):
    """A parameter; integers are from `least` to `most`."""

    name: str
    kind: Kind
    meaning: str
    required: bool = True
    least: int = 0
    most: int = 2**63 - 1


def schema(parameters: Sequence[Parameter]) -> dict[str, object]:
    """The JSON schema of an object with these parameters and no others."""
    properties: dict[str, object] = {}
    for one in parameters:
        bounds = {"minimum": one.least, "maximum": one.most} if one.kind == "integer" else {}
        properties[one.name] = {"type": one.kind, "description": one.meaning, **bounds}
    required = [one.name for one in parameters if one.required]
    return {"type": "object", "properties": properties, "additionalProperties": False, **({"required": required} if required else {})}


def checked(tool: str, parameters: Sequence[Parameter], given: Mapping[str, object]) -> dict[str, str | int]:
    """The arguments that were given, without nulls. `QueryError` names one that is missing, unknown or of another kind."""
    known = {one.name: one for one in parameters}
    found: dict[str, str | int] = {}
    for name, value in given.items():
        parameter = known.get(name)
        if parameter is None:
            raise QueryError(f"{tool} has no parameter {name[:40]!r}", hint=f"parameters are {', '.join(known) or 'none'}")
        if value is not None:
            found[name] = _value(tool, parameter, value)
    for one in parameters:
        if one.required and one.name not in found:
            raise QueryError(f"{tool} needs the parameter {one.name!r}: {one.meaning}")
    return found


def _value(tool: str, parameter: Parameter, value: object) -> str | int:
    if parameter.kind == "string":
        if isinstance(value, str) and len(value) <= _LONGEST:
            return value
        raise QueryError(f"{parameter.name!r} of {tool} is not a text of at most {_LONGEST:,} characters")
    # Programs write integers as text, or with a fraction of zero.
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif (isinstance(value, float) and value.is_integer()) or (
        isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20
    ):
        number = int(value)
    if number is None or not parameter.least <= number <= parameter.most:
        raise QueryError(f"{parameter.name!r} of {tool} is not an integer from {parameter.least} to {parameter.most}: {str(value)[:40]!r}")
    return number
