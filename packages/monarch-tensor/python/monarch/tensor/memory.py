"""The storage behind a mesh tensor and its views, and what may be done with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch.tensor.frames import Site
    from monarch.tensor.layout import Layout
    from monarch.tensor.place import Place

DROPPED = "DROPPED"  # its memory is free on the workers
BORROWED = "BORROWED"  # another stream has it for itself
SHARED = "SHARED"  # other streams read it: no stream writes


class Memory:
    """One storage on each rank of a mesh. Tensors that are views of each other have the same one."""

    __slots__ = ("borrows", "dropped_at", "ids", "read_only", "state", "value")

    def __init__(self) -> None:
        self.state: str | None = None
        self.ids: set[int] = set()
        self.borrows = 0
        # Itself a shared borrow: it stays one when those that were made of it have ended.
        self.read_only = False
        self.dropped_at: Site | None = None
        # The number that a tensor without dimensions is known to have, as a local tensor: what optimisers count steps with.
        self.value: Any = None


class Handle:
    """What a mesh tensor is on the workers: a number in their tables.

    The last reference to it frees that entry in the order of commands.
    """

    __slots__ = ("__weakref__", "id", "layout", "memory", "place")

    def __init__(self, number: int, layout: Layout, memory: Memory, place: Place) -> None:
        self.id = number
        self.layout = layout
        self.memory = memory
        self.place = place
        memory.ids.add(number)

    def __del__(self) -> None:
        # On any thread, between any two instructions of it: no lock is taken here. The controller sends the numbers with its next command.
        self.memory.ids.discard(self.id)
        place = self.place
        place.released.append(self.id)
        controller = place.controller
        if not controller.awake:
            controller.stir()
