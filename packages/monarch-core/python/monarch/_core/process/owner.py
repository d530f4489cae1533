"""The owners of meshes in a process: its actors, and the process itself (the root client)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from monarch._core.process.execution import Execution
    from monarch._core.process.mesh_info import MeshInfo
    from monarch._core.process.mesh_table import MeshTable
    from monarch._core.process.parts import Owned, RunningActor

    class OwningProcess(Protocol):
        """A process, as its owners of meshes use it."""

        uid: int
        closed: bool

        @property
        def execution(self) -> Execution: ...
        @property
        def meshes(self) -> MeshTable: ...


class Owner:
    """An owner of meshes; `mailbox` is 0 for the process itself."""

    __slots__ = ("actor", "display", "mailbox", "process", "spawned")

    def __init__(self, process: OwningProcess, mailbox: int, display: str, actor: RunningActor | None = None) -> None:
        self.process = process
        self.mailbox = mailbox
        self.display = display
        self.actor = actor
        # The meshes that the owner spawns, while another part of the program collects them.
        self.spawned: list[MeshInfo] | None = None

    def meshes(self) -> list[Owned]:
        """The owner's meshes, oldest first."""
        owned = self.process.meshes.owned
        # A mesh that ends meanwhile is missing in `owned`.
        found = map(owned.get, self.process.meshes.supervision.owned(self.mailbox))
        return [mesh for mesh in found if mesh is not None]
