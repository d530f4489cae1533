"""Where a mesh tensor lives: on the ranks of a mesh, in the order of one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch.tensor._controller.active import active
from monarch.tensor._controller.place_base import PlaceBase

if TYPE_CHECKING:
    from monarch.tensor._controller.controller import Controller


class Place(PlaceBase):
    """A mesh and a stream of it. There is one object for each such pair, so that places are compared by identity.

    It lives as long as a tensor, an activation or a command to send needs it.
    """

    __slots__ = ("controller",)

    def __init__(self, controller: Controller, mesh: Any, stream: Any, head: tuple[int, int]) -> None:
        super().__init__(controller.orphans, mesh, stream, head)
        self.controller = controller


def place_of(mesh: Any, stream: Any) -> Place:
    """The one place of this mesh and this stream."""
    # The key has the ranks and labels, not the object: two equal slices are the same mesh.
    return _place(mesh.controller, mesh.key, mesh.ranks_in_order, mesh, stream)


def place_of_ranks(controller: Controller, ranks: tuple[int, ...], stream: Any) -> Place:
    """Where commands go that ranks of several meshes execute together. Tensors there are never used by a call."""
    return _place(controller, ranks, ranks, None, stream)


def _place(controller: Controller, ranks_key: Any, ranks: tuple[int, ...], mesh: Any, stream: Any) -> Place:
    key = (ranks_key, stream.serial)
    found: Place | None = controller.places.get(key)
    if found is None:
        head = (controller.stream_number(stream), controller.target_number(ranks))
        found = controller.places[key] = Place(controller, mesh, stream, head)
    return found


def in_active_stream(place: Place) -> Place:
    """The place itself, or that of its mesh in the stream that was activated."""
    stream = active.stream
    return place if stream is None or stream is place.stream else place_of(place.mesh, stream)
