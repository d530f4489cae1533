"""Tensors that go from one mesh to another one."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from monarch.tensor._controller.handle import Handle
from monarch.tensor._controller.memory import Memory
from monarch.tensor._controller.place import place_of, place_of_ranks
from monarch.tensor._protocol.commands import Move
from monarch.tensor._tensors.dispatch import check_operands
from monarch.tensor._tensors.far_moves import moved_far
from monarch.tensor._tensors.tensor_base import handle_of, new_tensor

if TYPE_CHECKING:
    from monarch.tensor._tensors.rank_mesh import RankMesh
    from monarch.tensor._tensors.tensor_base import TensorBase


def moved(tensor: TensorBase, source: RankMesh, target: RankMesh, stream: Any) -> Any:
    """`tensor`, as `source` has it, on `target`."""
    handle = handle_of(tensor)
    owner = handle.place
    check_operands("to_mesh", (tensor,), {"mesh": target}, owner)
    for label, size in source.sizes.items():
        if label not in target.sizes:
            raise ValueError(f"to_mesh: {target!r} has no dimension {label!r}, which the tensor's {source!r} has: slice or reduce it first")
        if target.sizes[label] != size:
            raise ValueError(f"to_mesh: dimension {label!r} has size {size} in {source!r}, and {target.sizes[label]} in {target!r}")
    if target.controller is not source.controller:
        return moved_far(tensor, source, target, routes(source, target), stream or owner.stream)
    controller = owner.controller
    union = tuple(sorted({*source.ranks_in_order, *target.ranks_in_order}))
    # The command goes to all ranks that send or receive.
    between = place_of_ranks(controller, union, owner.stream)
    layout = handle.layout
    made = layout.with_shape(layout.shape)
    number = next(controller.numbers)
    definition = Move(tuple(routes(source, target)), (layout.shape, layout.dtype, layout.device))
    controller.emit(between, controller.defined(definition), (handle.id,), (), (number,))
    place = place_of(target, stream or owner.stream)
    if place.stream is not owner.stream:
        controller.emit_order(place_of(target, owner.stream), place)
    return new_tensor(Handle(number, made, Memory(), place))


def routes(source: RankMesh, target: RankMesh) -> list[tuple[int, int]]:
    """(source, destination) of each rank of the target."""
    labels = list(target.sizes)
    found: list[tuple[int, int]] = []
    for place in itertools.product(*(range(n) for n in target.sizes.values())):
        at = dict(zip(labels, place, strict=True))
        found.append((source.grid.rank_at(tuple(at[k] for k in source.grid.labels)), target.grid.rank_at(place)))
    return found
