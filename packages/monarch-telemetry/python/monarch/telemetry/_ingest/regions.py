"""Shapes and views of meshes as JSON: labels of the dimensions, and the slice with its offset, sizes and strides."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any

# The region of a mesh without dimensions.
WITHOUT_DIMENSIONS = '{"labels": [], "slice": {"offset": 0, "sizes": [], "strides": []}}'
# A dimension in an event: its label, quoted if it is not a plain word, its size and its stride.
_DIMENSION = re.compile(r'(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>\w*))=(?P<size>\d+):(?P<stride>\d+)(?: |$)', re.DOTALL)


def region_json(sizes: Mapping[str, int]) -> str:
    """The whole of a mesh of these dimensions; ranks count fastest in the last one."""
    of = list(sizes.values())
    strides = [prod(of[place + 1 :]) for place in range(len(of))]
    return _json(list(sizes), 0, of, strides)


@lru_cache(4096)
def view_json(first: int, dims: str) -> str:
    """The part of a mesh that an event names by its first rank and its dimensions, such as `hosts=2:4 gpus=4:1`."""
    found = list(_DIMENSION.finditer(dims))
    labels = [one["plain"] if one["quoted"] is None else re.sub(r"\\(.)", r"\1", one["quoted"], flags=re.DOTALL) for one in found]
    return _json(labels, first, [int(one["size"]) for one in found], [int(one["stride"]) for one in found])


def _json(labels: list[str], offset: int, sizes: list[int], strides: list[int]) -> str:
    return json.dumps({"labels": labels, "slice": {"offset": offset, "sizes": sizes, "strides": strides}})


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
