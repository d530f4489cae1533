"""A Python object on each rank, which the controller names and does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch.tensor.errors import TensorMeshError

if TYPE_CHECKING:
    from monarch.tensor.memory import Handle
    from monarch.tensor.place import Place


class OpaqueRef:
    """Stands for an object of any kind that a remote function has returned on each rank; remote functions get the object in its place."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @property
    def value(self) -> Any:
        """On the controller: `TensorMeshError`, as the object is on the workers."""
        raise TensorMeshError("the value of an OpaqueRef is on the workers: pass it to a remote function, which gets the object itself")

    def handle_at(self, place: Place) -> Handle:
        """Its handle, for a call at this place. `TypeError` for an object of another mesh or stream."""
        if self._handle.place is not place:
            raise TypeError(f"{self!r} is on {self._handle.place!r}, and the call is on {place!r}")
        return self._handle

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._handle.place.mesh!r}>"
