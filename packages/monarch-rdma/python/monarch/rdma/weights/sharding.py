"""Which items of a global tensor a `DTensor` has on this rank: its placements, as boxes.

Each placement that shards a dimension cuts what the placements before it have left, in the order of the mesh's dimensions. `Shard` is
`torch.chunk`: all parts are of the same length but the last ones, which may be shorter or empty. A strided shard cuts into `split_factor`
parts first, and has its part of each of them, one after another, so its items may have gaps in the global tensor.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple


class Part(NamedTuple):
    """A box of the global tensor that is contiguous in the local one: where it begins in each, and its shape."""

    low: tuple[int, ...]
    local: tuple[int, ...]
    shape: tuple[int, ...]


class Cut(NamedTuple):
    """A placement of one tensor dimension: number of parts, the part of this rank, and the split factor, 1 for `Shard`."""

    parts: int
    mine: int
    split: int = 1


# First index and number of indices.
_Range = tuple[int, int]


@lru_cache(4096)
def ranges(size: int, cuts: tuple[Cut, ...]) -> tuple[_Range, ...]:
    """The indices of a dimension of `size` that are left after the cuts, in local order."""
    left: tuple[_Range, ...] = ((0, size),)
    for parts, mine, split in cuts:
        found: list[_Range] = []
        for first, last in _chunks(0, sum(count for _, count in left), split):
            for start, count in _taken(left, *_chunks(first, last, parts)[mine]):
                if found and sum(found[-1]) == start:
                    found[-1] = (found[-1][0], found[-1][1] + count)
                else:
                    found.append((start, count))
        left = tuple(found)
    return left


def _chunks(first: int, last: int, parts: int) -> list[_Range]:
    """First and last index of each part; the last is excluded."""
    length = -(-(last - first) // parts)
    return [(min(first + i * length, last), min(first + (i + 1) * length, last)) for i in range(parts)]


def _taken(left: tuple[_Range, ...], first: int, last: int) -> list[_Range]:
    """Items `first` to `last` of these."""
    taken: list[_Range] = []
    place = 0
    for start, count in left:
        a, b = max(first, place), min(last, place + count)
        if a < b:
            taken.append((start + a - place, b - a))
        place += count
    return taken


def is_dtensor(data: object) -> bool:
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(data, kind)


def parts_of(tensor: Any) -> list[Part]:
    """The parts of a `DTensor` that this rank has; none if it is not in the mesh. `ValueError` for a placement that is no layout."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return []
    shape: tuple[int, ...] = tuple(tensor.shape)
    cuts: list[list[Cut]] = [[] for _ in shape]
    for dim in _cutting_order(tensor):
        placement = tensor.placements[dim]
        if placement.is_replicate():
            continue
        along = getattr(placement, "dim", None)
        if placement.is_partial() or along is None:
            raise ValueError(
                f"its placement {placement} is no layout of its items: pass tensor.redistribute(...), for example with Shard(0)"
            )
        split = int(getattr(placement, "split_factor", 1))
        cuts[int(along) % len(shape)].append(Cut(int(tensor.device_mesh.size(dim)), int(coordinate[dim]), split))
    found = [ranges(size, tuple(cut)) for size, cut in zip(shape, cuts, strict=True)]
    local = tuple(sum(count for _, count in along) for along in found)
    if local != tuple(tensor.to_local().shape):
        raise ValueError(f"its placements give a local shape of {local}, and the local tensor has {tuple(tensor.to_local().shape)}")
    return parts(found)


def _cutting_order(tensor: Any) -> list[int]:
    """The mesh dimensions in the order in which they cut: their own, unless the tensor has another one (PyTorch 2.10)."""
    entries = getattr(getattr(tensor, "_spec", None), "shard_order", None) or ()
    listed = [dim for entry in entries for dim in entry.mesh_dims]
    return [*listed, *(dim for dim in range(len(tensor.placements)) if dim not in listed)]


def parts(by_dim: list[tuple[_Range, ...]]) -> list[Part]:
    """The boxes of which each has one range of each dimension."""
    placed: list[list[tuple[int, int, int]]] = []
    for found in by_dim:
        place, rows = 0, list[tuple[int, int, int]]()
        for start, count in found:
            rows.append((start, place, count))
            place += count
        placed.append(rows)
    return [Part(tuple(row[0] for row in rows), tuple(row[1] for row in rows), tuple(row[2] for row in rows)) for rows in product(*placed)]
