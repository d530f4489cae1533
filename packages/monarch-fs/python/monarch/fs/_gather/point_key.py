"""The names of the directories of a gather mount: one for each point of the mesh."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product


def point_key(coordinates: Mapping[str, int]) -> str:
    """`hosts_0_gpus_1` for the point with these coordinates; empty for the only point of a mesh without dimensions."""
    return "_".join(f"{label}_{at}" for label, at in coordinates.items())


def points(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """The coordinates of all points, in the order of their ranks."""
    return [dict(zip(sizes, at, strict=True)) for at in product(*(range(size) for size in sizes.values()))]


def remote_path(template: str, key: str) -> str:
    """The path on the host of the point with this key: `$SUBDIR` is the key. `ValueError` for a path that is not absolute."""
    path = template.replace("$SUBDIR", key)
    if not path.startswith("/"):
        raise ValueError(f"{template}: the remote path of a gather mount is absolute")
    if "\0" in path:
        raise ValueError(f"{template!r}: a path has no null character")
    return path
