"""What the controller has of a mesh tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.tensor._controller.memory import Memory
    from monarch.tensor._controller.place import Place
    from monarch.tensor._protocol.layout import Layout


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
        if memory.first:
            memory.add(number)
        else:
            memory.first = number

    def __del__(self) -> None:
        # This runs on any thread, between any two instructions of it: no lock is taken here. The controller sends the numbers with a later
        # command.
        try:
            number, memory, place = self.id, self.memory, self.place
        except AttributeError:
            # The constructor was interrupted before it had the numbers.
            return
        if memory.first == number:
            memory.first = 0
        else:
            memory.discard(number)
        place.release(number)
        # The size of an object that is no tensor is unknown here.
        if getattr(self.layout, "is_large", True):
            place.release_now = True
        controller = place.controller
        if not controller.awake:
            controller.stir()
