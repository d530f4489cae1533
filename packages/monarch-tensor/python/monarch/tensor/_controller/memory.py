"""The storage behind a mesh tensor and its views, and what may be done with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch.tensor._protocol.frames import Site

DROPPED = "DROPPED"  # its memory is free on the workers
BORROWED = "BORROWED"  # another stream has exclusive use of it
SHARED = "SHARED"  # other streams read it: no stream writes


class Memory:
    """One storage on each rank of a mesh. Tensors that are views of each other have the same one.

    Most have no view and no borrow: what is the default of the class costs nothing to make.
    """

    state: str | None = None
    # The numbers of its tensors: of the first one, and of the others.
    first = 0
    others: set[int] | None = None
    borrows = 0
    # Whether it is itself a shared borrow: it stays one when the borrows made from it have ended.
    read_only = False
    dropped_at: Site | None = None
    # The known number of a tensor without dimensions, as a local tensor: optimisers count steps with it.
    value: Any = None

    def add(self, number: int) -> None:
        """One more tensor has it."""
        if not self.first:
            self.first = number
        elif self.others is None:
            self.others = {number}
        else:
            self.others.add(number)

    def discard(self, number: int) -> None:
        """That tensor has it no more."""
        if number == self.first:
            self.first = 0
        elif self.others is not None:
            self.others.discard(number)

    def ids(self) -> list[int]:
        """The numbers of its tensors."""
        return sorted([*([self.first] if self.first else ()), *(self.others or ())])
