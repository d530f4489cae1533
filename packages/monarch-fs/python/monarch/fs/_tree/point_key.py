"""The key of each point of a mesh of hosts, and paths that have it: directories of a gather mount, mount points of the hosts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

# Stands for the key in a path.
SUBDIR = "$SUBDIR"


def point_key(coordinates: Mapping[str, int]) -> str:
    """`hosts_0_gpus_1` for the point with these coordinates; empty for the only point of a mesh without dimensions."""
    return "_".join(f"{label}_{at}" for label, at in coordinates.items())


def points(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """The coordinates of all points, in the order of their ranks."""
    return [dict(zip(sizes, at, strict=True)) for at in product(*(range(size) for size in sizes.values()))]


def keys_of(sizes: Mapping[str, int]) -> list[str]:
    """The keys of all points, in the order of their ranks."""
    return [point_key(at) for at in points(sizes)]


def path_on(template: str, key: str) -> str:
    """The path on the host of the point with this key."""
    return template.replace(SUBDIR, key)


def remote_path(template: str, key: str) -> str:
    """The same. `ValueError` for a path that is not absolute."""
    path = path_on(template, key)
    if not path.startswith("/"):
        raise ValueError(f"{template}: the remote path of a gather mount is absolute")
    if "\0" in path:
        raise ValueError(f"{template!r}: a path has no null character")
    return path
