"""What a future knows about the call whose answer it waits for.

The target of an endpoint's call implements `Called`. Futures are below targets, so they know this module only.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from monarch._core._native import PendingCall

    class Called(Protocol):
        """The called actors. `rank` is the position of the called actor if it is one of several."""

        def unanswered(self, cell: PendingCall, rank: int | None) -> str:
            """The end of the text of a `TimeoutError`; empty if all actors have answered."""
            ...

        def late(self, cell: PendingCall, rank: int | None) -> LateCall:
            """The call, with the actors that have not answered."""
            ...


class LateCall:
    """A call, with the actors that have not answered.

    `mesh` is the name of the called mesh, `mailbox` its mailbox, `size` the number of its actors, `ranks` the rank in the spawn and the
    process of each actor without an answer.
    """

    __slots__ = ("endpoint", "mailbox", "mesh", "ranks", "size")

    def __init__(self, endpoint: str, mesh: str, mailbox: int, size: int, ranks: list[tuple[int, int]]) -> None:
        self.endpoint = endpoint
        self.mesh = mesh
        self.mailbox = mailbox
        self.size = size
        self.ranks = ranks
