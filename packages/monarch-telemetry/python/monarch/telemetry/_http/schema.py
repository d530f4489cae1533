"""Types of `models` as JSON Schema, and values checked by them."""

from __future__ import annotations

import inspect
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from monarch.telemetry._http.problems import Problem

# The range of integers of 64 bits, signed or unsigned.
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
    Any: {},
}


def fields(model: Any) -> dict[str, tuple[Any, bool]]:
    """The fields of a model: their types, and whether each must be there."""
    found: dict[str, tuple[Any, bool]] = {}
    for name, kind in get_type_hints(model, include_extras=True).items():
        optional = get_origin(kind) is NotRequired
        found[name] = (get_args(kind)[0] if optional else kind, not optional)
    return found


def schema(kind: Any, models: dict[str, Any], prefix: str = "#/components/schemas/") -> dict[str, Any]:
    """The schema of a type. Models that it needs are added to `models` under their names, and referred to below `prefix`."""
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": schema(arguments[0], models, prefix)}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema(arguments[1], models, prefix)}
    if origin in (Union, UnionType):
        return {"anyOf": [schema(one, models, prefix) for one in arguments]}
    if not is_typeddict(kind):
        raise TypeError(f"{kind} has no schema")
    name = str(kind.__name__)
    if name not in models:
        models[name] = {}
        models[name] = _object(kind, models, prefix)
    return {"$ref": f"{prefix}{name}"}


def _object(model: Any, models: dict[str, Any], prefix: str) -> dict[str, Any]:
    parts = fields(model)
    found: dict[str, Any] = {"type": "object"}
    # A model without a docstring has that of `dict`.
    if (text := inspect.cleandoc(model.__doc__ or "")) and text != inspect.cleandoc(dict.__doc__ or ""):
        found["description"] = text
    found["properties"] = {name: schema(kind, models, prefix) for name, (kind, _) in parts.items()}
    found["required"] = [name for name, (_, required) in parts.items() if required]
    return found


def document(kind: Any) -> dict[str, Any]:
    """A schema that stands alone."""
    models: dict[str, Any] = {}
    top = schema(kind, models, "#/$defs/")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top, "$defs": models}


def checked(value: Any, kind: Any, where: str) -> Any:
    """The value, where it has this type; `Problem` 400 names the field that has not. Fields that the model does not have are refused."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        return _checked_object(value, kind, where)
    if origin is Literal:
        if value not in arguments:
            raise Problem.bad_request(f"{where} is one of {', '.join(map(str, arguments))}")
        return value
    if origin in (Union, UnionType):
        return _checked_union(value, arguments, where)
    if origin is list:
        if not isinstance(value, list):
            raise Problem.bad_request(f"{where} is a list")
        return [checked(one, arguments[0], f"{where}[{index}]") for index, one in enumerate(cast("list[Any]", value))]
    if origin is dict:
        if not isinstance(value, dict):
            raise Problem.bad_request(f"{where} is a JSON object")
        return {name: checked(one, arguments[1], f"{where}.{name}") for name, one in cast("dict[str, Any]", value).items()}
    if kind is Any:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise Problem.bad_request(f"{where} is {_article(kind)}")
    if kind is int and not _LEAST <= value <= _MOST:
        raise Problem.bad_request(f"{where} is a number of at most 64 bits")
    if kind is float and not abs(cast("float", value)) < float("inf"):
        raise Problem.bad_request(f"{where} is a finite number")
    return value


def _checked_object(value: Any, model: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Problem.bad_request(f"{where} is a JSON object")
    given = cast("dict[str, Any]", value)
    parts = fields(model)
    found: dict[str, Any] = {}
    for name, one in given.items():
        if name not in parts:
            raise Problem.bad_request(f"{where} has no field {name!r}; it has {', '.join(parts) or 'none'}")
        # null is the same as a missing value in an optional field.
        if one is None and not parts[name][1]:
            continue
        found[name] = checked(one, parts[name][0], name)
    for name, (_, required) in parts.items():
        if required and name not in found:
            raise Problem.bad_request(f"{where} needs the field {name!r}")
    return found


def _checked_union(value: Any, kinds: tuple[Any, ...], where: str) -> Any:
    for kind in kinds:
        try:
            return checked(value, kind, where)
        except Problem:
            continue
    raise Problem.bad_request(f"{where} is {' or '.join(_article(kind) for kind in kinds)}")


def _article(kind: Any) -> str:
    return {str: "a text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}.get(kind, "of another type")


def parsed(text: str, kind: Any, where: str) -> Any:
    """A parameter of a URL as its type."""
    if kind is bool:
        found = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
        if found is None:
            raise Problem.bad_request(f"{where} is true or false")
        return found
    if kind is int:
        # `int` accepts more than digits: signs, spaces, underscores.
        if not text.isascii() or not text.isdigit() or len(text) > 20:
            raise Problem.bad_request(f"{where} is a whole number")
        return checked(int(text), int, where)
    return checked(text, kind, where)
