"""Where a mesh tensor lives: on the ranks of a mesh, in the order of one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch.tensor._controller.active import active

if TYPE_CHECKING:
    from monarch.tensor._controller.controller import Controller


class Place:
    """A mesh and a stream of it. There is one object for each such pair, so that places are compared by identity.

    It lives as long as a tensor, an activation or a command to send needs it.
    """

    __slots__ = ("__weakref__", "controller", "head", "is_collected", "mesh", "release_now", "released", "stream")

    def __init__(self, controller: Controller, mesh: Any, stream: Any, head: tuple[int, int]) -> None:
        self.is_collected = False
        self.controller = controller
        # A `DeviceMesh` and a `Stream`: classes of a package that needs this one.
        self.mesh = mesh
        self.stream = stream
        # The numbers of the stream and of the set of ranks in a batch.
        self.head = head
        # The numbers of tensors that have died here, filled by any thread.
        self.released: list[int] = []
        # Whether one of them is large: its memory must not wait for more of them.
        self.release_now = False

    def __del__(self) -> None:
        # This runs on any thread, as the end of a tensor.
        self.is_collected = True
        if getattr(self, "released", None):
            self.controller.orphans.append((self.head, self.released))

    def release(self, number: int) -> None:
        """Has the controller free the entry of a tensor that has died here, with a later command. Takes no lock."""
        if self.is_collected:
            # The garbage collector ends objects in any order: the tensors of a place may end after it.
            self.controller.orphans.append((self.head, [number]))
        else:
            self.released.append(number)

    def __repr__(self) -> str:
        return f"<Place {self.mesh!r} {self.stream!r}>"


def place_of(mesh: Any, stream: Any) -> Place:
    """The one place of this mesh and this stream."""
    controller: Controller = mesh.controller
    places = controller.places
    # The key has the ranks and labels, not the object: two equal slices are the same mesh.
    key = (mesh.key, stream.serial)
    found = places.get(key)
    if found is None:
        head = (controller.stream_number(stream), controller.target_number(mesh.ranks_in_order))
        found = places[key] = Place(controller, mesh, stream, head)
    return found


def in_active_stream(place: Place) -> Place:
    """The place itself, or that of its mesh in the stream that was activated."""
    stream = active.stream
    return place if stream is None or stream is place.stream else place_of(place.mesh, stream)
