"""Who owns meshes in a process: an actor of it, or the process itself (the root client)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.errors import MeshFailure
    from monarch._core.local_actor import LocalActor
    from monarch._core.mesh_info import MeshInfo
    from monarch._core.process import LocalProcess
    from monarch._core.supervision import OwnedMesh


class Owner:
    """An owner of meshes; `mailbox` is 0 for the process itself."""

    __slots__ = ("actor", "display", "mailbox", "process", "spawned")

    def __init__(self, process: LocalProcess, mailbox: int, display: str, actor: LocalActor | None = None) -> None:
        self.process = process
        self.mailbox = mailbox
        self.display = display
        self.actor = actor
        # What it spawns, while somebody wants to know.
        self.spawned: list[MeshInfo] | None = None

    def meshes(self) -> list[OwnedMesh]:
        """What it owns, oldest first."""
        owned = self.process.owned
        # One that ends meanwhile is no longer there.
        found = map(owned.get, self.process.supervision.owned(self.mailbox))
        return [mesh for mesh in found if mesh is not None]

    def failed(self, failure: MeshFailure) -> None:
        """Something that the process itself owns has failed. Called on the housekeeping thread."""
        from monarch._core.root_fault import root_failed

        root_failed(self.process, failure)


def current_owner() -> Owner:
    """The owner that this thread or task acts for."""
    from monarch._core.context import current_local_actor
    from monarch._core.process import current_process

    actor = current_local_actor()
    return actor.owner if actor is not None else current_process().owner


def spawning_owner() -> Owner:
    """The same for something new; `RuntimeError` if this is the root and its client has ended."""
    from monarch._core.process import has_exited

    owner = current_owner()
    exited = has_exited() if owner.process.universe is None else owner.process.closed
    if owner.actor is None and exited:
        from monarch._core._native import stay_if_leaving

        stay_if_leaving()
        raise RuntimeError("the Monarch client of this process has been shut down and cannot be started again")
    return owner
