"""Fields of the API server's objects, any of which may be absent or null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Object = Mapping[str, Any]


def part(obj: Object, *path: str) -> Object:
    """An object inside an object; empty where there is none."""
    for key in path:
        found: Any = obj.get(key)
        obj = found or {}
    return obj


def rows(obj: Object, *path: str) -> Sequence[Object]:
    """A list of objects inside an object; empty where there is none."""
    found: Any = part(obj, *path[:-1]).get(path[-1])
    return found or ()


def text(obj: Object, *path: str) -> str:
    """A text inside an object; "" where there is none."""
    found: Any = part(obj, *path[:-1]).get(path[-1])
    return found or ""
