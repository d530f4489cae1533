"""Shapes and views of meshes as JSON: labels of the dimensions, and the slice with its offset, sizes and strides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

# Of a mesh without dimensions.
WITHOUT_DIMENSIONS = '{"labels": [], "slice": {"offset": 0, "sizes": [], "strides": []}}'


def region_json(sizes: Mapping[str, int]) -> str:
    """The whole of a mesh of these dimensions; ranks count fastest in the last one."""
    of = list(sizes.values())
    strides = [prod(of[place + 1 :]) for place in range(len(of))]
    return json.dumps({"labels": list(sizes), "slice": {"offset": 0, "sizes": of, "strides": strides}})


def sizes_of(region: str) -> dict[str, int]:
    """The sizes of the dimensions by their labels; none where the text is no such JSON."""
    try:
        found: Any = json.loads(region)
        return dict(zip(map(str, found["labels"]), map(int, found["slice"]["sizes"]), strict=True))
    except (ValueError, KeyError, TypeError):
        return {}


def region_of(sizes: str) -> str:
    """The region of an event's shape, which is a JSON object of sizes by labels."""
    try:
        found: Any = json.loads(sizes)
        return region_json({str(label): int(size) for label, size in found.items()})
    except (ValueError, TypeError, AttributeError):
        return WITHOUT_DIMENSIONS
