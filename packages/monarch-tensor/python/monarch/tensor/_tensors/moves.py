"""Tensors that go from one mesh to another one."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from monarch.tensor._controller.memory import Handle, Memory
from monarch.tensor._controller.place import place_of
from monarch.tensor._protocol.commands import Move
from monarch.tensor._tensors.dispatch import check_operands, map_tensors
from monarch.tensor._tensors.mesh import DeviceMesh, mesh_of
from monarch.tensor._tensors.stream import Stream
from monarch.tensor._tensors.tensor_base import handle_of, new_tensor

if TYPE_CHECKING:
    from monarch.actor import ProcMesh
    from monarch.tensor._tensors.tensor import Tensor


class MeshSliceTensor:
    """A tensor on a part of its mesh, to be moved."""

    def __init__(self, tensor: Tensor, mesh: DeviceMesh) -> None:
        self.tensor = tensor
        self.mesh = mesh

    def to_mesh(self, mesh: DeviceMesh | ProcMesh, stream: Stream | None = None) -> Tensor:
        """A copy of that part on another mesh: see `monarch.tensor.to_mesh`."""
        return moved(self.tensor, self.mesh, mesh_of(mesh), stream)

    def __repr__(self) -> str:
        return f"<{self.tensor!r} on {self.mesh!r}>"


def to_mesh(tensors: Any, mesh: DeviceMesh | ProcMesh, stream: Stream | None = None) -> Any:
    """Each tensor of a pytree, and each `slice_mesh` of one, on another mesh, as a copy.

    Dimensions of the same name have the same size, and their ranks send to each other; a dimension that the tensor's mesh lacks is
    broadcast.

    Args:
        tensors: a tensor, or a pytree with tensors.
        mesh: the mesh of the copies.
        stream: the stream of the copies; by default that of each tensor.

    Returns:
        The pytree with new tensors.

    Raises:
        ValueError: the size of a dimension differs, or `mesh` lacks a dimension of the tensor's mesh.

    ```python
    import torch

    from monarch.actor import this_host
    from monarch.tensor import inspect, slice_mesh, to_mesh

    procs = this_host().spawn_procs({"dp": 2})
    with procs.activate() as mesh:
        first = slice_mesh(torch.ones(2) + mesh.rank("dp"), dp=0)
        assert inspect(to_mesh(first, mesh), dp=1).tolist() == [1.0, 1.0]
    procs.stop().get()
    ```
    """
    target = mesh_of(mesh)

    return map_tensors("to_mesh", tensors, lambda t: t.to_mesh(target, stream), MeshSliceTensor)


def slice_mesh(tensors: Any, **coords: int | slice) -> Any:
    """Each tensor of a pytree on a part of its mesh, for `to_mesh` of it."""
    return map_tensors("slice_mesh", tensors, lambda t: t.slice_mesh(**coords))


def moved(tensor: Tensor, source: DeviceMesh, target: DeviceMesh, stream: Stream | None) -> Tensor:
    """`tensor`, as `source` has it, on `target`."""
    handle = handle_of(tensor)
    owner = handle.place
    if stream is not None and not isinstance(stream, Stream):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"to_mesh: stream is a Stream, not {stream!r}")
    check_operands("to_mesh", (tensor,), {"mesh": target}, owner)
    for label, size in source.sizes.items():
        if label not in target.sizes:
            raise ValueError(f"to_mesh: {target!r} has no dimension {label!r}, which the tensor's {source!r} has: slice or reduce it first")
        if target.sizes[label] != size:
            raise ValueError(f"to_mesh: dimension {label!r} has size {size} in {source!r}, and {target.sizes[label]} in {target!r}")
    if target.controller is not source.controller:
        from monarch.tensor._tensors.far_moves import moved_far

        return moved_far(tensor, source, target, routes(source, target), stream or owner.stream)
    controller = owner.controller
    union = tuple(sorted({*source.ranks_in_order, *target.ranks_in_order}))
    # The command goes to all ranks that send or receive.
    between = controller.place_of_ranks(union, owner.stream)
    layout = handle.layout
    made = layout.with_shape(layout.shape)
    number = next(controller.numbers)
    definition = Move(tuple(routes(source, target)), (layout.shape, layout.dtype, layout.device))
    controller.emit(between, controller.defined(definition), (handle.id,), (), (number,))
    place = place_of(target, stream or owner.stream)
    if place.stream is not owner.stream:
        controller.emit_order(place_of(target, owner.stream), place)
    return new_tensor(Handle(number, made, Memory(), place))


def routes(source: DeviceMesh, target: DeviceMesh) -> list[tuple[int, int]]:
    """(source, destination) of each rank of the target."""
    labels = list(target.sizes)
    found: list[tuple[int, int]] = []
    for place in itertools.product(*(range(n) for n in target.sizes.values())):
        at = dict(zip(labels, place, strict=True))
        found.append((source.grid.rank_at(tuple(at[k] for k in source.grid.labels)), target.grid.rank_at(place)))
    return found
