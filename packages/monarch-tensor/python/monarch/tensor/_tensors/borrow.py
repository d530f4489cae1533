"""Tensors of one stream in the hands of another one."""

from __future__ import annotations

from typing import Any

from monarch.tensor._controller.handle import Handle
from monarch.tensor._controller.memory import BORROWED, DROPPED, SHARED, Memory
from monarch.tensor._controller.place import place_of
from monarch.tensor._protocol.commands import Alias
from monarch.tensor._protocol.frames import current_site
from monarch.tensor._tensors.dispatch import check_operands
from monarch.tensor._tensors.tensor_base import count_writes, handle_of, new_tensor


class Borrow:
    """A tensor of one stream in the hands of another one, until `drop`. A borrow without references ends when it is collected.

    A borrow of a borrow ends before that one: else `TypeError`.
    """

    @property
    def can_end(self) -> bool:
        """Whether nothing borrows what it has borrowed."""
        return not self._memory.borrows

    def __init__(self, handle: Handle, memory: Memory, place: Any) -> None:
        self._handle = handle
        self._memory = memory
        self._place = place
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the borrowed tensor is the owner's again."""
        return self._ended

    def drop(self) -> None:
        """Ends the borrow: the borrowed tensor and its views cannot be used any more. A second call does nothing."""
        if self._ended:
            return
        if self._memory.borrows:
            raise TypeError("BORROWED: another stream has borrowed this tensor of a borrow. End that borrow (`Borrow.drop`) first.")
        owner = self._handle.place
        controller = owner.controller
        if (recorder := controller.recorder) is not None and self not in recorder.borrows:
            controller.refuse_recording("the end of a borrow that it has not begun")
        memory = self._memory
        memory.state, memory.dropped_at = DROPPED, current_site()
        if controller.failed is None:
            controller.free(self._place, memory.ids())
            if self._place is not owner:
                controller.emit_order(self._place, owner)
        borrowed = self._handle.memory
        # A borrow that was interrupted before this ends again.
        if self._ended:
            return
        self._ended = True
        borrowed.borrows -= 1
        if not borrowed.borrows and borrowed.state != DROPPED:
            borrowed.state = SHARED if borrowed.read_only else None

    def __enter__(self) -> Borrow:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def __del__(self) -> None:
        if not self._ended:
            # Collected on any thread, perhaps inside of the controller, whose own commands end the borrow.
            self._handle.place.controller.forgotten.append(self)


def borrowed_by(stream: Any, t: Any, mutable: bool) -> tuple[Any, Borrow]:
    """`Stream.borrow`: the tensor for the stream, and the borrow."""
    handle = handle_of(t)
    owner = handle.place
    check_operands("borrow", (t,), {"mutable": mutable}, owner, writes=(t,) if mutable else ())
    controller = owner.controller
    place = place_of(owner.mesh, stream)
    memory = Memory()
    memory.state = None if mutable else SHARED
    memory.read_only = not mutable
    number = next(controller.numbers)
    if place is not owner:
        controller.emit_order(owner, place)
    controller.emit(place, controller.defined(Alias()), (handle.id,), (), (number,))
    borrowed = new_tensor(Handle(number, handle.layout, memory, place))
    handle.memory.borrows += 1
    handle.memory.state = BORROWED if mutable else SHARED
    if mutable:
        handle.memory.value = None
        # It is unknown here whether the other stream writes to it.
        count_writes((t,))
    borrow = Borrow(handle, memory, place)
    if (recorder := controller.recorder) is not None:
        recorder.borrows.add(borrow)
    return borrowed, borrow
