"""The owners of meshes in a process: its actors, and the process itself (the root client)."""

from __future__ import annotations

from monarch._core.process.root_fault import root_failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.actor.local_actor import LocalActor
    from monarch._core.call.mesh_info import MeshInfo
    from monarch._core.errors.errors import MeshFailure
    from monarch._core.process.process import LocalProcess
    from monarch._core.supervise.supervision import OwnedMesh


class Owner:
    """An owner of meshes; `mailbox` is 0 for the process itself."""

    __slots__ = ("actor", "display", "mailbox", "process", "spawned")

    def __init__(self, process: LocalProcess, mailbox: int, display: str, actor: LocalActor | None = None) -> None:
        self.process = process
        self.mailbox = mailbox
        self.display = display
        self.actor = actor
        # The meshes that the owner spawns, while another part of the program collects them.
        self.spawned: list[MeshInfo] | None = None

    def meshes(self) -> list[OwnedMesh]:
        """The owner's meshes, oldest first."""
        owned = self.process.owned
        # A mesh that ends meanwhile is missing in `owned`.
        found = map(owned.get, self.process.supervision.owned(self.mailbox))
        return [mesh for mesh in found if mesh is not None]

    def failed(self, failure: MeshFailure) -> None:
        """Handles the failure of a mesh that the process itself owns. Called on the housekeeping thread."""
        root_failed(self.process, failure)
