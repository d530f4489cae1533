"""What is expected inside a template that a user has written: `TypeError` names the place that has something else."""

from __future__ import annotations

from typing import Any, cast

Object = dict[str, Any]


def mapping(where: str, value: Any) -> Object:
    if not isinstance(value, dict):
        raise TypeError(f"{where} is a mapping, not {type(value).__name__}")
    return cast("Object", value)


def mappings(where: str, value: Any) -> list[Object]:
    if not isinstance(value, list):
        raise TypeError(f"{where} is a list, not {type(value).__name__}")
    return [mapping(f"{where}[{index}]", item) for index, item in enumerate(cast("list[Any]", value))]


def text_map(where: str, value: Any) -> dict[str, str]:
    """A mapping of texts."""
    for key, item in mapping(where, value).items():
        if not isinstance(item, str):
            raise TypeError(f"{where}: '{key}' is {item!r}, and text is needed: {str(item)!r}")
    return value
