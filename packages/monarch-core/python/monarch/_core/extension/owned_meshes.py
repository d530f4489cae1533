"""The meshes that this process owns, and the stop of one of them by its number."""

from __future__ import annotations

from monarch._core.extension.frozen import Frozen
from monarch._core.process.current import current_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.call.future import Future
    from monarch._core.process.parts import Owned


class OwnedMesh(Frozen):
    """A mesh that an actor of this process, or the process itself, has spawned; immutable.

    `mesh` is its number, as in the events of processes, `name` its name in the program, `owner` the display name of its owner.
    """

    __slots__ = ("is_actors", "is_stopping", "mesh", "name", "owner")

    mesh: int
    name: str
    owner: str
    is_actors: bool
    is_stopping: bool

    def __init__(self, owned: Owned) -> None:
        info = owned.info
        self._set(mesh=info.uid, name=info.name, owner=owned.owner.display, is_actors=owned.is_actors)
        self._set(is_stopping=info.stopped is not None)

    def __repr__(self) -> str:
        return f"OwnedMesh({self.mesh:016x} {self.owner}.{self.name})"


def owned_meshes() -> list[OwnedMesh]:
    """The meshes of procs and actors that this process owns, oldest first."""
    return [OwnedMesh(owned) for owned in list(current_process().meshes.owned.values())]


def stop_mesh(mesh: int, reason: str = "stopped by client") -> Future[None]:
    """Stops a mesh that this process owns, like `stop` of its handle: actors with their clean-up, then processes. Begins when called.

    `LookupError` for a mesh that this process does not own.
    """
    if not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"stop_mesh: the reason is a str, not {type(reason).__name__}")
    owned = current_process().meshes.owned.get(mesh)
    if owned is None:
        raise LookupError(f"this process does not own a mesh with the number {mesh}")
    return owned.stop(reason)
