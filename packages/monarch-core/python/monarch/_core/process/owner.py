"""The owners of meshes in a process: its actors, and the process itself (the root client)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.process.mesh_info import MeshInfo
    from monarch._core.process.parts import Owned, OwningProcess, RunningActor


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
        owned = self.process.owned
        # A mesh that ends meanwhile is missing in `owned`.
        found = map(owned.get, self.process.supervision.owned(self.mailbox))
        return [mesh for mesh in found if mesh is not None]
