"""Tensors that go between procs of two controllers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch.extension.mesh import mesh_view
from monarch.tensor._controller.handle import Handle
from monarch.tensor._controller.memory import Memory
from monarch.tensor._controller.place import place_of
from monarch.tensor._protocol.commands import Offer, Pull
from monarch.tensor._tensors.tensor_base import handle_of, new_tensor
from monarch.tensor.errors import TensorMeshError

if TYPE_CHECKING:
    from monarch.tensor._tensors.rank_mesh import RankMesh
    from monarch.tensor._tensors.tensor_base import TensorBase


def moved_far(tensor: TensorBase, source: RankMesh, target: RankMesh, routes: list[tuple[int, int]], stream: Any) -> Any:
    """`tensor`, as `source` has it, on `target` of another controller, by `routes` of (rank there, rank here)."""
    handle = handle_of(tensor)
    owner = handle.place
    sender, receiver = source.controller, target.controller
    if not (sender.has_workers and receiver.has_workers):
        raise TensorMeshError(f"to_mesh: {source!r} and {target!r} are meshes of two controllers, of which a simulated one sends nothing")
    key = f"{sender.session}/{next(sender.numbers)}"
    takers: dict[int, int] = {}
    for of, _ in routes:
        takers[of] = takers.get(of, 0) + 1
    procs = mesh_view(sender.procs)
    sender.emit(owner, sender.defined(Offer()), (handle.id,), (key, takers), ())
    # The other controller may wait for its workers, which wait for this tensor: it is sent before.
    sender.flush()
    layout = handle.layout.with_shape(handle.layout.shape)
    place = place_of(target, stream)
    number = next(receiver.numbers)
    sources = {to: (procs.procs[of], procs.hosts[of]) for of, to in routes}
    receiver.emit(place, receiver.defined(Pull((layout.shape, layout.dtype, layout.device))), (), (key, sources), (number,))
    return new_tensor(Handle(number, layout, Memory(), place))
