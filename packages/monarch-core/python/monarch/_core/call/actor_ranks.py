"""The actors that a handle addresses: ranks of one spawn, in the order of the handle.

Handles and their endpoints share the object, which is never sent. Its lists are made with their first use and never change: the shape of a
handle is fixed. Which ranks have failed is state of the mesh (`MeshInfo`), common to all handles of this process.
"""

from __future__ import annotations

from monarch._core.process.current import current_process
from monarch._core.shape.shape import Shape
from monarch._core.shape.slice import Slice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core._native import Targets
    from monarch._core.errors.failure import MeshFailure
    from monarch._core.process.mesh_info import MeshInfo


class ActorRanks:
    """Ranks of the mesh `info`, in the shape of a handle."""

    __slots__ = ("_dense", "_ranks", "_targets", "info", "shape")

    def __init__(self, info: MeshInfo, shape: Shape) -> None:
        self.info = info
        self.shape = shape
        self._ranks: list[int] | None = None
        self._targets: Targets | None = None
        self._dense: Shape | None = None

    def base_ranks(self) -> list[int]:
        """The ranks as the mesh was spawned."""
        if self._ranks is None:
            self._ranks = list(self.shape.ranks())
        return self._ranks

    def procs(self) -> list[int]:
        procs = self.info.procs
        return [procs[r] for r in self.base_ranks()]

    def targets(self) -> Targets:
        if self._targets is None:
            from monarch._core._native import Targets

            self._targets = Targets(current_process().native, self.procs(), self.info.mailbox)
        return self._targets

    def addressed_extent(self) -> bytes:
        """The addressed shape in the form for receivers; empty if it is the spawn shape, which they know."""
        extent, info = self.shape.extent, self.info
        is_same = extent is info.extent or extent == info.extent
        if info.mailbox == info.uid and is_same and self.base_ranks() == list(range(len(info.procs))):
            return b""
        return extent.to_wire()

    def dense_shape(self) -> Shape:
        """The shape of results, one for each rank."""
        if self._dense is None:
            self._dense = Shape(self.shape.labels, Slice.new_row_major(self.shape.ndslice.sizes))
        return self._dense

    def failure(self) -> MeshFailure | None:
        """The reason to refuse calls: a failed rank among these, or the stop of the whole mesh."""
        info, ranks = self.info, self.base_ranks()
        failure = info.first_failure(ranks)
        if failure is not None or info.stopped is None:
            return failure
        from monarch._core.call.answer import stopped_failure

        return stopped_failure(current_process(), info, ranks[0] if ranks else 0, info.stopped)
