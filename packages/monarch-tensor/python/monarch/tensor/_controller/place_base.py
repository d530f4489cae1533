"""A mesh and a stream as commands name them, and the tensors that have died there: a place without its controller.

The controller and its parts use this class. It imports none of them.
"""

from __future__ import annotations

from typing import Any


class PlaceBase:
    """Where commands go, and are executed in the order of one stream. `Place` is the one subclass."""

    __slots__ = ("__weakref__", "head", "is_collected", "mesh", "orphans", "release_now", "released", "stream")

    def __init__(self, orphans: list[tuple[tuple[int, int], list[int]]], mesh: Any, stream: Any, head: tuple[int, int]) -> None:
        self.is_collected = False
        # The list of the controller with the numbers of tensors that have died at places that no longer exist.
        self.orphans = orphans
        # A `DeviceMesh` and a `Stream`: classes of a package that needs this one. None for a place at which no tensor is used.
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
            self.orphans.append((self.head, self.released))

    def release(self, number: int) -> None:
        """Has the controller free the entry of a tensor that has died here, with a later command. Takes no lock."""
        if self.is_collected:
            # The garbage collector ends objects in any order: the tensors of a place may end after it.
            self.orphans.append((self.head, [number]))
        else:
            self.released.append(number)

    def __repr__(self) -> str:
        return f"<Place {self.mesh!r} {self.stream!r}>"
