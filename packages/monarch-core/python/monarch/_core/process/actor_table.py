"""The actors of a process, by the ids of their meshes: a process has at most one actor of a mesh.

The housekeeping thread adds actors. Each actor removes itself at its end, on its own thread: readers on other threads copy first.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.process.parts import RunningActor


class ActorTable(dict[int, "RunningActor"]):
    """The actors that have not ended."""

    def __init__(self) -> None:
        # Actors without a thread: by mesh, the failure as it is sent.
        self.unstarted: dict[int, bytes] = {}
